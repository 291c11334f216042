"""/v1/memory_stores."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from daemon.http import wire
from daemon.http.door import Manages, Person, Reads, TheDoor, scope
from memfs.engine import access, stores
from memfs.engine.service import Txn

router = APIRouter(
    prefix="/v1/memory_stores", tags=["memory stores"], dependencies=[scope("stores")]
)


@router.post("", response_model=wire.MemoryStore, openapi_extra=wire.takes(wire.CreateStore))
async def create(door: Person, request: Request) -> Response:
    """Make an empty store. Names need not be unique."""
    body = await wire.decode(request, wire.CreateStore)
    made = await door.commit(stores.create, body.name, body.description or "", body.metadata)
    return wire.reply(wire.memory_store(made))


@router.get("", response_model=wire.Page[wire.MemoryStore])
async def list_stores(
    door: TheDoor,
    since: Annotated[str | None, Query(alias="created_at[gte]")] = None,
    until: Annotated[str | None, Query(alias="created_at[lte]")] = None,
    name: str | None = None,
    page: str | None = None,
    include_archived: bool = False,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """List stores, newest first. name (ours): only those called exactly that."""
    first = wire.parse_time("created_at[gte]", since)
    last = wire.parse_time("created_at[lte]", until, end=True)
    listing = f"stores {include_archived} {first} {last} {name!r}"
    after = door.cursors.open(page, listing)

    def read(txn: Txn) -> bytes:
        found = stores.list_page(
            txn,
            only=access.reach(txn, door.caller),
            include_archived=include_archived,
            since=first,
            until=last,
            name=name,
            limit=limit,
            after=after,
        )
        rows = [wire.memory_store(store) for store in found.items]
        return wire.encode(wire.Page(data=rows, next_page=door.cursors.seal(found.after, listing)))

    return wire.reply(await door.scan(read))


@router.get("/{memory_store_id}", response_model=wire.MemoryStore)
async def retrieve(door: Reads, memory_store_id: str) -> Response:
    """Return one store, archived or not."""
    return wire.reply(wire.memory_store(door.service.view(stores.get, memory_store_id)))


@router.post(
    "/{memory_store_id}",
    response_model=wire.MemoryStore,
    openapi_extra=wire.takes(wire.UpdateStore),
)
async def update(door: Manages, request: Request, memory_store_id: str) -> Response:
    """Change name, description or metadata (a patch: null removes a key)."""
    door.service.view(check_live, memory_store_id)
    body = await wire.decode(request, wire.UpdateStore)
    changed = await door.commit(
        stores.update, memory_store_id, body.name, body.description, body.metadata
    )
    return wire.reply(wire.memory_store(changed))


@router.post("/{memory_store_id}/archive", response_model=wire.MemoryStore)
async def archive(door: Manages, memory_store_id: str) -> Response:
    """Make the store read-only for good. Again: unchanged."""
    return wire.reply(wire.memory_store(await door.commit(stores.archive, memory_store_id)))


@router.delete("/{memory_store_id}", response_model=wire.Gone)
async def delete(door: Manages, memory_store_id: str) -> Response:
    """Remove the store with its notes and versions."""
    gone = await door.commit(stores.delete, memory_store_id)
    return wire.reply(wire.Gone(type="memory_store_deleted", id=gone.id))


def check_live(txn: Txn, store_id: str) -> None:
    """Check what comes before a request's shape: the store exists and is not archived.

    Raises: NotFound, StoreArchived.
    """
    stores.check_live(stores.get(txn, store_id))
