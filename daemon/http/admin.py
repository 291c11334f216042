"""/v1/secrets, /v1/status, /healthz."""

import importlib.metadata
import os

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from daemon.http import wire
from daemon.http.door import Person, Sees, scope
from memfs.engine import credentials, holders
from memfs.engine.service import Txn

open_router = APIRouter(tags=["daemon (ours)"])
router = APIRouter(tags=["daemon (ours)"], dependencies=[scope("admin")])  # no key has this scope


class Health(BaseModel):
    """The daemon answers."""

    status: str = "ok"


class Status(BaseModel):
    """What the daemon knows of itself."""

    model_config = ConfigDict(extra="allow")

    type: str = "status"
    version: str
    pid: int
    seq: int  # of the newest committed change


@open_router.get("/healthz", response_model=Health)
async def health() -> Response:
    """Say that the daemon answers."""
    return wire.reply(Health())


@router.get("/v1/status", response_model=Status)
async def status(door: Sees) -> Response:
    """Return mounts, problems and counts."""
    found = await door.status()
    known = {"version": version(), "pid": os.getpid(), "seq": door.service.feed.seq}
    return wire.reply(Status.model_validate(known | found))


@router.get("/v1/secrets", response_model=wire.Page[wire.Secret])
async def list_secrets(door: Sees) -> Response:
    """List the names of the registered credentials."""

    def read(txn: Txn) -> bytes:
        rows = [wire.secret(one.name, one.created_at) for one in credentials.everything(txn)]
        return wire.encode(wire.Page(data=rows, next_page=None))

    return wire.reply(await door.scan(read))


@router.post(
    "/v1/secrets", response_model=wire.NewSecret, openapi_extra=wire.takes(wire.CreateSecret)
)
async def add_secret(door: Person, request: Request) -> Response:
    """Register a credential: from now on no text that holds it is accepted.

    What holds it already is named (ours); nothing of that is changed.
    """
    body = await wire.decode(request, wire.CreateSecret)
    made = await door.commit(credentials.add, body.name, body.secret)
    door.service.refresh_scanner()

    def read(txn: Txn) -> bytes:
        shape = wire.secret(made.name, made.created_at)
        return wire.encode(wire.new_secret(shape, holders.find(txn, made)))

    return wire.reply(await door.service.scan(read))


@router.delete("/v1/secrets/{name:path}", response_model=wire.Gone)
async def remove_secret(door: Person, name: str) -> Response:
    """Forget a registered credential."""
    await door.commit(credentials.remove, name)
    door.service.refresh_scanner()
    return wire.reply(wire.Gone(type="secret_deleted", id=name))


def version() -> str:
    """Return memfs's version."""
    try:
        return importlib.metadata.version("memfs")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
