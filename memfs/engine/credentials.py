"""Registered credentials: texts that hold one are refused (SEMANTICS: Secrets)."""

from collections.abc import Iterator

from memfs.engine import log
from memfs.engine.secrets import SecretRecord, register
from memfs.errors import Conflict, Invalid, NotFound
from memfs.store.env import Txn
from memfs.store.records import Table
from memfs.types import Caller, ChangeKind, StoreNo, Time

_CREDENTIAL = Table("credential", SecretRecord)


def add(txn: Txn, caller: Caller, now: Time, name: str, secret: str) -> SecretRecord:
    """Register a credential under a name; what is kept does not reveal it.

    Raises: Invalid, Conflict (the name is taken).
    """
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise Invalid("a credential's name has 1 to 64 printable characters")
    if _CREDENTIAL.get(txn, name.encode()) is not None:
        raise Conflict(f"there is a credential {name!r}: remove it with `memfs secret rm` first")
    record = register(name, secret, now)
    _CREDENTIAL.put(txn, name.encode(), record)
    log.record(txn, caller, now, ChangeKind.CREDENTIAL, StoreNo(0), subject=name)
    return record


def remove(txn: Txn, caller: Caller, now: Time, name: str) -> None:
    """Forget a registered credential.

    Raises: NotFound.
    """
    if not name or _CREDENTIAL.get(txn, name.encode()[:511]) is None:
        raise NotFound(f"no credential {name!r}: list them with `memfs secret list`")
    _CREDENTIAL.delete(txn, name.encode())
    log.record(txn, caller, now, ChangeKind.CREDENTIAL, StoreNo(0), subject=name)


def everything(txn: Txn) -> Iterator[SecretRecord]:
    """Yield what recognises each registered credential, by name."""
    for _, record in _CREDENTIAL.scan(txn):
        yield record
