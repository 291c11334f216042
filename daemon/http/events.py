"""/v1/events: the change log as server-sent events (SEMANTICS: Events)."""

import contextlib
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.door import Door, TheDoor, scope
from daemon.http.metrics import Metrics
from daemon.http.stream import More, Stream
from memfs import limits
from memfs.engine import events
from memfs.engine.service import Txn
from memfs.errors import Invalid, Unauthenticated
from memfs.types import Seq, StoreNo

router = APIRouter(prefix="/v1/events", tags=["events (ours)"], dependencies=[scope("events")])

_RETRY_MS = 1_000  # how long a browser's EventSource waits before it connects again

Kind = Literal[
    "note",
    "folder",
    "attr",
    "store",
    "task",
    "worker",
    "redact",
    "purge",
    "archive",
    "credential",
    "refused",
    "key",
]
Operation = Literal[
    "created", "modified", "deleted", "archived", "unarchived", "ended", "revoked"
]  # of note, archive, store, worker, task, key; the last four only where it is certain


class Change(BaseModel):
    """What an event's data holds: one row of the change log."""

    type: Literal["change"] = "change"
    seq: int
    at: wire.Stamp
    kind: Kind
    operation: Operation | None
    memory_store_id: str | None
    memory_id: str | None
    memory_version_id: str | None
    path: str | None
    old_path: str | None  # where a rename took it from
    actor: wire.Actor
    subject: str | None = Field(description="The id of what the row is about.")


wire.BODIES.append(Change)  # for OpenAPI: no route answers with one alone


@router.get(
    "",
    response_class=Response,
    responses={
        200: {
            "description": "A stream without an end; each event's data is a Change.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream(
    door: TheDoor,
    request: Request,
    after: Annotated[int | None, Query(ge=0, le=2**63)] = None,
    memory_store_id: Annotated[list[str] | None, Query()] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream changes as they are committed, from a seq or from now (ours)."""
    if last_event_id:
        after = _seq(last_event_id)

    def begin(txn: Txn) -> tuple[Seq, frozenset[StoreNo] | None]:
        named = memory_store_id or ()
        only = events.stores_of(txn, door.caller, named, resumed=after is not None)
        return events.start(txn, after), only

    since, only = door.service.view(begin)
    follower = _Follower(door, request, since, only)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(follower.run, "text/event-stream", headers)


class _Follower:
    """Writes pages of the log to one client."""

    def __init__(
        self, door: Door, request: Request, after: Seq, only: frozenset[StoreNo] | None
    ) -> None:
        self._door = door
        self._seq = after
        self._only = only
        self._metrics: Metrics = request.app.state.metrics
        self._stopping: trio.Event = request.state.stopping
        self._bounds: Bounds = request.state.bounds

    async def run(self, more: More) -> None:
        """Follow until the client's key is revoked or the daemon stops."""
        with self._metrics.event_stream(), contextlib.suppress(Unauthenticated):
            await more(f"retry: {_RETRY_MS}\nid: {self._seq}\n\n".encode())
            while not self._stopping.is_set():
                await self._step(more)

    async def _step(self, more: More) -> None:
        text, seq = await self._door.service.scan(self._page)
        if text:
            await more(text)
        if seq > self._seq:
            self._seq = seq
            return
        with trio.move_on_after(self._bounds.heartbeat_s) as idle:
            await self._news()
        if idle.cancelled_caught:
            await more(f": still here\nid: {self._seq}\n\n".encode())

    async def _news(self) -> None:
        """Return when there is a new row, or the daemon stops."""
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await self._stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            await self._door.service.feed.wait_past(self._seq)
            nursery.cancel_scope.cancel()

    def _page(self, txn: Txn) -> tuple[bytes, Seq]:
        batch = events.read(txn, self._door.caller, self._seq, limits.SCAN_BATCH, self._only)
        return b"".join(map(_encode, batch.events)), batch.seq


def _encode(event: events.Event) -> bytes:
    row = event.change
    kind: Kind = row.kind.name.lower()  # pyright: ignore[reportAssignmentType] - the enum's names
    shape = Change.model_construct(
        seq=row.seq,
        at=wire.stamp(row.at),
        kind=kind,
        operation=event.what,
        memory_store_id=event.store_id,
        memory_id=event.note_id,
        memory_version_id=event.version_id,
        path=event.path,
        old_path=event.old_path,
        actor=wire.actor(row.actor),
        subject=row.subject or None,
    )
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row.seq, kind.encode(), wire.encode(shape))


def _seq(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid("last-event-id: not an id of this stream; send the last one that came")
    return int(text)
