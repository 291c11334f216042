"""The HTTP application, and serving it on the data directory's unix socket."""

import logging
import os
import socket
from functools import partial
from pathlib import Path

import trio
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app  # pyright: ignore[reportUnknownVariableType] - WSGI's dict
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from daemon.http import admin, memories, refused, stores, tasks, versions, wire
from daemon.http.cursor import Cursors, load_key
from daemon.http.door import Door
from daemon.http.guard import Guard
from memfs.errors import MemfsError

__all__ = ["Cursors", "Door", "load_key", "make_app", "serve_http"]

log = logging.getLogger(__name__)

_BACKLOG = 256
_KEEP_ALIVE_S = 75
_GRACEFUL_S = 5.0


def make_app(door: Door) -> FastAPI:
    """Return the application that speaks for *door*'s caller."""
    app = FastAPI(
        title="memfs",
        version=admin.version(),
        description="Memory stores, memories and versions in the shapes of Claude's memory API.",
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.door = door
    app.add_middleware(Guard)
    for router in (
        stores.router,
        memories.router,
        versions.router,
        refused.router,
        tasks.router,
        tasks.worker_router,
        admin.router,
    ):
        app.include_router(router, responses={"default": {"model": wire.ErrorEnvelope}})
    app.add_exception_handler(MemfsError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.openapi = lambda: _openapi(app)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer for every error that is not a bug."""
    request_id: str = request.state.request_id
    if isinstance(error, HTTPException):
        return wire.framework_refusal(error.status_code, error.headers, request_id)
    if isinstance(error, RequestValidationError):
        error = wire.invalid(error.errors())
    if isinstance(error, MemfsError):
        return wire.refusal(error, request_id)
    raise error


def _openapi(app: FastAPI) -> dict[str, object]:
    """Return the OpenAPI document; the bodies that routes decode themselves are added here."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, bodies = models_json_schema(
            [(body, "validation") for body in wire.BODIES],
            ref_template="#/components/schemas/{model}",
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(bodies["$defs"])
        for route in document["paths"].values():
            for operation in route.values():
                # what FastAPI would answer; we answer 400 in the envelope
                operation["responses"].pop("422", None)
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        app.openapi_schema = document
    return app.openapi_schema


async def serve_http(
    app: FastAPI,
    socket_path: Path,
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until *shutdown*, then answer what is under way, within a few seconds.

    The caller holds the data directory's lock, so a socket that is already there is a dead one.
    started() comes once clients can connect.
    """
    config, context = _config(), WorkerContext(None)
    framework = wrap_app(app, 0, "asgi")  # pyright: ignore[reportArgumentType] - narrower ASGI types

    async def serve_one(stream: trio.SocketStream) -> None:
        try:
            await _Connection(framework, config, context, ConnectionState({}), stream).run()  # pyright: ignore[reportArgumentType] - a socket's stream is what it gets from hypercorn, too
        except Exception:
            log.exception("bug in a connection")  # which is no reason to end the daemon

    listener = trio.SocketListener(_listen(socket_path))
    try:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(
                        trio.serve_listeners, serve_one, [listener], handler_nursery=connections
                    )
                )
                task_status.started()
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            connections.cancel_scope.deadline = trio.current_time() + _GRACEFUL_S
            await context.terminated.set()  # idle connections close, busy ones after their answer
    finally:
        _remove(socket_path)


class _Connection(TCPServer):
    """One client's connection.

    Hypercorn's own (0.18) keeps the descriptor of a client that has left until the keep-alive
    timeout; a shell loop of short commands would use them all up.
    """

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.include_server_header = False
    return config


def _listen(path: Path) -> trio.socket.SocketType:
    """Return a socket that only the daemon's user can connect to."""
    _remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        os.fchmod(sock.fileno(), 0o600)  # Linux gives the file this mode: no moment of another
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        return trio.socket.fromfd(sock.fileno(), sock.family, sock.type)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
