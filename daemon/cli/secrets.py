"""`memfs secret`: credentials that no note may hold."""

import sys
from collections.abc import Iterator

import click

from daemon.cli import output
from daemon.cli.client import Json
from daemon.cli.session import Group, session


@click.group("secret", cls=Group)
def secret_group() -> None:
    """Registered credentials: a text that holds one is refused. They cannot be read back."""


@secret_group.command("add")
@click.argument("name")
def add(name: str) -> None:
    """Register a credential; it is asked for, or read from standard input.

    From then on no text that holds it is accepted. What holds it already stays, and is named.
    """
    if sys.stdin.isatty():
        secret: str = click.prompt("Credential", hide_input=True, err=True)
    else:
        secret = sys.stdin.read().strip()
    made = session().client.post("secrets", body={"name": name, "secret": secret})
    output.emit(made, lambda: _lines(made))


@secret_group.command("list")
def list_secrets() -> None:
    """List the names of the registered credentials."""
    rows = session().client.get("secrets")["data"]
    output.emit_rows(
        rows,
        lambda: output.table(
            ("REGISTERED", "NAME"),
            ((output.local_time(row["created_at"]), row["name"]) for row in rows),
        ),
    )


@secret_group.command("rm")
@click.argument("name")
def rm(name: str) -> None:
    """Forget a registered credential."""
    gone = session().client.delete("secrets", name)
    output.emit(gone, lambda: [f"forgot {name}"])


def _lines(made: Json) -> Iterator[str]:
    yield f"registered {made['name']}"
    shown, count = made["held_by"], made["held_by_count"]
    if not count:
        return
    yield f"{count} {'holds' if count == 1 else 'hold'} it already:"
    yield from output.table(
        ("STORE", "PATH", "WHERE"),
        ((row["memory_store_name"], row["path"], _where(row)) for row in shown),
    )
    if len(shown) < count:
        yield f"and {count - len(shown)} more"
    yield made["remedy"]


def _where(row: Json) -> str:
    """Return where in a note, or among the refused texts, a credential is."""
    if row["refused_text"] is not None:
        return f"refused text {row['refused_text']}"
    older = row["older_versions"]
    parts = ["now"] if row["current"] else []
    if older:
        parts.append(f"{older} older version{'s' if older > 1 else ''}")
    return ", ".join(parts)
