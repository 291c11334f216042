"""The change log as its followers outside the daemon see it (SEMANTICS: Events).

A row names nodes; what it says to others is read here, when it is sent: from versions, so that
what was redacted, purged or has expired since shows no path.
"""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from memfs import ids
from memfs.engine import access, keys, tasks, tree
from memfs.errors import Invalid
from memfs.store import change
from memfs.store import keys as rows
from memfs.store.env import Txn
from memfs.store.records import NODE, REFUSED, STORE, VERSION
from memfs.types import (
    NO_NODE,
    Access,
    Caller,
    Change,
    ChangeKind,
    Key,
    Node,
    Operation,
    Seq,
    Store,
    StoreNo,
    Task,
    Time,
    Version,
)


class Event(NamedTuple):
    """One row of the change log for others; what: finer than the kind, where that is known."""

    change: Change
    what: str | None = None
    store_id: str | None = None
    note_id: str | None = None
    version_id: str | None = None
    path: str | None = None
    old_path: str | None = None


class Batch(NamedTuple):
    """The rows up to *seq* that are for the caller."""

    events: list[Event]
    seq: Seq


def start(txn: Txn, after: int | None) -> Seq:
    """Return the seq after which a stream begins; None: from now.

    Raises: Invalid (nothing has that seq yet).
    """
    newest = change.last_seq(txn)
    if after is None:
        return newest
    if not 0 <= after <= newest:
        raise Invalid(
            f"after: no change has the seq {after}, the newest is {newest}; send the last id that "
            "came, or leave it out to start now"
        )
    return Seq(after)


def stores_of(
    txn: Txn, caller: Caller, store_ids: Iterable[str], *, resumed: bool
) -> frozenset[StoreNo] | None:
    """Return the numbers of the stores that a stream is of, None when it names none.

    resumed: it goes on, so that a store which was deleted since is still meant; an agent means
    only what it reaches, and its live tasks reach what they attached.
    Raises: NotFound.
    """
    found: set[StoreNo] = set()
    for one in store_ids:
        gone = _deleted(txn, caller, one) if resumed else None
        found.add(access.store(txn, caller, one).no if gone is None else gone)
    return frozenset(found) or None


def read(
    txn: Txn, caller: Caller, after: Seq, limit: int, only: Container[StoreNo] | None = None
) -> Batch:
    """Return what is for the caller among the next *limit* rows after *after*.

    only: of these stores. What the caller reaches is judged now, not when the row was written.
    Raises: Unauthenticated (its key was revoked since).
    """
    keys.check_valid(txn, caller)
    reached = access.reach(txn, caller)
    found = change.read(txn, after, limit)
    events = [
        _event(txn, row)
        for row in found
        if (only is None or row.store in only) and _is_seen(txn, caller, reached, row)
    ]
    return Batch(events, found[-1].seq if found else after)


def _deleted(txn: Txn, caller: Caller, store_id: str) -> StoreNo | None:
    """Return the number of a store that was deleted, None if it was not or is not for *caller*."""
    no = StoreNo(ids.number(store_id, "memstore_") or 0)
    if not 0 < no <= txn.counter("store") or STORE.get(txn, rows.store(no)) is not None:
        return None
    reached = access.reach(txn, caller)
    return no if reached is None or no in reached else None


def _is_seen(txn: Txn, caller: Caller, reached: dict[StoreNo, Access] | None, row: Change) -> bool:
    if reached is None:
        return True
    match row.kind:
        case ChangeKind.KEY | ChangeKind.CREDENTIAL:
            return False
        case ChangeKind.WORKER:
            return access.knows(caller, row.subject)
        case ChangeKind.TASK:  # its row is in its worker's own store, which others may attach
            task = tasks.find(txn, row.subject)  # it may have been deleted since
            return task is not None and access.knows(caller, task.worker_id)
        case _:
            return row.store in reached


