"""`memfs config`: every setting, what it is now, and where that comes from."""

import os
from typing import Any

import click

from daemon.cli import output
from daemon.cli.exits import Exit
from daemon.cli.session import Command, Failure, Session, session
from daemon.config import Config


@click.command(
    "config", cls=Command, short_help="Show every setting with its value, default and source."
)
def config() -> None:
    """Show every setting with its value, default and source; nothing can be changed here.

    The daemon's are those that it was started with; while none runs, those that it would have.
    """
    chosen = session().config
    rows: list[dict[str, Any]] = [
        {
            "name": "workspace",
            "value": str(chosen.workspace),
            "default": "the nearest folder above with .little-worker",
            "source": _source_of_workspace(session()),
        }
    ]
    serving = _serving()
    for name, default in Config(chosen.workspace).settings().items():
        value = default if serving is None else serving[name]
        source = "default" if value == default else f"memfs serve --{name}"
        rows.append({"name": name, "value": value, "default": default, "source": source})
    running = serving is not None
    output.emit(
        {"data": rows, "next_page": None, "running": running}, lambda: _lines(rows, running)
    )


def _serving() -> dict[str, Any] | None:
    """Return the running daemon's settings, None if there is no daemon."""
    try:
        return session().client.get("status")["settings"]
    except Failure as failure:
        if failure.exit_code == Exit.NOT_RUNNING:
            return None
        raise


def _source_of_workspace(given: Session) -> str:
    if given.workspace:
        return "--workspace"
    return "MEMFS_WORKSPACE" if os.environ.get("MEMFS_WORKSPACE") else "found above this folder"


def _lines(rows: list[dict[str, Any]], running: bool) -> list[str]:
    cells = ([_shown(row[key]) for key in ("name", "value", "default", "source")] for row in rows)
    lines = list(output.table(("SETTING", "VALUE", "DEFAULT", "SOURCE"), cells))
    return lines if running else [*lines, "no daemon runs here: these are what it would have"]


def _shown(value: object) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    return "-" if value in (None, "") else str(value)
