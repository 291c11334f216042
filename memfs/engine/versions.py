"""Versions: what each change did to a note; listing, redaction, retention (SEMANTICS: Versions)."""

from collections.abc import Iterator

from memfs import ids
from memfs.engine import log, stores
from memfs.errors import Conflict, NotFound
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import CHANGE, NODE, REFUSED, VERSION
from memfs.types import (
    Actor,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NoteInfo,
    Operation,
    Page,
    Seq,
    Store,
    StoreNo,
    Time,
    Version,
    evolve,
)

_RETENTION = "retention"
_CATCH_UP = 24
_GRACE_NS = 24 * 3600 * 10**9
KEPT_OF_LIVING = 2  # newest versions of a living note that retention never removes


def add(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    head: NoteInfo,
    operation: Operation,
    path: str,
) -> None:
    """Write the version that *head* names and its index rows; its text is already kept."""
    ended = operation is Operation.DELETED
    version = Version(
        id=head.version_id,
        seq=head.head_seq,
        store=info.store,
        node=info.node,
        note_id=head.id,
        operation=operation,
        ordinal=head.ordinal,
        path=path,
        sha256=None if ended else head.sha256,
        size_bytes=None if ended else head.size_bytes,
        created_at=now,
        created_by=caller.actor,
    )
    before = next(VERSION.scan(txn, keys.store(version.store), reverse=True), None)
    if before is not None and now < before[1].created_at:
        txn.put("setback", keys.in_store(version.store, version.seq), b"")
    VERSION.put(txn, keys.in_store(version.store, version.seq), version)
    for table, key in _index_rows(version):
        txn.put(table, key, b"")


def _index_rows(version: Version) -> Iterator[tuple[str, bytes]]:
    store, seq = version.store, version.seq
    yield "by_note", keys.by_note(version.node, seq)
    if version.operation is not Operation.MODIFIED:  # most are: their list is the store's
        yield "by_operation", keys.by_operation(store, version.operation, seq)
    yield "by_actor", keys.by_actor(store, version.created_by, seq)


def get(txn: Txn, store_id: str, version_id: str) -> Version:
    """Return a version, redacted ones too.

    Raises: NotFound.
    """
    store = stores.get(txn, store_id)
    seq = ids.number(version_id, "memver_")
    if seq is not None:
        found = VERSION.get(txn, keys.in_store(store.no, seq))
        if found is not None and found.id == version_id:
            return found
    raise NotFound(f"no version {version_id!r} in memory store {store.name!r}: see `memfs log`")


def text_of(txn: Txn, version: Version) -> bytes | None:
    """Return a version's text, None if it has none (deleted, redacted)."""
    return None if version.sha256 is None else content.get(txn, version.sha256)


def list_page(
    txn: Txn,
    store_id: str,
    *,
    note_id: str | None = None,
    operation: Operation | None = None,
    actor: Actor | None = None,
    path: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Version]:
    """Return versions, newest first, filtered; after is a position from the page before.

    The order is the change log's, which clocks cannot disturb. Times are inclusive.
    """
    store = stores.get(txn, store_id)
    below = Seq(2**64 - 1) if after is None else Seq(int(after) - 1)
    items: list[Version] = []
    for version in _candidates(txn, store.no, note_id, operation, actor, since, until, below):
        if (
            (operation is not None and version.operation is not operation)
            or (actor is not None and version.created_by != actor)
            or (path is not None and version.path != path)
            or (since is not None and version.created_at < since)
            or (until is not None and version.created_at > until)
            or (note_id is not None and version.note_id != note_id)
        ):
            continue
        if len(items) == limit:
            last = items[-1]
            return Page(items, str(last.seq))
        items.append(version)
    return Page(items, None)


