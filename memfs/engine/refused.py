"""Refused texts: what a mount accepted in writes and could not commit (SEMANTICS: Refused)."""

from collections.abc import Iterator

from memfs import limits
from memfs.engine import log, stores
from memfs.errors import NotFound
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, REFUSED, STORE
from memfs.types import (
    NO_NODE,
    Caller,
    ChangeKind,
    Node,
    Refused,
    Sha256,
    StoreNo,
    Text,
    Time,
    evolve,
)


def keep(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_no: StoreNo,
    path: str,
    text: Text,
    reason: str,
    base: Sha256 | None,
    node: Node = NO_NODE,
) -> Refused:
    """Keep a refused text with its reason; the oldest beyond the limit goes.

    base: sha256 of the text it started from; node: the note it was meant for, 0 if there is none.

    Raises: NotFound (the store is gone), NoSpace.
    """
    store = stores.by_no(txn, store_no)
    info = NODE.get(txn, keys.node(node))
    content.add(txn, text)
    refused = Refused(
        n=store.refused + 1,
        store=store.no,
        path=path,
        reason=reason,
        base=base,
        head=None if info is None or info.note is None else info.note.sha256,
        sha256=text.sha256,
        size_bytes=text.size_bytes,
        at=now,
        actor=caller.actor,
    )
    REFUSED.put(txn, keys.in_store(store.no, refused.n), refused)
    STORE.put(txn, keys.store(store.no), evolve(store, refused=refused.n))
    oldest = refused.n - limits.REFUSED_PER_STORE
    if oldest > 0:
        gone = REFUSED.get(txn, keys.in_store(store.no, oldest))
        if gone is not None:
            REFUSED.delete(txn, keys.in_store(store.no, oldest))
            content.drop(txn, gone.sha256)
    log.record(txn, caller, now, ChangeKind.REFUSED, store.no, subject=str(refused.n))
    return refused


def everything(txn: Txn, store: StoreNo) -> Iterator[Refused]:
    """Yield a store's refused texts, oldest first."""
    for _, refused in REFUSED.scan(txn, keys.store(store)):
        yield refused


def text_of(txn: Txn, store: StoreNo, n: int) -> bytes:
    """Return a refused text.

    Raises: NotFound.
    """
    refused = REFUSED.get(txn, keys.in_store(store, n))
    if refused is None:
        raise NotFound(f"no refused text {n}: list .memfs/refused")
    return content.get(txn, refused.sha256)
