"""API keys: who speaks over TCP (SEMANTICS: Callers and keys)."""

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence

from memfs import ids
from memfs.engine import log, stores, workers
from memfs.errors import Invalid, NotFound, Unauthenticated
from memfs.store.env import Txn
from memfs.store.records import KEY
from memfs.types import Actor, Caller, ChangeKind, Key, KeyId, Power, StoreNo, Time, evolve

PREFIX = "memfs_"  # of a secret; engine.secrets knows its shape
SCOPES = ("stores", "tasks", "agents", "events")

_SECRET_BYTES = 32


def create(
    txn: Txn,
    caller: Caller,
    now: Time,
    power: Power,
    name: str = "",
    worker: str | None = None,
    scopes: Sequence[str] | None = None,
) -> tuple[Key, str]:
    """Make a key and return it with its secret, which nobody can learn later.

    worker: name or id, of an agent's key. scopes: None for all.
    Raises: Invalid, NotFound (the worker).
    """
    stores.check_prose("name", name, 255)
    if (power is Power.AGENT) != (worker is not None):
        raise Invalid("an agent's key needs a worker, and no other key has one")
    unknown = sorted(set(scopes or ()) - set(SCOPES))
    if unknown or scopes == []:
        raise Invalid(f"scopes: choose from {', '.join(SCOPES)}, or leave them out for all")
    secret = PREFIX + base64.urlsafe_b64encode(os.urandom(_SECRET_BYTES)).decode().rstrip("=")
    key = Key(
        id=KeyId(ids.new("apikey_")),
        name=name,
        power=power,
        created_at=now,
        worker=None if worker is None else workers.get(txn, worker).id,
        scopes=None if scopes is None else tuple(one for one in SCOPES if one in scopes),
    )
    KEY.put(txn, _row(secret), key)
    _record(txn, caller, now, key)
    return key, secret


def find(txn: Txn, secret: str) -> Key | None:
    """Return the key whose secret it is, None if there is none or it was revoked."""
    key = KEY.get(txn, _row(secret))
    return None if key is None or key.revoked_at is not None else key


def check_valid(txn: Txn, caller: Caller) -> None:
    """Check that the caller's key, if it has one, was not revoked since it came.

    Raises: Unauthenticated.
    """
    if caller.key is None:
        return
    key = KEY.get(txn, caller.key)
    if key is None or key.revoked_at is not None:
        raise Unauthenticated("this key was revoked: make one with `memfs key create`")


def by_id(txn: Txn, key_id: str) -> Key | None:
    """Return the key with that id, also a revoked one."""
    found = _by_id(txn, key_id)
    return None if found is None else found[1]


def everything(txn: Txn) -> Iterator[Key]:
    """Yield every key, revoked ones too, in the order of making."""
    yield from sorted((key for _, key in KEY.scan(txn)), key=lambda key: (key.created_at, key.id))


def revoke(txn: Txn, caller: Caller, now: Time, key_id: str) -> Key:
    """Make a key useless for good and return it. Again: unchanged.

    Raises: NotFound.
    """
    found = _by_id(txn, key_id)
    if found is None:
        raise NotFound(f"no key {key_id!r}: list them with `memfs key list`")
    row, key = found
    if key.revoked_at is None:
        key = evolve(key, revoked_at=now)
        KEY.put(txn, row, key)
        _record(txn, caller, now, key)
    return key


def caller_of(key: Key, secret: str) -> Caller:
    """Return who a request with *key* comes from."""
    return Caller(
        Actor("api_actor", key.id),
        power=key.power,
        worker=key.worker,
        scopes=key.scopes,
        key=_row(secret),
    )


def _by_id(txn: Txn, key_id: str) -> tuple[bytes, Key] | None:
    return next((found for found in KEY.scan(txn) if found[1].id == key_id), None)


def _row(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _record(txn: Txn, caller: Caller, now: Time, key: Key) -> None:
    log.record(txn, caller, now, ChangeKind.KEY, StoreNo(0), subject=key.id)
