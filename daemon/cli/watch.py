"""`memfs watch`: changes as they are committed."""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator

import click

from daemon.cli import output
from daemon.cli.client import STORE_PAGE, Client, Json
from daemon.cli.exits import Exit
from daemon.cli.people import People
from daemon.cli.session import Command, Failure, session

_QUIET_S = 60.0  # without a byte, four heartbeats: the daemon hangs
_WAIT_S = 0.5  # before connecting again


class _Closed(Exception):
    """Nobody reads our output any more."""


@click.command("watch", cls=Command, short_help="Show changes as they happen, until Ctrl-C.")
@click.argument("stores", metavar="[STORE]...", nargs=-1)
@click.option(
    "--since",
    metavar="SEQ",
    type=click.IntRange(min=0),
    help="Begin after this change (0: with the first). [default: with the next]",
)
def watch(stores: tuple[str, ...], since: int | None) -> None:
    """Show changes of all stores, or of some, as they happen, until Ctrl-C.

    Waits for a daemon that restarts and goes on where it was. With --json one object a line.
    """
    client = session().client
    _check_since(client, since)
    wanted = [client.store_id(store) for store in stores]
    with contextlib.suppress(KeyboardInterrupt):
        try:
            people, names = People(client), _Stores(client)
            for change in _changes(client, wanted, since):
                _show(change, people, names)
        except (_Closed, BrokenPipeError):
            # what Python still flushes at its end has no reader either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_since(client: Client, since: int | None) -> None:
    """Say in the words of this command what the daemon would say in its own."""
    newest: int = client.get("status")["seq"] if since else 0
    if since is not None and since > newest:
        raise Failure(
            Exit.REFUSED,
            f"--since {since}: there is no such change yet, the newest is {newest}; give that or a "
            "smaller number, or leave --since out to begin with the next",
        )


class _Stores:
    """What the stores are called, and were before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        rows = client.rows("memory_stores", limit=STORE_PAGE, include_archived=True)
        self._names: dict[str, str] = {row["id"]: row["name"] for row in rows}

    def name(self, store_id: str) -> str | None:
        """Return a store's name, None if it was gone before anybody asked."""
        if store_id not in self._names:
            self.refresh(store_id)
        return self._names.get(store_id)

    def refresh(self, store_id: str) -> str | None:
        """Ask anew; return the name that the store had before, if it had another."""
        before = self._names.get(store_id)
        with contextlib.suppress(Failure):  # gone, or the daemon is: the old name will do
            self._names[store_id] = self._client.get("memory_stores", store_id)["name"]
        return before if before != self._names.get(store_id) else None


def _changes(client: Client, stores: list[str], since: int | None) -> Iterator[Json]:
    """Yield every change once, whatever happens to the daemon meanwhile."""
    position = None if since is None else str(since)
    was_there = False
    while True:
        try:
            blocks = client.stream(
                "events", last_id=position, quiet_s=_QUIET_S, memory_store_id=stores
            )
            for block in blocks:
                was_there = True
                position = block.get("id", position)
                if "data" in block:
                    yield json.loads(block["data"])
                else:
                    _check_reader()
        except ConnectionError:
            pass
        except Failure as failure:
            if not was_there or failure.exit_code != Exit.NOT_RUNNING:
                raise
        _check_reader()
        time.sleep(_WAIT_S)


def _check_reader() -> None:
    """Raise _Closed if standard output is a pipe that nobody reads."""
    with contextlib.suppress(OSError, ValueError):  # not a descriptor, in tests
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if poll.poll(0):
            raise _Closed


def _show(change: Json, people: People, stores: _Stores) -> None:
    if session().json:
        click.echo(json.dumps(change), color=True)
    else:
        output.say("  ".join(_columns(change, people, stores)))
    sys.stdout.flush()


def _columns(change: Json, people: People, stores: _Stores) -> list[str]:
    where = change["path"] or change["subject"] or "-"
    old, store_id = change["old_path"], change["memory_store_id"]
    if change["kind"] == "store":
        old = stores.refresh(store_id)
        where = stores.name(store_id) or "-"
    return [
        f"{change['seq']:>7}",
        output.local_time(change["at"]),
        f"{_what(change):<14}",
        _store(store_id, stores),
        people.name(change["actor"]),
        f"{old} -> {where}" if old else where,
    ]


def _what(change: Json) -> str:
    """Return `modified` of a note, `task ended` of what is none, or the kind alone."""
    kind, done = change["kind"], change["operation"]
    if done is None:
        return kind
    return done if kind in ("note", "archive") else f"{kind} {done}"


def _store(store_id: str | None, stores: _Stores) -> str:
    if store_id is None:
        return "-"
    name = stores.name(store_id)
    return store_id if name is None else f"{name} ({store_id})"
