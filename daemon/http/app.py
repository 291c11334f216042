"""The HTTP application: its routes, its refusals, its OpenAPI document."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from daemon.http import (
    admin,
    docs,
    events,
    imports,
    keys,
    memories,
    metrics,
    refused,
    sessions,
    stores,
    tasks,
    transfer,
    versions,
    wire,
)
from daemon.http.callers import Callers
from daemon.http.door import Door
from daemon.http.guard import OPEN, Guard
from memfs.errors import MemfsError


def make_app(door: Door) -> FastAPI:
    """Return the application; *door* is what its requests are given, each with its caller."""
    app = FastAPI(
        title="memfs",
        version=admin.version(),
        description="Claude's memory API: stores, memories, versions, sessions. What is marked "
        "(ours) is beyond it. Over TCP send Authorization: Bearer KEY or x-api-key: KEY; the "
        "owner's unix socket needs no key. HEAD is answered wherever GET is.",
        openapi_url=None,  # daemon.http.docs serves it: FastAPI's pages are from elsewhere
        redirect_slashes=False,
    )
    app.state.door = door
    app.state.metrics = numbers = metrics.Metrics()
    door.service.on_commit = numbers.commit
    app.add_middleware(Guard, callers=Callers(door.service), metrics=numbers)
    app.state.imports = imports.Imports()
    for router in (  # those first that are asked most: each one before costs a look
        memories.router,
        versions.router,
        transfer.router,  # before the stores': "import" is no id
        stores.router,
        refused.router,
        tasks.router,
        tasks.worker_router,
        sessions.router,
        keys.router,
        events.router,
        metrics.router,
        docs.router,
        admin.router,
        admin.open_router,
    ):
        app.include_router(router, responses={"default": {"model": wire.ErrorEnvelope}})
    app.add_exception_handler(MemfsError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.openapi = lambda: _openapi(app)
    app.state.documents = docs.Documents(app.openapi)
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
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["security"] = [{"bearer": []}, {"key": []}]
        for path in OPEN:
            for operation in document["paths"][path].values():
                operation["security"] = []
        app.openapi_schema = document
    return app.openapi_schema
