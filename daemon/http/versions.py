"""/v1/memory_stores/{id}/memory_versions: what each change did."""

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from daemon.http import pages, wire
from daemon.http.door import Manages, Reads, Writes, scope
from daemon.http.memories import shown
from memfs.engine import notes, versions
from memfs.engine import path as paths
from memfs.engine.service import Txn
from memfs.types import Actor, Operation, Page, Version

router = APIRouter(
    prefix="/v1/memory_stores/{memory_store_id}/memory_versions",
    tags=["memory versions"],
    dependencies=[scope("stores")],
)


@router.get("", response_model=wire.Page[wire.MemoryVersion])
async def list_versions(
    door: Reads,
    memory_store_id: str,
    since: Annotated[str | None, Query(alias="created_at[gte]")] = None,
    until: Annotated[str | None, Query(alias="created_at[lte]")] = None,
    memory_id: str | None = None,
    operation: Literal["created", "modified", "deleted"] | None = None,
    session_id: str | None = None,
    task_id: str | None = None,
    api_key_id: str | None = None,
    service_account_id: str | None = None,
    path: str | None = None,
    page: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    view: wire.View = "basic",
) -> Response:
    """List versions, newest first. task_id and session_id are the same.

    path (ours): only those of a note that was at exactly that path then.
    """
    first = wire.parse_time("created_at[gte]", since)
    last = wire.parse_time("created_at[lte]", until, end=True)
    what = None if operation is None else Operation[operation.upper()]
    asked = (
        ("session_actor", session_id),
        ("session_actor", task_id),
        ("api_actor", api_key_id),
        ("service_account_actor", service_account_id),
    )
    authors = list({Actor(kind, one): None for kind, one in asked if one is not None})
    where = None if path is None else paths.parse(path)
    listing = f"versions {memory_store_id} {first} {last} {memory_id!r} {what} {authors} {where!r}"
    after = door.cursors.open(page, listing)
    seal = partial(door.cursors.seal, listing=listing)

    def read(txn: Txn) -> bytes:
        def rows(most: int) -> Page[Version]:
            if len(authors) > 1:  # no version has both
                return Page([], None)
            return versions.list_page(
                txn,
                memory_store_id,
                note_id=memory_id,
                operation=what,
                actor=authors[0] if authors else None,
                path=where,
                since=first,
                until=last,
                limit=most,
                after=after,
            )

        def shape(version: Version) -> wire.MemoryVersion:
            return _version(txn, memory_store_id, version, view)

        return pages.encode(wire.Page[wire.MemoryVersion], rows, shape, seal, limit, view)

    return wire.reply(await door.scan(read))


@router.get("/{memory_version_id}", response_model=wire.MemoryVersion)
async def retrieve(
    door: Reads, memory_store_id: str, memory_version_id: str, view: wire.View = "full"
) -> Response:
    """Return one version; a redacted one has nulls."""

    def read(txn: Txn) -> wire.MemoryVersion:
        version = versions.get(txn, memory_store_id, memory_version_id)
        return _version(txn, memory_store_id, version, view)

    return wire.reply(door.service.view(read))


@router.post("/{memory_version_id}/redact", response_model=wire.MemoryVersion)
async def redact(door: Manages, memory_store_id: str, memory_version_id: str) -> Response:
    """Empty a version for good; who and when stay. Again: unchanged."""
    emptied = await door.commit(versions.redact, memory_store_id, memory_version_id)
    return wire.reply(wire.memory_version(memory_store_id, emptied, None))


@router.post("/{memory_version_id}/restore", response_model=wire.Memory)
async def restore(
    door: Writes, memory_store_id: str, memory_version_id: str, view: wire.View = "basic"
) -> Response:
    """Write a version's text as a new version and return the note (ours)."""
    rule = shown(notes.restore, memory_store_id, view)
    scanner = door.service.scanner
    return wire.reply(await door.commit(rule, memory_store_id, memory_version_id, scanner))


def _version(txn: Txn, store_id: str, version: Version, view: wire.View) -> wire.MemoryVersion:
    text = versions.text_of(txn, version) if view == "full" else None
    return wire.memory_version(store_id, version, text)
