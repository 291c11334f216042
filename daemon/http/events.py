"""/v1/events: the change log as server-sent events (SEMANTICS: Events)."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.door import Door, TheDoor, scope
from memfs import limits
from memfs.engine import access, events
from memfs.engine.service import Txn
from memfs.errors import Invalid, MemfsError
from memfs.types import Seq, StoreNo

router = APIRouter(prefix="/v1/events", tags=["events"], dependencies=[scope("events")])

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
Operation = Literal["created", "modified", "deleted", "archived", "unarchived"]  # of note, archive


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
        only = [access.store(txn, door.caller, one).no for one in memory_store_id or ()]
        return events.start(txn, after), frozenset(only) or None

    since, only = door.service.view(begin)
    return _Stream(door, request, since, only)


class _Stream(Response):
    """Sends pages of the log; how fast is the client's own business."""

    media_type = "text/event-stream"

    def __init__(
        self, door: Door, request: Request, after: Seq, only: frozenset[StoreNo] | None
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._door = door
        self._seq = after
        self._only = only
        self._stopping: trio.Event = request.state.stopping
        self._bounds: Bounds = request.state.bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client leaves, its key is revoked or the daemon stops."""
        await _until_first(partial(self._send, send), partial(_leaving, receive))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _more(send, f"retry: {_RETRY_MS}\nid: {self._seq}\n\n".encode())
        while not self._stopping.is_set():
            try:
                text, seq = await self._door.service.scan(self._page)
            except MemfsError:  # its key was revoked
                break
            if text:
                await _more(send, text)
            if seq > self._seq:
                self._seq = seq
                continue
            with trio.move_on_after(self._bounds.heartbeat_s) as idle:
                await _until_first(self._news, self._stopping.wait)
            if idle.cancelled_caught:
                await _more(send, f": still here\nid: {self._seq}\n\n".encode())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _news(self) -> None:
        await self._door.service.feed.wait_past(self._seq)

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


async def _more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _leaving(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_first(*calls: Callable[[], Awaitable[None]]) -> None:
    """Run all until one returns."""
    async with trio.open_nursery() as nursery:

        async def run(call: Callable[[], Awaitable[None]]) -> None:
            await call()
            nursery.cancel_scope.cancel()

        for call in calls:
            nursery.start_soon(run, call)


def _seq(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid("last-event-id: not an id of this stream; send the last one that came")
    return int(text)