def _event(txn: Txn, row: Change) -> Event:
    """Return a row with what it is about."""
    store = STORE.get(txn, rows.store(row.store))
    if store is not None:
        store_id: str | None = store.id
    else:
        store_id = row.subject if row.kind is ChangeKind.STORE else None
    event = Event(row, None if row.operation is None else row.operation.word, store_id)
    match row.kind:
        case ChangeKind.NOTE:
            return _of_note(txn, event)
        case ChangeKind.ARCHIVE:
            what = "archived" if row.parent == 0 else "unarchived"
            return _at_node(txn, event)._replace(what=what)
        case ChangeKind.ATTR:
            return _at_node(txn, event)
        case ChangeKind.FOLDER:
            return event._replace(
                path=_entry(txn, row.parent, row.name),
                old_path=_entry(txn, row.old_parent, row.old_name),
            )
        case ChangeKind.REDACT:
            version = VERSION.get(
                txn, rows.in_store(row.store, ids.number(row.subject, "memver_") or 0)
            )
            note_id = None if version is None else version.note_id
            return event._replace(note_id=note_id, version_id=row.subject)
        case ChangeKind.PURGE:
            return event._replace(note_id=row.subject)
        case ChangeKind.STORE:
            return event._replace(what=_of_store(row, store))
        case ChangeKind.WORKER:
            return event._replace(what="created")  # nothing else happens to one
        case ChangeKind.TASK:
            return event._replace(what=_of_task(row, tasks.find(txn, row.subject)))
        case ChangeKind.KEY:
            key = keys.by_id(txn, row.subject)
            return event if key is None else event._replace(what=_of_key(row, key))
        case ChangeKind.REFUSED:
            kept = REFUSED.get(txn, rows.in_store(row.store, int(row.subject)))
            return event if kept is None else event._replace(path=kept.path)
        case _:
            return event


def _of_store(row: Change, store: Store | None) -> str | None:
    if row.node == NO_NODE:
        return "deleted"
    if store is None:
        return None
    stamps = {"created": store.created_at, "archived": store.archived_at}
    return _only(row.at, stamps, "modified")


def _of_task(row: Change, task: Task | None) -> str | None:
    if task is None:
        return None
    stamps = {"created": task.created_at, "ended": task.ended_at, "deleted": task.deleted_at}
    if task.ended_at == task.deleted_at:  # a live one was deleted, which is one row
        del stamps["ended"]
    return _only(row.at, stamps, "modified")


def _of_key(row: Change, key: Key) -> str | None:
    return _only(row.at, {"created": key.created_at, "revoked": key.revoked_at}, None)


def _only(at: Time, stamps: Mapping[str, Time | None], otherwise: str | None) -> str | None:
    """Return what happened at a time: what bears that stamp, None if several things do."""
    found = [what for what, stamp in stamps.items() if stamp == at]
    if len(found) > 1:
        return None
    return found[0] if found else otherwise


def _of_note(txn: Txn, event: Event) -> Event:
    """Return the event of a row that wrote a version."""
    row = event.change
    event = event._replace(note_id=row.subject)
    version = VERSION.get(txn, rows.in_store(row.store, row.seq))
    if version is None:
        return event
    old: str | None = None
    if version.operation is Operation.MODIFIED:
        before = _last_version(txn, row.store, row.node, Seq(row.seq - 1))
        if before is not None and before.ordinal == version.ordinal - 1:
            old = before.path
    return event._replace(
        version_id=version.id,
        path=version.path,
        old_path=None if version.path in (None, old) else old,
    )


def _at_node(txn: Txn, event: Event) -> Event:
    """Return the event of a row about a note that wrote no version, or about a folder."""
    row = event.change
    if row.subject:
        version = _last_version(txn, row.store, row.node, row.seq)
        path = None if version is None else version.path
        return event._replace(note_id=row.subject, path=path)
    info = NODE.get(txn, rows.node(row.node))
    return event if info is None else event._replace(path=tree.path_of(txn, info))


def _last_version(txn: Txn, store: StoreNo, node: Node, seq: Seq) -> Version | None:
    """Return a note's newest version up to *seq*."""
    start_at = rows.by_note(node, seq)
    row = next(txn.scan("by_note", rows.node(node), start_at, reverse=True), None)
    return None if row is None else VERSION.get(txn, rows.in_store(store, rows.u64(row[0])))


def _entry(txn: Txn, parent: Node, name: str) -> str | None:
    """Return where an entry of a folder is or was, None when its folder is gone."""
    info = None if parent == 0 or not name else NODE.get(txn, rows.node(parent))
    if info is None:
        return None
    above = tree.path_of(txn, info)
    return f"{above if above != '/' else ''}/{name}"
