"""Around every route: a request id, who asks, bounds of size and time, an answer even to bugs.

HEAD is answered here, too: as GET, up to the body.
"""

import logging
import math
import re
import time

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.callers import Callers, Entrance
from daemon.http.metrics import Metrics
from daemon.http.turns import Turns
from memfs import ids
from memfs.errors import Invalid, MemfsError, RateLimited, Unauthenticated

log = logging.getLogger(__name__)

BODY_BYTES = 2**20  # a note's text with every byte escaped in JSON takes 600 KiB
_DRAIN_BYTES = 2**26  # of a body that nobody reads: so that the client gets to read why

OPEN = ("/healthz",)  # to everybody
_STREAMED = re.compile(r"/v1/memory_stores/(?:[^/]+/)?import")  # the route reads the body itself


class Guard:
    """ASGI middleware: state.caller, and state.request_id, which the answer's header repeats."""

    def __init__(self, app: ASGIApp, callers: Callers, metrics: Metrics) -> None:
        self._app = app
        self._callers = callers
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = ids.new("req_")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        is_head = scope["method"] == "HEAD"
        asked = {**scope, "method": "GET"} if is_head else scope  # what the routes see
        bounds: Bounds = state["bounds"]
        turns: Turns = state["turns"]
        body = _Body(receive, bounds.body_s)
        deadline = trio.CancelScope()
        started = False
        begun = time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal started
            # what was committed as the time ran out is told as it is; and what follows an answer's
            # end in hypercorn (0.18), a connection's timeout, must not be left out
            with trio.CancelScope(shield=is_head or deadline.cancel_called):
                if message["type"] == "http.response.start":
                    started = True
                    self._count(
                        asked, scope["method"], message["status"], time.perf_counter() - begun
                    )
                    deadline.deadline = math.inf  # from here on the client's pace is bounded
                    message.setdefault("headers", []).append((b"request-id", request_id.encode()))
                    await body.skip()
                elif is_head:
                    return
                await body.send_last(send, message)
                if is_head:
                    await body.send_last(send, {"type": "http.response.body", "body": b""})
                    deadline.cancel()  # a stream would go on for nobody

        try:
            _check_head(scope, bounds.head_bytes)
            if scope["path"] not in OPEN:
                entrance: Entrance = state["entrance"]
                state["caller"] = self._callers.identify(entrance, scope["headers"])
            _check_betas(scope)
            if _STREAMED.fullmatch(scope["path"]) is None:
                receive = _replay(await body.read(), receive)
                deadline.deadline = trio.current_time() + bounds.answer_s
            else:
                receive = body.receive
            await turns.take()
            with deadline:
                await self._app(asked, receive, answer)
            if deadline.cancelled_caught and not started:
                raise wire.TooLate(
                    f"no answer within {bounds.answer_s:g} s: what had not begun is not applied; "
                    "look, then try again"
                )
        except _LeftError:
            return
        except MemfsError as error:
            if isinstance(error, Unauthenticated | RateLimited):
                self._metrics.auth_failure()
            await wire.refusal(error, request_id)(scope, receive, answer)
        except Exception:
            log.exception("bug in a route", extra={"request_id": request_id})
            if not started:
                await wire.bug(request_id)(scope, receive, answer)

    def _count(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._metrics.request(route, method, status, seconds)


class _LeftError(Exception):
    """The client went away."""


class _Body:
    """A request's body as it comes in.

    Hypercorn (0.18) holds ten parts of it and then waits, also with the end of its connection:
    while an answer ends, somebody must go on taking what comes.
    """

    def __init__(self, receive: Receive, within_s: float) -> None:
        self._receive = receive
        self._within_s = within_s
        self._until = trio.current_time() + within_s
        self._more = True

    async def receive(self) -> Message:
        """Take a part, as ASGI has it."""
        message = await self._receive()
        self._more = message.get("more_body", False)
        return message

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise _LeftError
        return message.get("body", b"")

    async def read(self) -> bytes:
        """Return all of it.

        Raises: TooLarge, TooSlow, _LeftError.
        """
        parts: list[bytes] = []
        size = 0
        with trio.move_on_at(self._until) as scope:
            while self._more and size <= BODY_BYTES:
                parts.append(await self._part())
                size += len(parts[-1])
        if size > BODY_BYTES:
            raise wire.TooLarge(
                f"the request's body may have at most {BODY_BYTES} bytes: send less"
            )
        if scope.cancelled_caught:
            raise wire.TooSlow(f"the request's body did not come within {self._within_s:g} s")
        return b"".join(parts)

    async def skip(self) -> None:
        """Take what nobody has read, within bounds: a client that still sends reads no answer."""
        size = 0
        with trio.move_on_at(self._until):
            while self._more and size <= _DRAIN_BYTES:
                try:
                    size += len(await self._part())
                except _LeftError:
                    return

    async def send_last(self, send: Send, message: Message) -> None:
        """Send a part of the answer; with the last one, take what still comes in."""
        if not self._more or message.get("more_body", message["type"] != "http.response.body"):
            await send(message)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            await send(message)
            nursery.cancel_scope.cancel()

    async def _discard(self) -> None:
        while True:
            await self._receive()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive that gives *body* first."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _check_head(scope: Scope, most: int) -> None:
    """Check the size of a request's line and headers.

    Raises: HeadTooLarge.
    """
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > most:
        raise wire.HeadTooLarge.over(most)


def _check_betas(scope: Scope) -> None:
    """Refuse a memory-store call that names both betas, as the hosted API does.

    Raises: Invalid.
    """
    if not scope["path"].startswith("/v1/memory_stores"):
        return
    sent = b",".join(value for name, value in scope["headers"] if name == b"anthropic-beta")
    names = [name.strip().partition(b"-20")[0] for name in sent.split(b",")]
    if b"agent-memory" in names and b"managed-agents" in names:
        raise Invalid(
            "anthropic-beta: agent-memory and managed-agents exclude each other here; send one"
        )
