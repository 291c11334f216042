"""`memfs store`: memory stores."""

import click

from daemon.cli import output
from daemon.cli.client import STORE_PAGE, Client, Json
from daemon.cli.complete import STORE
from daemon.cli.confirm import ask_before, yes_option
from daemon.cli.session import Group, session


@click.group("store", cls=Group)
def store_group() -> None:
    """Memory stores. STORE is a name or an id."""


@store_group.command("create")
@click.argument("name")
@click.option("--description", help="What the store is for; workers read it.")
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="A label; repeat for more.")
def create(name: str, description: str | None, metadata: tuple[str, ...]) -> None:
    """Make an empty store."""
    body: Json = {"name": name, "description": description, "metadata": _labels(metadata) or None}
    client = session().client
    made = client.post("memory_stores", body=body)
    output.emit(made, lambda: [made["id"]])
    note_twins(client, name, made["id"])


@store_group.command("list")
@click.option("--archived", is_flag=True, help="Archived ones too.")
def list_stores(archived: bool) -> None:
    """List the stores, newest first."""
    rows = list(session().client.rows("memory_stores", limit=STORE_PAGE, include_archived=archived))
    output.emit_rows(
        rows,
        lambda: output.table(
            ("ID", "NOTES", "NAME", "STATE"),
            ((row["id"], row["memory_count"], row["name"], _state(row)) for row in rows),
        ),
    )


@store_group.command("show")
@click.argument("store", type=STORE)
def show(store: str) -> None:
    """Show one store."""
    client = session().client
    found = client.get("memory_stores", client.store_id(store))
    output.emit(found, lambda: _fields(found))


@store_group.command("update")
@click.argument("store", type=STORE)
@click.option("--name", help="The new name; running tasks keep their folder's.")
@click.option("--description", help="The new description; empty clears it.")
@click.option(
    "--metadata", metavar="KEY=VALUE", multiple=True, help="Set a label; KEY= removes it."
)
def update(
    store: str, name: str | None, description: str | None, metadata: tuple[str, ...]
) -> None:
    """Change name, description or labels."""
    client = session().client
    labels = {key: value or None for key, value in _labels(metadata).items()} or None
    body: Json = {"name": name, "description": description, "metadata": labels}
    changed = client.post("memory_stores", client.store_id(store), body=body)
    output.emit(changed, lambda: _fields(changed))


@store_group.command("archive", short_help="Make a store read-only for good.")
@click.argument("store", type=STORE)
def archive(store: str) -> None:
    """Make a store read-only for good; it no longer counts towards the limit."""
    client = session().client
    changed = client.post("memory_stores", client.store_id(store), "archive")
    output.emit(changed, lambda: [f"archived {changed['id']}"])


@store_group.command("delete")
@click.argument("store", type=STORE)
@yes_option
def delete(store: str, yes: bool) -> None:
    """Remove a store with its notes and their whole history for good."""
    client = session().client
    found = client.get("memory_stores", client.store_id(store))
    name = f"memory store {found['name']!r} ({found['id']})"
    ask_before(f"delete {name} with all its notes ({found['memory_count']}) and versions", yes=yes)
    gone = client.delete("memory_stores", found["id"])
    output.emit(gone, lambda: [f"deleted {gone['id']}"])


def note_twins(client: Client, name: str, store_id: str) -> None:
    """Say that a store that was made has the name of another living one, if it has."""
    others = client.others_called(name, store_id)
    if others:
        output.note(
            f"other living stores are called {name!r}, too ({', '.join(others)}): name this one by "
            f"its id, {store_id}, or rename it with `memfs store update {store_id} --name NAME`"
        )


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    for label in given:
        if "=" not in label:
            raise click.BadParameter(
                f"{label!r} is not KEY=VALUE: write it so", param_hint="--metadata"
            )
    return dict(label.split("=", 1) for label in given)


def _state(row: Json) -> str:
    if row["archived_at"] is not None:
        return "archived"
    return "worker's own" if row["worker_id"] is not None else "shared"


def _fields(row: Json) -> list[str]:
    names = ("id", "name", "description", "metadata", "memory_count", "worker_id", "created_at")
    return list(output.fields(row, *names, "updated_at", "archived_at"))
