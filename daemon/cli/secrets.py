"""`memfs secret`: credentials that no note may hold."""

import sys

import click

from daemon.cli import output
from daemon.cli.session import Group, session


@click.group("secret", cls=Group)
def secret_group() -> None:
    """Registered credentials: a text that holds one is refused. They cannot be read back."""


@secret_group.command("add")
@click.argument("name")
def add(name: str) -> None:
    """Register a credential; it is asked for, or read from standard input."""
    if sys.stdin.isatty():
        secret: str = click.prompt("Credential", hide_input=True, err=True)
    else:
        secret = sys.stdin.read().strip()
    made = session().client.post("secrets", body={"name": name, "secret": secret})
    output.emit(made, lambda: [f"registered {made['name']}"])


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
