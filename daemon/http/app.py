"""The HTTP application, and serving it on the data directory's unix socket."""

import logging
import os
import socket
from pathlib import Path

import trio
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType] - WSGI's dict
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from daemon.http import admin, memories, stores, tasks, versions, wire
from daemon.http.cursor import Cursors, load_key
from daemon.http.door import Door
from daemon.http.guard import Guard
from memfs.errors import MemfsError

__all__ = ["Cursors", "Door", "load_key", "make_app", "serve_http"]

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
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until *shutdown*, then answer what is under way, within a few seconds.

    The caller holds the data directory's lock, so a socket that is already there is a dead one.
    started() comes once clients can connect.
    """
    config = Config()
    config.bind = [f"fd://{_listen(socket_path)}"]
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    config.backlog = _BACKLOG
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = _GRACEFUL_S
    config.include_server_header = False
    try:
        await serve(
            app,  # pyright: ignore[reportArgumentType] - hypercorn's ASGI types are narrower
            config,
            shutdown_trigger=shutdown.wait,
            task_status=task_status,
            mode="asgi",
        )
    finally:
        _remove(socket_path)


def _listen(path: Path) -> int:
    """Return the descriptor of a socket that only the daemon's user can connect to."""
    _remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        os.fchmod(sock.fileno(), 0o600)  # Linux gives the file this mode: no moment of another
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        return sock.detach()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