def _candidates(
    txn: Txn,
    store: StoreNo,
    note_id: str | None,
    operation: Operation | None,
    actor: Actor | None,
    since: Time | None,
    until: Time | None,
    below: Seq,
) -> Iterator[Version]:
    """Yield versions up to *below*, newest first, from the narrowest index the filters allow."""
    if note_id is not None:
        node = Node(ids.number(note_id, "mem_") or 0)
        if newest_of(txn, store, node, note_id) is None:
            return
        table, prefix = "by_note", keys.node(node)
    elif actor is not None:
        table, prefix = "by_actor", keys.by_actor(store, actor, Seq(0))[:-8]
    elif operation is not None and operation is not Operation.MODIFIED:
        table, prefix = "by_operation", keys.by_operation(store, operation, Seq(0))[:-8]
    else:
        yield from _between(txn, store, since, until, below)
        return
    for key, _ in txn.scan(table, prefix, prefix + keys.pack_u64(below), reverse=True):
        yield _at(txn, store, Seq(keys.u64(key)))


def _between(
    txn: Txn, store: StoreNo, since: Time | None, until: Time | None, below: Seq
) -> Iterator[Version]:
    """Yield a store's versions of a time, newest first, without reading those after it.

    Between two setbacks of the clock, times rise with the seq.
    """
    prefix, end = keys.store(store), below
    starts = [Seq(keys.u64(key)) for key, _ in txn.scan("setback", prefix, reverse=True)]
    for start in (*starts, Seq(0)):
        if start > end:
            continue
        top = end if until is None else _last_until(txn, store, start, end, until)
        for _, version in VERSION.scan(txn, prefix, keys.in_store(store, top), reverse=True):
            if version.seq < start or (since is not None and version.created_at < since):
                break
            yield version
        end = Seq(start - 1)


def _last_until(txn: Txn, store: StoreNo, start: Seq, end: Seq, until: Time) -> Seq:
    """Return a seq up to which, from *start* on, lie the versions up to *until*.

    The one at that seq itself may be later.
    """
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        found = next(VERSION.scan(txn, keys.store(store), keys.in_store(store, middle)), None)
        if found is None or found[1].seq > end or found[1].created_at > until:
            high = Seq(middle)
        else:
            low = Seq(found[1].seq + 1)
    return min(low, end)  # past the end begin the versions after the next setback


def _at(txn: Txn, store: StoreNo, seq: Seq) -> Version:
    version = VERSION.get(txn, keys.in_store(store, seq))
    if version is None:
        raise NotFound(f"version {seq} has an index row and no record: run `memfs check`")
    return version


def of_note(txn: Txn, store: StoreNo, node: Node) -> Iterator[Version]:
    """Yield a note's versions, newest first."""
    for key, _ in txn.scan("by_note", keys.node(node), reverse=True):
        yield _at(txn, store, Seq(keys.u64(key)))


def newest_of(txn: Txn, store: StoreNo, node: Node, note_id: str) -> Version | None:
    """Return the newest version of a note of that store, None if it has none."""
    row = next(txn.scan("by_note", keys.node(node), reverse=True), None)
    if row is None:
        return None
    found = VERSION.get(txn, keys.in_store(store, keys.u64(row[0])))
    return found if found is not None and found.note_id == note_id else None


def redact(txn: Txn, caller: Caller, now: Time, store_id: str, version_id: str) -> Version:
    """Empty a version's path, text, sha256 and size for good; who and when stay. Again: unchanged.

    Raises: NotFound, Conflict (it is the head of a note that still exists).
    """
    version = get(txn, store_id, version_id)
    if version.redacted_at is not None:
        return version
    info = NODE.get(txn, keys.node(version.node))
    if info is not None and info.note is not None and info.note.version_id == version.id:
        raise Conflict(
            f"version {version.id} is the current text of a note: write a new version or delete "
            "the note, then redact it"
        )
    if version.sha256 is not None:
        content.drop(txn, version.sha256)
    empty = evolve(
        version, path=None, sha256=None, size_bytes=None, redacted_at=now, redacted_by=caller.actor
    )
    VERSION.put(txn, keys.in_store(version.store, version.seq), empty)
    _blank_names(txn, version.seq)
    _blank_names(txn, _next_seq(txn, version))  # a rename's row says where it came from
    log.record(
        txn,
        caller,
        now,
        ChangeKind.REDACT,
        version.store,
        subject=version.id,
        node=version.node,
    )
    return empty


