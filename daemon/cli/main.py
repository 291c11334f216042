"""The `memfs` command and its table of contents."""

import click

from daemon.cli import (
    daemon,
    history,
    keys,
    notes,
    refused,
    secrets,
    settings,
    stores,
    tasks,
    transfer,
    watch,
)
from daemon.cli.exits import table
from daemon.cli.session import Root

_EPILOG = f"""\b
Exit codes:
{table()}

\b
Completion, in your shell's start file:
  bash   eval "$(_MEMFS_COMPLETE=bash_source memfs)"
  zsh    eval "$(_MEMFS_COMPLETE=zsh_source memfs)"
  fish   _MEMFS_COMPLETE=fish_source memfs | source
"""


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("memfs")
        except PackageNotFoundError:  # run from a checkout
            number = "unknown"
        click.echo(f"memfs {number}")
        context.exit()


@click.group(
    "memfs",
    cls=Root,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version.",
)
def cli() -> None:
    """An agent's memory as a mounted, versioned folder.

    STORE is a memory store's name or id; a PATH is that of a note in it, with or without the slash
    in front, or the note's id. A VERSION is a number or an id from `memfs log`. --json and
    --workspace may stand anywhere.
    """


for command in (
    daemon.serve,
    daemon.status,
    daemon.doctor,
    settings.config,
    daemon.check,
    daemon.compact,
    stores.store_group,
    tasks.task_group,
    tasks.worker_group,
    notes.ls,
    notes.cat,
    notes.put,
    notes.rm,
    notes.mv,
    notes.note_group,
    history.log,
    history.diff,
    history.restore,
    history.redact,
    refused.refused_group,
    watch.watch,
    transfer.export,
    transfer.import_,
    secrets.secret_group,
    keys.key_group,
):
    cli.add_command(command)


def main() -> None:
    """Run `memfs` with this process's arguments."""
    cli(prog_name="memfs")
