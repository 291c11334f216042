"""Refused texts: what a mount accepted in writes and could not commit (SEMANTICS: Refused)."""

from collections.abc import Iterator
from itertools import islice

from memfs import limits
from memfs.engine import log, notes, past, stores
from memfs.engine.secrets import Scanner, screen
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, REFUSED, STORE
from memfs.types import (
    NO_NODE,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NotePath,
    Page,
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


def get(txn: Txn, store_id: str, n: int) -> Refused:
    """Return what is known about a refused text.

    Raises: NotFound.
    """
    return past.refused_at(txn, stores.get(txn, store_id).no, n)


def text_of(txn: Txn, store: StoreNo, n: int) -> bytes:
    """Return a refused text.

    Raises: NotFound.
    """
    return content.get(txn, past.refused_at(txn, store, n).sha256)


def list_page(txn: Txn, store_id: str, limit: int = 20, after: str | None = None) -> Page[Refused]:
    """Return refused texts, newest first; after is a number from the page before.

    Raises: NotFound (the store).
    """
    store = stores.get(txn, store_id).no
    below = None if after is None else keys.in_store(store, int(after) - 1)
    rows = REFUSED.scan(txn, keys.store(store), below, reverse=True)
    found = [refused for _, refused in islice(rows, limit + 1)]
    return Page(found[:limit], str(found[limit - 1].n) if len(found) > limit else None)


def discard(txn: Txn, caller: Caller, now: Time, store_id: str, n: int) -> None:
    """Remove a refused text for good, also from an archived store.

    Raises: NotFound.
    """
    _remove(txn, caller, now, get(txn, store_id, n))


def to_note(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    n: int,
    path: NotePath,
    scanner: Scanner,
) -> NodeInfo:
    """Make a refused text a new note at a free path and return it; it is refused no longer.

    scanner: what counts as a credential now; more may than when it was refused.
    Raises: NotFound, StoreArchived, SecretRefused, PathConflict, LimitReached, NoSpace.
    """
    refused = get(txn, store_id, n)
    stores.check_live(stores.by_no(txn, refused.store))
    text = screen(content.get(txn, refused.sha256), scanner)
    made = notes.create(txn, caller, now, store_id, path, text)
    _remove(txn, caller, now, refused)
    return made


def _remove(txn: Txn, caller: Caller, now: Time, refused: Refused) -> None:
    REFUSED.delete(txn, keys.in_store(refused.store, refused.n))
    content.drop(txn, refused.sha256)
    subject = f"refused/{refused.n}"  # as .memfs calls it
    log.record(txn, caller, now, ChangeKind.PURGE, refused.store, subject=subject)
