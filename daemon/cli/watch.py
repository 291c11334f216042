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
from daemon.cli.client import Client, Json
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
    wanted = [client.store_id(store) for store in stores]
    with contextlib.suppress(KeyboardInterrupt):
        try:
            people = People(client)
            for change in _changes(client, wanted, since):
                _show(change, people)
        except (_Closed, BrokenPipeError):
            # what Python still flushes at its end has no reader either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _show(change: Json, people: People) -> None:
    if session().json:
        click.echo(json.dumps(change), color=True)
    else:
        output.say("  ".join(_columns(change, people)))
    sys.stdout.flush()


def _columns(change: Json, people: People) -> list[str]:
    where = change["path"] or change["subject"] or "-"
    if change["old_path"]:
        where = f"{change['old_path']} -> {where}"
    return [
        f"{change['seq']:>7}",
        output.local_time(change["at"]),
        f"{change['operation'] or change['kind']:<10}",
        change["memory_store_id"] or "-",
        people.name(change["actor"]),
        where,
    ]
