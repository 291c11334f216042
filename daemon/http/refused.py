"""/v1/memory_stores/{id}/refused_texts: what could not be saved, and what becomes of it (ours)."""

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from daemon.http import pages, wire
from daemon.http.door import Manages, Reads, Writes, scope
from daemon.http.memories import shown
from daemon.http.stores import check_live
from memfs.engine import path as paths
from memfs.engine import refused
from memfs.engine.service import Txn
from memfs.types import Page, Refused

router = APIRouter(
    prefix="/v1/memory_stores/{memory_store_id}/refused_texts",
    tags=["refused texts (ours)"],
    dependencies=[scope("stores")],
)


class RefusedText(BaseModel):
    """A text that a mount accepted and could not save; content is null in the basic view."""

    type: Literal["refused_text"] = "refused_text"
    number: int
    memory_store_id: str
    path: str  # where it was meant to be
    reason: str
    content: str | None
    content_sha256: str
    content_size_bytes: int
    base_sha256: str | None  # of the text that it started from
    head_sha256: str | None  # of the note's text when it was refused
    created_at: wire.Stamp
    created_by: wire.Actor


@router.get("", response_model=wire.Page[RefusedText])
async def list_refused(
    door: Reads,
    memory_store_id: str,
    page: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    view: wire.View = "basic",
) -> Response:
    """List a store's refused texts, newest first."""
    listing = f"refused {memory_store_id}"
    after = door.cursors.open(page, listing)
    seal = partial(door.cursors.seal, listing=listing)

    def read(txn: Txn) -> bytes:
        def rows(most: int) -> Page[Refused]:
            return refused.list_page(txn, memory_store_id, most, after)

        def shape(one: Refused) -> RefusedText:
            return _shape(txn, memory_store_id, one, view)

        return pages.encode(wire.Page[RefusedText], rows, shape, seal, limit, view)

    return wire.reply(await door.scan(read))


@router.get("/{number}", response_model=RefusedText)
async def retrieve(
    door: Reads, memory_store_id: str, number: int, view: wire.View = "full"
) -> Response:
    """Return one refused text."""

    def read(txn: Txn) -> RefusedText:
        return _shape(txn, memory_store_id, refused.get(txn, memory_store_id, number), view)

    return wire.reply(door.service.view(read))


@router.delete("/{number}", response_model=wire.Gone)
async def discard(door: Manages, memory_store_id: str, number: int) -> Response:
    """Remove a refused text for good."""
    await door.commit(refused.discard, memory_store_id, number)
    return wire.reply(wire.Gone(type="refused_text_deleted", id=str(number)))


@router.post(
    "/{number}/keep", response_model=wire.Memory, openapi_extra=wire.takes(wire.KeepRefused)
)
async def keep(
    door: Writes,
    request: Request,
    memory_store_id: str,
    number: int,
    view: wire.View = "basic",
) -> Response:
    """Make a refused text a new note at a free path and return the note."""
    door.service.view(refused.get, memory_store_id, number)
    door.service.view(check_live, memory_store_id)
    body = await wire.decode(request, wire.KeepRefused)
    path = paths.parse(body.path)
    rule = shown(refused.to_note, memory_store_id, view)
    made = await door.commit(rule, memory_store_id, number, path, door.service.scanner)
    return wire.reply(made)


def _shape(txn: Txn, store_id: str, found: Refused, view: wire.View) -> RefusedText:
    text = refused.text_of(txn, found.store, found.n).decode() if view == "full" else None
    return RefusedText(
        number=found.n,
        memory_store_id=store_id,
        path=found.path,
        reason=found.reason,
        content=text,
        content_sha256=found.sha256,
        content_size_bytes=found.size_bytes,
        base_sha256=found.base,
        head_sha256=found.head,
        created_at=wire.stamp(found.at),
        created_by=wire.actor(found.actor),
    )
