"""Stores as tars: /v1/memory_stores/{id}/export and the imports (SEMANTICS: Export and import)."""

import io
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypeVar

import trio
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from daemon import tar
from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.door import Door, Person, Reads, Writes, scope
from daemon.http.imports import Imports
from daemon.http.stores import check_live
from daemon.http.stream import More, Stream
from memfs import limits
from memfs.engine import path as paths
from memfs.engine import transfer
from memfs.engine.path import RESERVED
from memfs.engine.secrets import Scanner, screen
from memfs.engine.service import Txn
from memfs.errors import Invalid, LimitReached, MemfsError
from memfs.types import NodeInfo, NoteInfo, NotePath, Sha256, Version

T = TypeVar("T")

router = APIRouter(
    prefix="/v1/memory_stores", tags=["export and import (ours)"], dependencies=[scope("stores")]
)

MEDIA_TYPE = "application/x-tar"
MANIFEST = f"{RESERVED}/manifest.json"
IMPORT_BYTES = 2**32
_MANIFEST_BYTES = 2**25  # of 10,000 notes with the longest paths: half of it
_PIECE_BYTES = 2**20  # that go to a thread together
_PART_BYTES = 2**18  # of an export, made before the client takes them
_HEADERS_BYTES = 2**11  # about; of a file in a tar
_VERSIONS = 128  # rows of one file

_TAKES_TAR = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class StoreEntry(BaseModel):
    """The store of an export."""

    name: str
    description: str = ""
    metadata: dict[str, str] = {}


class NoteEntry(BaseModel):
    """A note of an export."""

    id: str
    path: str
    sha256: str
    size_bytes: int
    mode: int
    mtime_ns: int
    created_at: str
    updated_at: str
    memory_version_id: str


class Manifest(BaseModel):
    """What an export holds; the last file of its tar."""

    type: Literal["memfs_export"] = "memfs_export"
    format: Literal[1] = 1
    store: StoreEntry
    seq: int
    notes: list[NoteEntry]


class Imported(BaseModel):
    """What an import did."""

    type: Literal["import"] = "import"
    memory_store_id: str
    memory_store_name: str
    created: int
    replaced: int
    unchanged: int


