"""/v1/memory_stores/{id}/memories: the notes of a store."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Concatenate, ParamSpec

from fastapi import APIRouter, Query, Request, Response

from daemon.http import pages, wire
from daemon.http.door import Manages, Reads, Writes, scope
from daemon.http.stores import check_live
from memfs.engine import notes, stores, tree
from memfs.engine import path as paths
from memfs.engine.service import Txn
from memfs.errors import Invalid, NotFound
from memfs.types import Caller, NodeInfo, NotePath, Page, Sha256, Time

P = ParamSpec("P")

router = APIRouter(
    prefix="/v1/memory_stores/{memory_store_id}/memories",
    tags=["memories"],
    dependencies=[scope("stores")],
)

Row = wire.Memory | wire.ArchivedMemory | wire.MemoryPrefix


@router.post("", response_model=wire.Memory, openapi_extra=wire.takes(wire.CreateMemory))
async def create(
    door: Writes, request: Request, memory_store_id: str, view: wire.View = "basic"
) -> Response:
    """Make a note; never overwrites."""
    door.service.view(check_live, memory_store_id)
    body = await wire.decode(request, wire.CreateMemory)
    path = paths.parse(body.path)
    text = await door.service.screen(body.content.encode())
    rule = shown(notes.create, memory_store_id, view)
    return wire.reply(await door.commit(rule, memory_store_id, path, text))


@router.get("", response_model=wire.Page[Row])
async def list_memories(
    door: Reads,
    memory_store_id: str,
    path_prefix: str = "/",
    path: str | None = None,
    page: str | None = None,
    depth: Annotated[int, Query(ge=0, le=1)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    view: wire.View = "basic",
    archived: bool = False,
) -> Response:
    """List notes in path order; with depth 1, deeper ones as their folder.

    path (ours): only the note at exactly that path. archived (ours): the notes that were put away.
    """
    prefix = paths.parse_prefix(path_prefix)
    exact = None if path is None else paths.parse(path)
    listing = f"memories {memory_store_id} {archived} {depth} {exact!r} {prefix!r}"
    after = door.cursors.open(page, listing)
    seal = partial(door.cursors.seal, listing=listing)

    def read(txn: Txn) -> bytes:
        def rows(most: int) -> Page[tuple[NotePath, NodeInfo]]:
            if exact is not None:
                return Page(_at(txn, memory_store_id, exact), None)
            if archived:
                return notes.archived_page(txn, memory_store_id, most, after)
            return notes.list_page(txn, memory_store_id, prefix, depth, most, after)

        def shape(found: tuple[NotePath, NodeInfo]) -> Row:
            return _row(txn, memory_store_id, *found, view)

        return pages.encode(wire.Page[Row], rows, shape, seal, limit, view)

    return wire.reply(await door.scan(read))


@router.get("/{memory_id}", response_model=wire.Memory | wire.ArchivedMemory)
async def retrieve(
    door: Reads, memory_store_id: str, memory_id: str, view: wire.View = "full"
) -> Response:
    """Return one note, archived or not."""

    def read(txn: Txn) -> wire.Memory:
        return _note(txn, memory_store_id, notes.get(txn, memory_store_id, memory_id), view)

    return wire.reply(door.service.view(read))


@router.post(
    "/{memory_id}", response_model=wire.Memory, openapi_extra=wire.takes(wire.UpdateMemory)
)
async def update(
    door: Writes,
    request: Request,
    memory_store_id: str,
    memory_id: str,
    view: wire.View = "basic",
) -> Response:
    """Give a note a new text, a new path or both, as one version.

    Already as asked: unchanged, even if the precondition is stale, so that retries are safe.
    """
    door.service.view(notes.get, memory_store_id, memory_id)
    door.service.view(check_live, memory_store_id)
    body = await wire.decode(request, wire.UpdateMemory)
    if body.content is None and body.path is None:
        raise Invalid("content, path: send at least one of them")
    path = None if body.path is None else paths.parse(body.path)
    text = None if body.content is None else await door.service.screen(body.content.encode())
    expected: Sha256 | None = None
    if body.precondition is not None:
        sent = body.precondition.content_sha256
        expected = wire.parse_sha256("precondition.content_sha256", sent)
    rule = shown(notes.update, memory_store_id, view)
    return wire.reply(await door.commit(rule, memory_store_id, memory_id, text, path, expected))


@router.delete("/{memory_id}", response_model=wire.Gone)
async def delete(
    door: Writes,
    memory_store_id: str,
    memory_id: str,
    expected_content_sha256: wire.Digest | None = None,
) -> Response:
    """End a note; its versions stay."""
    expected: Sha256 | None = None
    if expected_content_sha256 is not None:
        door.service.view(notes.get, memory_store_id, memory_id)
        expected = wire.parse_sha256("expected_content_sha256", expected_content_sha256)
    await door.commit(notes.delete, memory_store_id, memory_id, expected)
    return wire.reply(wire.Gone(type="memory_deleted", id=memory_id))


@router.post(
    "/{memory_id}/archive",
    response_model=wire.ArchivedMemory,
    openapi_extra=wire.takes(wire.ArchiveMemory),
)
async def archive(door: Writes, request: Request, memory_store_id: str, memory_id: str) -> Response:
    """Put a note away: out of the tree, kept with its versions (ours)."""
    door.service.view(notes.get, memory_store_id, memory_id)
    door.service.view(check_live, memory_store_id)
    body = await wire.decode(request, wire.ArchiveMemory)
    rule = shown(notes.archive, memory_store_id, "basic")
    return wire.reply(await door.commit(rule, memory_store_id, memory_id, body.reason))


@router.post("/{memory_id}/unarchive", response_model=wire.Memory)
async def unarchive(door: Writes, memory_store_id: str, memory_id: str) -> Response:
    """Bring an archived note back to its path (ours)."""
    rule = shown(notes.unarchive, memory_store_id, "basic")
    return wire.reply(await door.commit(rule, memory_store_id, memory_id))


@router.post("/{memory_id}/purge", response_model=wire.Gone)
async def purge(door: Manages, memory_store_id: str, memory_id: str) -> Response:
    """Remove a note, living or deleted, with everything that is kept of it (ours)."""
    await door.commit(notes.purge, memory_store_id, memory_id)
    return wire.reply(wire.Gone(type="memory_purged", id=memory_id))


def shown(
    rule: Callable[Concatenate[Txn, Caller, Time, P], NodeInfo], store_id: str, view: wire.View
) -> Callable[Concatenate[Txn, Caller, Time, P], wire.Memory]:
    """Return *rule* with its note as a shape, read in the rule's own transaction."""

    def run(txn: Txn, caller: Caller, now: Time, *args: P.args, **kwargs: P.kwargs) -> wire.Memory:
        return _note(txn, store_id, rule(txn, caller, now, *args, **kwargs), view)

    return run


def _note(txn: Txn, store_id: str, info: NodeInfo, view: wire.View) -> wire.Memory:
    text = notes.text_of(txn, info) if view == "full" else None
    return wire.memory(store_id, tree.path_of(txn, info), info, notes.note_of(info), text)


def _row(txn: Txn, store_id: str, path: NotePath, info: NodeInfo, view: wire.View) -> Row:
    if info.note is None:
        return wire.MemoryPrefix(path=path)
    text = notes.text_of(txn, info) if view == "full" else None
    return wire.memory(store_id, path, info, info.note, text)


def _at(txn: Txn, store_id: str, path: NotePath) -> list[tuple[NotePath, NodeInfo]]:
    stores.get(txn, store_id)
    try:
        return [(path, notes.at(txn, store_id, path))]
    except NotFound:
        return []
