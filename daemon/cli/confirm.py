"""Asking before what cannot be undone."""

import sys

import click

from daemon.cli.exits import Exit
from daemon.cli.session import Failure

yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")


def ask_before(deed: str, *, yes: bool) -> None:
    """Return if *deed*, a command of a few words, is wanted; without a terminal only --yes says so.

    Raises: Failure.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(
            Exit.USAGE,
            f"this would {deed}, which cannot be undone, and there is no terminal to ask on: add "
            "--yes if you mean it",
        )
    # on stderr: stdout is for the answer
    if not click.confirm(f"{deed[:1].upper()}{deed[1:]}? It cannot be undone.", err=True):
        raise Failure(Exit.ERROR, "nothing was done: you did not say yes")
