"""`memfs key`: who may ask over TCP."""

import click

from daemon.cli import output
from daemon.cli.client import Client, the_id
from daemon.cli.session import Group, session
from memfs import ids


@click.group("key", cls=Group, short_help="API keys, needed over TCP.")
def key_group() -> None:
    """API keys: needed over TCP (`memfs serve --listen`), useful for the right author anywhere."""


@key_group.command("create")
@click.option(
    "--as",
    "who",
    required=True,
    metavar="person|agent:WORKER|readonly",
    help="person: everything. agent: a worker's own memory and its live tasks' stores. "
    "readonly: read everything.",
)
@click.option("--name", default="", help="What it is for; shown in `memfs key list`.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(("stores", "tasks", "agents", "events")),
    help="Only these groups of routes; repeat for more. [default: all]",
)
def create(who: str, name: str, scopes: tuple[str, ...]) -> None:
    """Make a key and print its secret, which is shown this once."""
    power, _, worker = who.partition(":")
    if power not in ("person", "agent", "readonly") or (power == "agent") != bool(worker):
        raise click.BadParameter(
            f"{who!r}: write person, readonly, or agent:WORKER with a worker's name or id",
            param_hint="--as",
        )
    body = {
        "power": power,
        "name": name,
        "worker": worker or None,
        "scopes": list(scopes) or None,
    }
    made = session().client.post("keys", body=body)
    output.emit(made, lambda: [made["secret"]])
    output.note(f"{made['id']}: keep the secret, it cannot be shown again")


@key_group.command("list")
def list_keys() -> None:
    """List all keys; their secrets cannot be read back."""
    client = session().client
    rows = client.get("keys")["data"]
    names = {row["id"]: row["name"] for row in client.get("workers")["data"]}
    output.emit_rows(
        rows,
        lambda: output.table(
            ("MADE", "AS", "SCOPES", "STATE", "ID", "NAME"),
            (
                (
                    output.local_time(row["created_at"]),
                    row["power"] + (f":{names[row['worker_id']]}" if row["worker_id"] else ""),
                    "all" if row["scopes"] is None else ",".join(row["scopes"]),
                    "revoked" if row["revoked_at"] else "valid",
                    row["id"],
                    row["name"],
                )
                for row in rows
            ),
        ),
    )


@key_group.command("revoke", short_help="Make a key useless for good, by its id or name.")
@click.argument("key")
def revoke(key: str) -> None:
    """Make a key useless for good, by its id or a name that no other valid key has."""
    client = session().client
    gone = client.post("keys", _key_id(client, key), "revoke")
    output.emit(gone, lambda: [f"revoked {gone['id']}"])


def _key_id(client: Client, key: str) -> str:
    """Return the id of a key given by id or name; of several of that name the one that is valid."""
    if ids.has_shape(key, "apikey_"):
        return key
    found = [row for row in client.get("keys")["data"] if row["name"] == key]
    valid = [row for row in found if row["revoked_at"] is None] or found[-1:]
    missing = f"no key has the id or name {key!r}: list them with `memfs key list`"
    return the_id(valid, missing, f"valid keys are called {key!r}")
