"""`memfs refused`: texts that a mount could not save."""

import click

from daemon.cli import output
from daemon.cli.client import STORE_PAGE, VERSION_PAGE, Client, Json, absolute
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
@click.argument("store", type=STORE, required=False)
def list_refused(store: str | None) -> None:
    """List the refused texts of a store, or of all, newest first."""
    client = session().client
    if store is None:
        listed = client.rows("memory_stores", limit=STORE_PAGE, include_archived=True)
        stores = {row["id"]: row["name"] for row in listed}
    else:
        stores = {client.store_id(store): store}
    rows = [
        row
        for one in stores
        for row in client.rows("memory_stores", one, "refused_texts", limit=VERSION_PAGE)
    ]
    if store is None:
        rows.sort(key=lambda row: row["created_at"], reverse=True)
    people = People(client)
    head = ("NUMBER", "TIME", "BYTES", "BY", "PATH", "REASON")

    def line(row: Json) -> tuple[object, ...]:
        cells = (
            row["number"],
            output.local_time(row["created_at"]),
            row["content_size_bytes"],
            people.name(row["created_by"]),
            row["path"],
            row["reason"],
        )
        return cells if store is not None else (stores[row["memory_store_id"]], *cells)

    named = head if store is not None else ("STORE", *head)
    output.emit_rows(rows, lambda: output.table(named, map(line, rows)))


@refused_group.command("show")
@click.argument("store", type=STORE)
@click.argument("number", type=_NUMBER)
def show(store: str, number: int) -> None:
    """Print a refused text."""
    client = session().client
    found = client.get(*_route(client, store, number))
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
    refused = _route(client, store, number)
    made = client.post(*refused, "keep", body={"path": absolute(path)})
    output.emit(made, lambda: [f"{made['path']} {made['memory_version_id']}"])


@refused_group.command("discard")
@click.argument("store", type=STORE)
@click.argument("number", type=_NUMBER)
@yes_option
def discard(store: str, number: int, yes: bool) -> None:
    """Remove a refused text for good."""
    client = session().client
    refused = _route(client, store, number)
    found = client.get(*refused, view="basic")
    ask_before(f"discard refused text {number}, meant for {found['path']}", yes=yes)
    gone = client.delete(*refused)
    output.emit(gone, lambda: [f"discarded {number}"])


def _route(client: Client, store: str, number: int) -> tuple[str, ...]:
    return ("memory_stores", client.store_id(store), "refused_texts", str(number))
