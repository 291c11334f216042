"""/v1/keys: API keys."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from daemon.http import wire
from daemon.http.door import Person, Sees, scope
from memfs.engine import keys
from memfs.engine.service import Txn
from memfs.types import Key, Power

router = APIRouter(prefix="/v1/keys", tags=["keys (ours)"], dependencies=[scope("admin")])


Scope = Annotated[str, Field(json_schema_extra={"enum": list(keys.SCOPES)})]


class CreateKey(wire.Body):
    """A new key. Without scopes it is unrestricted."""

    power: Literal["person", "agent", "readonly"]
    name: Annotated[str, Field(json_schema_extra={"maxLength": 255})] = ""
    worker: str | None = None  # name or id; of an agent's key
    scopes: list[Scope] | None = None


class KeyShape(BaseModel):
    """A key, without its secret."""

    type: Literal["key"] = "key"
    id: str
    name: str
    power: Literal["person", "agent", "readonly"]
    worker_id: str | None
    scopes: list[str] | None
    created_at: wire.Stamp
    revoked_at: wire.Stamp | None


class NewKey(KeyShape):
    """A key just made; the secret is told now and never again."""

    secret: str


@router.post("", response_model=NewKey, openapi_extra=wire.takes(CreateKey))
async def create(door: Person, request: Request) -> Response:
    """Make a key. Its secret is in the answer and nowhere else."""
    body = await wire.decode(request, CreateKey)
    key, secret = await door.commit(
        keys.create, Power[body.power.upper()], body.name, body.worker, body.scopes
    )
    return wire.reply(NewKey(**dict(_shape(key)), secret=secret))


@router.get("", response_model=wire.Page[KeyShape])
async def list_keys(door: Sees) -> Response:
    """List all keys, revoked ones too, in the order of making."""

    def read(txn: Txn) -> bytes:
        rows = [_shape(key) for key in keys.everything(txn)]
        return wire.encode(wire.Page(data=rows, next_page=None))

    return wire.reply(await door.scan(read))


@router.post("/{key_id}/revoke", response_model=KeyShape)
async def revoke(door: Person, key_id: str) -> Response:
    """Make a key useless for good. Again: unchanged."""
    return wire.reply(_shape(await door.commit(keys.revoke, key_id)))


def _shape(key: Key) -> KeyShape:
    return KeyShape.model_validate(
        {
            "id": key.id,
            "name": key.name,
            "power": key.power.word,
            "worker_id": key.worker,
            "scopes": None if key.scopes is None else list(key.scopes),
            "created_at": wire.stamp(key.created_at),
            "revoked_at": wire.stamp_or_null(key.revoked_at),
        }
    )
