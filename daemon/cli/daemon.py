"""`memfs serve`, `status`, `doctor`, `check`, `compact`: the daemon and its data."""

import dataclasses
import os
import re
import shutil
from pathlib import Path

import click

from daemon.cli import output
from daemon.cli.client import Json
from daemon.cli.exits import Exit
from daemon.cli.session import Command, Failure, session
from memfs.errors import Invalid, MemfsError

_LITTLE_SPACE_BYTES = 256 * 2**20
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@click.command("serve", cls=Command)
@click.option(
    "--keep-versions",
    metavar="TIME",
    help="Keep versions so long (30d, 12h); the two newest of a note always. [default: all]",
)
@click.option("--map-size", metavar="SIZE", help="The most the data may take (8G). [default: 64G]")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
)
@click.option(
    "--scratch",
    metavar="PATTERN",
    multiple=True,
    help="More file names that are temporary and make no version; repeat for more.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve HTTP there, too, for those with a key (`memfs key create`). [default: the "
    "workspace's unix socket only]",
)
def serve(
    keep_versions: str | None,
    map_size: str | None,
    log_level: str,
    scratch: tuple[str, ...],
    listen: str | None,
) -> None:
    """Serve the workspace until SIGTERM or Ctrl-C. The folder is made if it is missing."""
    from daemon import config, run

    given = session().workspace or os.environ.get("MEMFS_WORKSPACE")
    if given:
        Path(given).expanduser().mkdir(parents=True, exist_ok=True)
    try:
        chosen = dataclasses.replace(
            session().config,
            keep_versions_ns=None
            if keep_versions is None
            else config.parse_duration(keep_versions),
            map_size_bytes=config.default_map_size_bytes() if map_size is None else _size(map_size),
            log_level=log_level,
            scratch_patterns=scratch,
            listen=None if listen is None else config.parse_listen(listen),
        )
    except Invalid as error:
        raise click.UsageError(str(error)) from None
    run.serve(chosen)


@click.command(
    "status", cls=Command, short_help="Show how the daemon is; exit 0 only when all is alive."
)
def status() -> None:
    """Show how the daemon is; exit 0 only when it answers and every mount is alive."""
    found = session().client.get("status")
    output.emit(found, lambda: _status_lines(found))
    dead = [mount["path"] for mount in found.get("mounts", ()) if not mount["alive"]]
    if dead:
        raise Failure(Exit.ERROR, f"dead mounts: {', '.join(dead)}; restart the daemon")


@click.command(
    "doctor", cls=Command, short_help="Look for what is wrong with daemon, mounts and machine."
)
def doctor() -> None:
    """Look for what is wrong with the daemon, its mounts and this machine; exit 0 if nothing is."""
    findings: list[str] = []
    try:
        found = session().client.get("status")
    except Failure as failure:
        findings.append(failure.message)
        if failure.exit_code == Exit.NOT_RUNNING:
            findings += _left_mounts()
    else:
        findings += [
            f"the mount at {mount['path']} is dead: restart the daemon"
            for mount in found.get("mounts", ())
            if not mount["alive"]
        ]
        findings += found.get("problems", ())
    findings += _machine()
    output.emit({"type": "doctor", "findings": findings}, lambda: findings or ["nothing is wrong"])
    if findings:
        raise click.exceptions.Exit(Exit.ERROR)


@click.command(
    "check", cls=Command, short_help="Verify every record of the data; the daemon must be stopped."
)
def check() -> None:
    """Verify every record and invariant of the data, with the daemon stopped."""
    from daemon import offline

    problems = offline.check(session().config)
    output.emit({"type": "check", "problems": problems}, lambda: problems or ["all is well"])
    if problems:
        raise click.exceptions.Exit(Exit.ERROR)


@click.command(
    "compact",
    cls=Command,
    short_help="Drop what was deleted and redacted; the daemon must be stopped.",
)
def compact() -> None:
    """Rewrite the data file without what was deleted and redacted, with the daemon stopped."""
    from daemon import offline

    before, after = offline.compact(session().config)
    answer = {"type": "compact", "before_bytes": before, "after_bytes": after}
    output.emit(answer, lambda: [f"{before} -> {after} bytes"])


def _status_lines(found: Json) -> list[str]:
    rest = {name: value for name, value in found.items() if not isinstance(value, list | dict)}
    lines = list(output.fields(rest, *(name for name in rest if name != "type")))
    lines += [
        f"{'alive' if mount['alive'] else 'DEAD':<5}  {mount['path']}"
        for mount in found.get("mounts", ())
    ]
    return [*lines, *found.get("problems", ())]


def _left_mounts() -> list[str]:
    """Return what a daemon that is gone left mounted, a sentence with its remedy each."""
    try:
        from daemon import mount

        left = mount.memfs_mounts_below(session().config.workspace)
    except (ImportError, MemfsError):  # both are findings of their own
        return []
    return [
        f"{each.path} is mounted and nothing serves it: `memfs serve` clears it" for each in left
    ]


def _machine() -> list[str]:
    """Return what this machine lacks, a sentence with its remedy each."""
    findings: list[str] = []
    try:
        from daemon import mount
    except ImportError as error:
        findings.append(f"the mount cannot work ({error}): install libfuse3 and pyfuse3")
    else:
        findings += mount.check_machine()
    free = shutil.disk_usage(session().config.workspace).free
    if free < _LITTLE_SPACE_BYTES:
        findings.append(
            f"the workspace's disk has {free // 2**20} MiB left: free some before saves fail"
        )
    return findings


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a size: write a number and K, M, G or T, such as 8G",
            param_hint="--map-size",
        )
    return int(match[1]) * _UNITS[match[2]]
