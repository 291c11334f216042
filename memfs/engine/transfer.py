"""Whole stores out and in (SEMANTICS: Export and import); what a file of one is, doors know.

An import says what should be there, from wherever it came; its rule decides.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from memfs.engine import notes, stores, tree
from memfs.engine import path as paths
from memfs.errors import Conflict, Invalid, PathConflict
from memfs.store import change, content, keys
from memfs.store.env import Txn
from memfs.store.records import VERSION
from memfs.types import (
    Caller,
    NodeInfo,
    NotePath,
    Seq,
    Sha256,
    Store,
    Text,
    Time,
    Version,
    evolve,
)

_NAMED = 20  # paths of conflicts in a message


class Incoming(NamedTuple):
    """A note that an import brings; its text was screened."""

    path: NotePath
    sha256: Sha256
    mode: int = tree.NOTE_MODE
    mtime: Time | None = None


class Outcome(NamedTuple):
    """What an import did."""

    store: Store
    created: int
    replaced: int
    unchanged: int


class Snapshot(NamedTuple):
    """A store's notes at one moment, in path order."""

    store: Store
    notes: list[tuple[NotePath, NodeInfo]]
    seq: Seq


def snapshot(txn: Txn, store_id: str) -> Snapshot:
    """Return what an export writes.

    Raises: NotFound.
    """
    store = stores.get(txn, store_id)
    found = notes.list_page(txn, store_id, limit=store.notes)
    return Snapshot(store, found.items, change.last_seq(txn))


def texts(txn: Txn, wanted: Sequence[Sha256]) -> list[bytes | None]:
    """Return texts; None for one that was redacted, purged or has expired meanwhile."""
    return [
        content.get(txn, sha256) if txn.get("content", keys.sha256(sha256)) else None
        for sha256 in wanted
    ]


def versions_until(
    txn: Txn, store: Store, seq: Seq, limit: int
) -> tuple[list[Version], Seq | None]:
    """Return versions up to *seq*, newest first, and where to go on; None at the end."""
    found: list[Version] = []
    start = keys.in_store(store.no, seq)
    for _, version in VERSION.scan(txn, keys.store(store.no), start, reverse=True):
        if len(found) == limit:
            return found, version.seq
        found.append(version)
    return found, None


def import_new(
    txn: Txn,
    caller: Caller,
    now: Time,
    name: str,
    description: str,
    metadata: Mapping[str, str] | None,
    incoming: Sequence[Incoming],
    text_of: Callable[[Incoming], bytes],
) -> Outcome:
    """Make a store with notes. text_of: gives each one's text when its turn comes.

    Raises: Invalid, LimitReached, NoSpace; then there is no store.
    """
    _check_among_themselves(incoming)
    store = stores.create(txn, caller, now, name, description, metadata)
    return import_into(txn, caller, now, store.id, incoming, text_of)


def import_into(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    incoming: Sequence[Incoming],
    text_of: Callable[[Incoming], bytes],
    *,
    replace: bool = False,
) -> Outcome:
    """Bring notes into a store, all or none. replace: also over notes with another text.

    Raises: NotFound, StoreArchived, Invalid, Conflict (naming the paths), LimitReached, NoSpace.
    """
    store = stores.get(txn, store_id)
    stores.check_live(store)
    _check_among_themselves(incoming)
    fresh: list[Incoming] = []
    changed: list[tuple[Incoming, NodeInfo]] = []
    in_the_way: list[str] = []
    for one in incoming:
        info = tree.resolve(txn, store, paths.segments(one.path))
        if info is None or info.note is None:
            try:
                tree.check_free(txn, store, one.path)
                fresh.append(one)
            except PathConflict:
                in_the_way.append(one.path)
        elif info.note.sha256 != one.sha256:
            changed.append((one, info))
            if not replace:
                in_the_way.append(one.path)
    if in_the_way:
        raise _conflict(in_the_way)
    stores.check_room(store, len(fresh))
    if fresh or changed:
        txn.require_space()
    for one in fresh:
        text = Text(text_of(one), one.sha256)
        notes.create(txn, caller, now, store_id, one.path, text, one.mode, one.mtime)
    for one, info in changed:
        written = evolve(info, mode=one.mode, mtime=now if one.mtime is None else one.mtime)
        notes.modify(txn, caller, now, written, one.path, Text(text_of(one), one.sha256))
    unchanged = len(incoming) - len(fresh) - len(changed)
    return Outcome(stores.by_no(txn, store.no), len(fresh), len(changed), unchanged)


def _check_among_themselves(incoming: Sequence[Incoming]) -> None:
    """Check that no path is there twice, or above another one.

    Raises: Invalid.
    """
    found = {one.path for one in incoming}
    if len(found) < len(incoming):
        raise Invalid("two entries have the same path: leave one of them out")
    for path in found:
        for end in range(1, len(path)):
            if path[end] == "/" and path[:end] in found:
                raise Invalid(f"{path[:end]} cannot be a note and the folder of {path}")


def _conflict(found: Sequence[str]) -> Conflict:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return Conflict(
        f"{len(found)} notes are there with another text, or stand in the way: "
        f"{', '.join(found[:_NAMED])}{more}; nothing was imported. Import into a new store, or "
        "with replace, which writes a version of each that differs"
    )
