"""Logging is one JSON object a line on stderr.

Every line has `time` (UTC, RFC 3339), `level`, `logger` and `message`; what a call passes as
`extra=` follows as further keys. Texts of notes are never logged: extra values that are not plain
are written as their type's name, so that a record or bytes passed by mistake stay out too.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import PurePath

from memfs import errors

LEVELS = ("debug", "info", "warning", "error")

# What every LogRecord has; the rest of its attributes came from `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED = ("time", "level", "logger", "message", "traceback")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON (so terminals see no control characters)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                line[f"{key}_" if key in _RESERVED else key] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_plain)


def _plain(value: object) -> str:
    """Return what stands for a *value* that JSON does not know: never its content."""
    return str(value) if isinstance(value, PurePath) else f"<{type(value).__name__}>"


def setup(level: str = "info") -> None:
    """Send all logging of this process to stderr as JSON lines; calling again replaces the first.

    level: debug, info, warning or error.
    Raises: Invalid.
    """
    if level.lower() not in LEVELS:
        raise errors.Invalid(f"unknown log level {level!r}: use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