def _next_seq(txn: Txn, version: Version) -> Seq:
    """Return the seq of the version after *version* of the same note, 0 if there is none."""
    start = keys.by_note(version.node, Seq(version.seq + 1))
    row = next(txn.scan("by_note", keys.node(version.node), start), None)
    return Seq(0) if row is None else Seq(keys.u64(row[0]))


def _blank_names(txn: Txn, seq: Seq) -> None:
    """Take the names out of a change row; its followers have long seen it."""
    key = keys.pack_u64(seq)
    row = CHANGE.get(txn, key)
    if row is not None:
        CHANGE.put(txn, key, evolve(row, name="", old_name=""))


def retention_time(txn: Txn, caller: Caller, now: Time, uptime_ns: int) -> Time:
    """Return the time by which versions are judged old: now, unless the clock ran ahead.

    It is remembered, and moves at most a day for every hour that the daemon has been up since it
    was last asked, plus a day: a clock that is wrong for a while cannot empty a history.
    """
    before = txn.counter(_RETENTION)
    if before == 0:
        oldest = next(CHANGE.scan(txn), None)
        before = now if oldest is None else max(0, oldest[1].at)
    reached = max(0, min(now, before + _CATCH_UP * uptime_ns + _GRACE_NS))
    txn.put("meta", _RETENTION.encode(), keys.pack_u64(reached))
    return Time(reached)


def expire(
    txn: Txn, caller: Caller, now: Time, store: StoreNo, keep_ns: int, after: Seq, batch: int
) -> Seq | None:
    """Remove up to *batch* versions older than *keep_ns*; return where to go on, None at the end.

    Always kept: the two newest of a note that still exists, whatever their age. A note loses its
    oldest version first, also when the clock was set back: what is left of it has no gaps.
    """
    cutoff = now - keep_ns
    seen = after
    old: list[Version] = []
    prefix = keys.store(store)
    for key, version in VERSION.scan(txn, prefix, keys.in_store(store, after + 1)):
        if len(old) == batch:
            break
        seen = Seq(keys.u64(key))
        if version.created_at < cutoff and not _is_kept(txn, version):
            old.append(version)
    for version in old:
        prefix = keys.node(version.node)
        oldest = next(txn.scan("by_note", prefix))[0]
        if keys.u64(oldest) != version.seq:
            continue
        _forget(txn, version)
    return seen if len(old) == batch else None


def _is_kept(txn: Txn, version: Version) -> bool:
    info = NODE.get(txn, keys.node(version.node))
    if info is None or info.note is None:
        return False
    return version.ordinal > info.note.ordinal - KEPT_OF_LIVING


def _forget(txn: Txn, version: Version) -> None:
    key = keys.in_store(version.store, version.seq)
    VERSION.delete(txn, key)
    for table, row in _index_rows(version):
        txn.delete(table, row)
    if version.sha256 is not None:
        content.drop(txn, version.sha256)
    _blank_names(txn, version.seq)


def forget(txn: Txn, store: StoreNo, node: Node) -> set[str | None]:
    """Remove every version of a note and return the paths they had."""
    found = list(of_note(txn, store, node))
    for version in found:
        _forget(txn, version)
    return {version.path for version in found}


def forget_note(txn: Txn, store: Store, node: Node) -> None:
    """Remove every version of a note and the refused texts that were meant for its paths."""
    where = forget(txn, store.no, node)
    for key, refused in list(REFUSED.scan(txn, keys.store(store.no))):
        if refused.path in where:
            REFUSED.delete(txn, key)
            content.drop(txn, refused.sha256)
