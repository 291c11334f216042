"""What commands print: JSON, or lines that a terminal may safely show."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from daemon.cli.session import session

# CSI, OSC, other escape sequences; then what is left of the control characters
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*"
    r"(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_DEL_AND_C1 = re.compile(r"[\x7f-\x9f]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def emit(answer: Any, lines: Callable[[], Iterable[str]]) -> None:  # noqa: ANN401 - JSON
    """Print *answer* as JSON if that was asked for, else *lines*."""
    if session().json:
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        text = json.dumps(answer, indent=2, ensure_ascii=ascii_only)
        # json leaves these alone, and a terminal obeys them
        click.echo(_DEL_AND_C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text), color=True)
        return
    for line in lines():
        say(line)


def note(line: str) -> None:
    """Print what is good to know and not part of the answer to standard error."""
    click.echo(f"note: {clean(line)}", err=True)


def emit_rows(rows: list[dict[str, Any]], lines: Callable[[], Iterable[str]]) -> None:
    """Print a whole listing, as one page if as JSON."""
    emit({"data": rows, "next_page": None}, lines)


def say(line: str) -> None:
    """Print a line; on a terminal without escape codes."""
    click.echo(clean(line) if sys.stdout.isatty() else line, color=True)


def write(text: str) -> None:
    """Write a note's text: its very bytes, but on a terminal without escape codes."""
    if sys.stdout.isatty():
        click.echo(clean(text), nl=not text.endswith("\n"), color=True)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()


def clean(text: str) -> str:
    """Return *text* without what would move the cursor, colour or retitle a terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """Yield aligned lines; nothing for no rows."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return
    cells.insert(0, list(head))
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def fields(answer: dict[str, Any], *names: str) -> Iterable[str]:
    """Yield `name: value` lines of the fields that have a value."""
    width = max(map(len, names)) + 1
    for name in names:
        value = answer.get(name)
        if value is not None and value != "" and value != {}:
            shown = local_time(value) if name.endswith("_at") else value
            if isinstance(shown, dict):
                shown = ", ".join(f"{key}={item}" for key, item in shown.items())  # pyright: ignore[reportUnknownVariableType]
            yield f"{name + ':':<{width}} {shown}"


def local_time(text: str | None) -> str:
    """Return one of the API's times in the user's time zone, to the second."""
    if text is None:
        return "-"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
