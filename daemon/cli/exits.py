"""How a command ends: the one table of exit codes, shown by --help and in the README."""

from enum import IntEnum


class Exit(IntEnum):
    """What `memfs` leaves in $?."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOT_RUNNING = 3
    NOT_FOUND = 4
    REFUSED = 5
    CONFLICT = 9
    NO_SPACE = 28  # ENOSPC


MEANING = {
    Exit.DONE: "done",
    Exit.ERROR: "error; also: a check found something wrong, or you answered no",
    Exit.USAGE: "wrong usage, or --yes is needed; nothing was done",
    Exit.NOT_RUNNING: "the daemon is not running, or is stopping",
    Exit.NOT_FOUND: "not found",
    Exit.REFUSED: "refused: the request or the text breaks a rule",
    Exit.CONFLICT: "conflict: path taken, note changed since, name not unique, a state forbids it",
    Exit.NO_SPACE: "no space left",
}

_OF_STATUS = {404: Exit.NOT_FOUND, 409: Exit.CONFLICT, 503: Exit.NOT_RUNNING, 507: Exit.NO_SPACE}
_REFUSED = (400, 401, 403, 413)


def of_status(status: int) -> Exit:
    """Return the exit code for an error that the API answers with *status*."""
    return Exit.REFUSED if status in _REFUSED else _OF_STATUS.get(status, Exit.ERROR)


def table() -> str:
    """Return the table as lines of --help."""
    return "\n".join(f"  {code.value:<2}  {meaning}" for code, meaning in MEANING.items())
