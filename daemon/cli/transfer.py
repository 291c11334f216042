"""`memfs export`, `memfs import`: a whole store as a file."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO

import click

from daemon.cli import output
from daemon.cli.client import Json
from daemon.cli.exits import Exit
from daemon.cli.session import Command, Failure, session
from daemon.cli.stores import note_twins

_PART_BYTES = 2**18


@click.command("export", cls=Command, short_help="Write a store as a tar of plain files.")
@click.argument("store")
@click.option("-o", "--output", "target", metavar="FILE", help="Write there. [default: stdout]")
@click.option("--versions", is_flag=True, help="The texts of older versions, too.")
def export(store: str, target: str | None, versions: bool) -> None:
    """Write a store's notes, and who changed them when, as a tar of plain files.

    FILE appears when it is whole.
    """
    if target is None and sys.stdout.isatty():
        raise click.UsageError("a tar is not for a terminal: name a file with -o, or redirect")
    client = session().client
    route = ("memory_stores", client.store_id(store), "export")
    written = 0
    with (
        client.download(*route, versions=versions) as (headers, parts),
        _target(target) as file,
        _progress("exporting", int(headers.get("memfs-text-bytes", 0))) as advance,
    ):
        for part in parts:
            file.write(part)
            written += len(part)
            advance(len(part))
    if target is not None:
        answer = {"type": "export", "file": target, "size_bytes": written}
        output.emit(answer, lambda: [f"{written} bytes -> {target}"])


@click.command(
    "import",
    cls=Command,
    short_help="Bring the notes of a tar into a new store or one that exists.",
)
@click.argument("file")
@click.option("--into", metavar="STORE", help="Into this store; all or nothing.")
@click.option("--name", help="Into a new store of this name. [default: the exported one's]")
@click.option("--replace", is_flag=True, help="With --into: a new version where a text differs.")
def import_(file: str, into: str | None, name: str | None, replace: bool) -> None:
    """Bring the notes of a tar (FILE, or - for stdin) into a new store, or into one that exists.

    Any tar of plain text files will do. Into an existing store nothing is overwritten: if a note
    is there with another text, nothing happens and the notes are named (exit code 9).
    """
    if into is not None and name is not None:
        raise click.UsageError("--into and --name exclude each other")
    if replace and into is None:
        raise click.UsageError("--replace needs --into: a new store has nothing to replace")
    client = session().client
    route = ("memory_stores", *(() if into is None else (client.store_id(into),)), "import")
    with (
        _source(file) as (source, size),
        _progress("importing", size) as advance,
    ):
        done = client.upload(
            *route, parts=_parts(source, advance), name=name, replace=replace or None
        )
    output.emit(done, lambda: [_summary(done)])
    if into is None:
        note_twins(client, done["memory_store_name"], done["memory_store_id"])


def _summary(done: Json) -> str:
    counts = [f"{done[word]} {word}" for word in ("created", "replaced", "unchanged")]
    return f"{done['memory_store_name']} ({done['memory_store_id']}): {', '.join(counts)}"


def _parts(source: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    while part := source.read(_PART_BYTES):
        yield part
        advance(len(part))


@contextlib.contextmanager
def _target(name: str | None) -> Generator[IO[bytes]]:
    """Give the file to write; a named one appears when it is whole."""
    if name is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise Failure(Exit.ERROR, f"{name} cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _source(name: str) -> Generator[tuple[IO[bytes], int]]:
    """Give the file to read and its size, 0 where that cannot be known."""
    if name == "-":
        yield sys.stdin.buffer, 0
        return
    try:
        with Path(name).open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Failure(Exit.NOT_FOUND, f"{name} cannot be read ({error.strerror})") from None


@contextlib.contextmanager
def _progress(label: str, length: int) -> Generator[Callable[[int], None]]:
    """Give what moves a bar on standard error, if that is a terminal and the length is known."""
    if length == 0 or not sys.stderr.isatty():
        yield lambda size: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        # what frames the texts was not foreseen: a bar that is full stays so
        yield lambda size: bar.update(min(size, length - bar.pos))
