"""Around every route: a request id, who asks, a bound on the body, an answer even to our bugs."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.http import wire
from daemon.http.callers import Callers, Entrance
from memfs import ids
from memfs.errors import Invalid, MemfsError

log = logging.getLogger(__name__)

BODY_BYTES = 2**20  # a note's text with every byte escaped in JSON takes 600 KiB
_DRAIN_BYTES = 2**26  # of a body that is too large: so that the client gets to read why


_OPEN = ("/healthz",)  # to everybody


class Guard:
    """ASGI middleware: state.caller, and state.request_id, which the answer's header repeats."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = ids.new("req_")
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message.setdefault("headers", []).append((b"request-id", request_id.encode()))
            await send(message)

        try:
            if scope["path"] not in _OPEN:
                entrance: Entrance = scope["state"]["entrance"]
                scope["state"]["caller"] = self._callers.identify(entrance, scope["headers"])
            _check_betas(scope)
            body = await _read(receive)
            if body is None:
                return
            await self._app(scope, _replay(body, receive), answer)
        except MemfsError as error:
            await wire.refusal(error, request_id)(scope, receive, answer)
        except Exception:
            log.exception("bug in a route", extra={"request_id": request_id})
            if not started:
                await wire.bug(request_id)(scope, receive, answer)


async def _read(receive: Receive) -> bytes | None:
    """Return the request's body, None if the client went away.

    Raises: TooLarge.
    """
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= _DRAIN_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= BODY_BYTES:
            parts.append(part)
        more = message.get("more_body", False)
    if size > BODY_BYTES:
        raise wire.TooLarge(f"the request's body may have at most {BODY_BYTES} bytes: send less")
    return b"".join(parts)


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
