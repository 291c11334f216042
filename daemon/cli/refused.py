"""`memfs refused`: texts that a mount could not save."""

import click

from daemon.cli import output
from daemon.cli.client import VERSION_PAGE, absolute
from daemon.cli.complete import NOTE, STORE
from daemon.cli.confirm import ask_before, yes_option
from daemon.cli.people import People
from daemon.cli.session import Group, session

_NUMBER = click.IntRange(min=1)


@click.group("refused", cls=Group, short_help="Texts that could not be saved.")
def refused_group() -> None:
    """Texts that could not be saved, because somebody else's change came first.

    They are in .memfs/refused of the store's memory folders, too.
    """


@refused_group.command("list")
@click.argument("store", type=STORE)
def list_refused(store: str) -> None:
    """List the refused texts of a store, newest first."""
    client = session().client
    store_id = client.store_id(store)
    rows = list(client.rows("memory_stores", store_id, "refused_texts", limit=VERSION_PAGE))
    people = People(client)
    output.emit_rows(
        rows,
        lambda: output.table(
            ("NUMBER", "TIME", "BYTES", "BY", "PATH", "REASON"),
            (
                (
                    row["number"],
                    output.local_time(row["created_at"]),
                    row["content_size_bytes"],
                    people.name(row["created_by"]),
                    row["path"],
                    row["reason"],
                )
                for row in rows
            ),
        ),
    )


@refused_group.command("show")
@click.argument("store", type=STORE)
@click.argument("number", type=_NUMBER)
def show(store: str, number: int) -> None:
    """Print a refused text."""
    client = session().client
    found = client.get("memory_stores", client.store_id(store), "refused_texts", str(number))
    if session().json:
        output.emit(found, list)
    else:
        output.write(found["content"])


@refused_group.command("keep", short_help="Make a refused text a new note at a free PATH.")
@click.argument("store", type=STORE)
@click.argument("number", type=_NUMBER)
@click.argument("path", type=NOTE)
def keep(store: str, number: int, path: str) -> None:
    """Make a refused text a new note at PATH, which must be free; then it is refused no longer.

    To write it over a note instead: memfs refused show STORE NUMBER | memfs put STORE PATH
    """
    client = session().client
    refused = ("memory_stores", client.store_id(store), "refused_texts", str(number))
    made = client.post(*refused, "keep", body={"path": absolute(path)})
    output.emit(made, lambda: [f"{made['path']} {made['memory_version_id']}"])


@refused_group.command("discard")
@click.argument("store", type=STORE)
@click.argument("number", type=_NUMBER)
@yes_option
def discard(store: str, number: int, yes: bool) -> None:
    """Remove a refused text for good."""
    client = session().client
    refused = ("memory_stores", client.store_id(store), "refused_texts", str(number))
    found = client.get(*refused, view="basic")
    ask_before(f"discard refused text {number}, meant for {found['path']}", yes=yes)
    gone = client.delete(*refused)
    output.emit(gone, lambda: [f"discarded {number}"])