@router.get(
    "/{memory_store_id}/export",
    response_class=Response,
    responses={
        200: {
            "description": "A tar.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def export(door: Reads, memory_store_id: str, versions: bool = False) -> Response:
    """Stream a store as a tar; with versions, the texts of its history too (ours)."""
    found = await door.scan(transfer.snapshot, memory_store_id)
    size = sum(note.size_bytes for _, _, note in _notes(found.notes))
    headers = {
        "content-disposition": f'attachment; filename="{memory_store_id}.tar"',
        "memfs-text-bytes": str(size),  # without those of older versions: for progress
    }
    return Stream(partial(_export, door, found, versions), MEDIA_TYPE, headers)


@router.post("/import", response_model=Imported, openapi_extra=_TAKES_TAR)
async def import_new(door: Person, request: Request, name: str | None = None) -> Response:
    """Make a store of a tar. name: the manifest's if it is left out (ours)."""
    async with _received(door, request) as got:
        manifest = got.manifest
        name = name or (manifest and manifest.store.name)
        if not name:
            raise Invalid("name: the tar has no manifest that names the store; send a name")
        done = await door.commit(
            transfer.import_new,
            name,
            manifest.store.description if manifest else "",
            manifest.store.metadata if manifest else None,
            got.notes,
            got.text,
        )
    return _reply(done)


@router.post("/{memory_store_id}/import", response_model=Imported, openapi_extra=_TAKES_TAR)
async def import_into(
    door: Writes, request: Request, memory_store_id: str, replace: bool = False
) -> Response:
    """Bring a tar's notes into a store, all or none (ours)."""
    door.service.view(check_live, memory_store_id)
    async with _received(door, request) as got:
        done = await door.commit(
            transfer.import_into, memory_store_id, got.notes, got.text, replace=replace
        )
    return _reply(done)


def _reply(done: transfer.Outcome) -> Response:
    return wire.reply(
        Imported(
            memory_store_id=done.store.id,
            memory_store_name=done.store.name,
            created=done.created,
            replaced=done.replaced,
            unchanged=done.unchanged,
        )
    )


# Out --------------------------------------------------------------------------------------------


async def _export(door: Door, found: transfer.Snapshot, with_texts: bool, more: More) -> None:
    """Write a tar. No transaction lasts longer than a page: who reads slowly holds nothing."""
    written: list[NoteEntry] = []
    for page in _parts(_notes(found.notes), lambda one: one[2].size_bytes):
        texts = await door.scan(transfer.texts, [note.sha256 for _, _, note in page])
        files: list[bytes] = []
        for (path, info, note), text in zip(page, texts, strict=True):
            if text is not None:
                files.append(tar.pack(path[1:], text, info.mode, info.mtime))
                written.append(_note_entry(path, info, note))
        await more(b"".join(files))
    at, number = found.seq, 0
    while at is not None:
        page, at = await door.scan(transfer.versions_until, found.store, at, _VERSIONS)
        rows = [wire.encode(wire.memory_version(found.store.id, one, None)) for one in page]
        await more(tar.pack(f"{RESERVED}/versions/{number:06}.jsonl", b"\n".join([*rows, b""])))
        number += 1
        for part in _parts(page if with_texts else (), lambda one: one.size_bytes or 0):
            await more(await door.scan(_version_texts, part))
    store = found.store
    about = StoreEntry(name=store.name, description=store.description, metadata=store.metadata)
    manifest = Manifest(store=about, seq=found.seq, notes=written)
    last = tar.pack(MANIFEST, wire.encode(manifest)) + tar.END
    for start in range(0, len(last), _PART_BYTES):
        await more(last[start : start + _PART_BYTES])


def _parts(found: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield what has room in a part of the answer together; at least one each."""
    part: list[T] = []
    size = 0
    for one in found:
        more = size_bytes(one) + _HEADERS_BYTES
        if part and size + more > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += more
    if part:
        yield part


def _notes(
    found: Sequence[tuple[NotePath, NodeInfo]],
) -> Iterator[tuple[NotePath, NodeInfo, NoteInfo]]:
    for path, info in found:
        if info.note is not None:
            yield path, info, info.note


def _version_texts(txn: Txn, page: Sequence[Version]) -> bytes:
    wanted = [version for version in page if version.sha256 is not None]
    found = transfer.texts(txn, [version.sha256 or Sha256("") for version in wanted])
    return b"".join(
        tar.pack(f"{RESERVED}/texts/{version.id}", text, mtime=version.created_at)
        for version, text in zip(wanted, found, strict=True)
        if text is not None
    )


def _note_entry(path: NotePath, info: NodeInfo, note: NoteInfo) -> NoteEntry:
    return NoteEntry(
        id=note.id,
        path=path,
        sha256=note.sha256,
        size_bytes=note.size_bytes,
        mode=info.mode,
        mtime_ns=info.mtime,
        created_at=wire.stamp(note.created_at),
        updated_at=wire.stamp(note.updated_at),
        memory_version_id=note.version_id,
    )


# In ---------------------------------------------------------------------------------------------


class _Intake:
    """Reads a tar in parts, in threads: checks every entry and keeps the texts in a file."""

    def __init__(self, scanner: Scanner, spool: io.FileIO) -> None:
        self.notes: list[transfer.Incoming] = []
        self.manifest: Manifest | None = None
        self._scanner = scanner
        self._spool = spool
        self._places: dict[NotePath, tuple[int, int]] = {}  # offset and size in the spool
        self._end = 0
        self._reader = tar.Reader(self._most)

    def feed(self, data: bytes) -> None:
        """Take a part.

        Raises: Invalid and its kin, naming the entry.
        """
        for member, content in self._reader.feed(data):
            name = _plain(member.name)
            if name == MANIFEST:
                self.manifest = _manifest(content)
            elif member.is_folder:
                if name not in ("", RESERVED) and not _is_ours(name):
                    _path(name)
            else:
                self._keep(_path(name), member, content)

    def close(self) -> None:
        """Check the whole.

        Raises: Invalid.
        """
        self._reader.close()
        if self.manifest is None:
            return
        said = {entry.path: entry.sha256 for entry in self.manifest.notes}
        if len(said) != len(self.notes) or any(
            said.get(one.path) != one.sha256 for one in self.notes
        ):
            raise Invalid(f"{MANIFEST} does not agree with the files: leave .memfs out of the tar")

    def text(self, one: transfer.Incoming) -> bytes:
        """Return the text of a note."""
        offset, size = self._places[one.path]
        return os.pread(self._spool.fileno(), size, offset)

    def _most(self, member: tar.Member) -> int | None:
        name = _plain(member.name)
        if name == MANIFEST:
            if self.manifest is not None:
                raise Invalid(f"{MANIFEST} is there twice: leave one out")
            return _MANIFEST_BYTES
        if _is_ours(name):
            return None
        if _path(name) in self._places:
            raise Invalid(f"{_shown(name)} is there twice: leave one out")
        if len(self._places) == limits.NOTES_PER_STORE:
            raise LimitReached(f"the tar has more than {limits.NOTES_PER_STORE} notes: split it")
        return limits.NOTE_BYTES

    def _keep(self, path: NotePath, member: tar.Member, content: bytes) -> None:
        try:
            text = screen(content, self._scanner)
        except MemfsError as error:
            raise type(error)(f"{_shown(path)}: {error}") from None
        self._spool.write(text.data)
        self._places[path] = self._end, text.size_bytes
        self._end += text.size_bytes
        self.notes.append(transfer.Incoming(path, text.sha256, member.mode, member.mtime))


@asynccontextmanager
async def _received(door: Door, request: Request) -> AsyncGenerator[_Intake]:
    """Take the tar in a request's body, checked; its texts are in a file without a name."""
    bounds: Bounds = request.state.bounds
    imports: Imports = request.app.state.imports
    async with imports.place(door.caller, bounds.body_s):
        with _unnamed(door.service.env.path) as spool:
            intake = _Intake(door.service.scanner, spool)
            with trio.move_on_after(bounds.import_s) as scope:
                await _Body(door, request, bounds, imports.threads).into(intake)
            if scope.cancelled_caught:
                raise wire.TooSlow(
                    f"the tar was not whole within {bounds.import_s:g} s: split it, or send it "
                    "from nearer"
                )
            yield intake


class _Body:
    """The body of a request that imports."""

    def __init__(
        self, door: Door, request: Request, bounds: Bounds, threads: trio.CapacityLimiter
    ) -> None:
        self._door = door
        self._request = request
        self._bounds = bounds
        self._threads = threads

    async def into(self, intake: _Intake) -> None:
        """Give all of it to *intake*, in a thread."""
        in_thread = partial(trio.to_thread.run_sync, limiter=self._threads)
        more, total = True, 0
        while more:
            piece, more = await self._piece()
            total += len(piece)
            if total > IMPORT_BYTES:
                raise wire.TooLarge(f"a tar may have at most {IMPORT_BYTES} bytes: split it")
            self._door.service.require_space()
            await in_thread(partial(intake.feed, piece))
        await in_thread(intake.close)

    async def _piece(self) -> tuple[bytes, bool]:
        """Return a large part of the body, and whether there is more."""
        parts: list[bytes] = []
        size, more = 0, True
        with trio.move_on_after(self._bounds.body_s) as scope:
            while more and size < _PIECE_BYTES:
                message = await self._request.receive()
                if message["type"] == "http.disconnect":
                    raise Invalid("the client left before the tar was whole")
                more = message.get("more_body", False)
                parts.append(message.get("body", b""))
                size += len(parts[-1])
        if scope.cancelled_caught:
            raise wire.TooSlow(f"a mebibyte of the tar did not come in {self._bounds.body_s:g} s")
        return b"".join(parts), more


def _unnamed(folder: os.PathLike[str]) -> io.FileIO:
    """Return a file that is gone when it is closed, however the daemon ends."""
    descriptor, name = tempfile.mkstemp(prefix="import-", dir=folder)
    os.unlink(name)
    return io.FileIO(descriptor, "w+")


def _plain(name: str) -> str:
    """Return a name without what tar(1) puts around it."""
    while name.startswith("./"):
        name = name[2:]
    return name.rstrip("/") if name != "." else ""


def _is_ours(name: str) -> bool:
    """Whether an entry is not a note but about them."""
    return name.startswith(f"{RESERVED}/")


def _path(name: str) -> NotePath:
    """Return the path of an entry.

    Raises: InvalidPath.
    """
    if name.startswith("/"):
        raise Invalid(f"{_shown(name)} is absolute: pack the notes from inside their folder")
    return paths.parse(f"/{name}")


def _manifest(content: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        found = wire.invalid(error.errors(include_input=False, include_url=False))
        raise Invalid(f"{MANIFEST}: {found}") from None


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 200 else name[:199] + "…")
