"""What a store was: its tree at a time, the histories of notes that left it, its last changes.

Read from the versions and the change log alone, so retention and redaction take from the past what
they take from the versions: what is gone shows nothing, never an older text in its stead.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memfs import limits
from memfs.engine import stores, versions
from memfs.engine import tree as trees
from memfs.errors import NotFound
from memfs.store import change, content, keys
from memfs.store.env import Txn
from memfs.store.records import CHANGE, NODE, REFUSED, VERSION
from memfs.types import (
    Actor,
    Change,
    ChangeKind,
    Node,
    NotePath,
    Operation,
    Refused,
    Seq,
    StoreNo,
    Time,
    Version,
)


class Paths:
    """Paths with a number each, browsed as folders; one path may have several numbers."""

    def __init__(self, pairs: Iterable[tuple[str, int]]) -> None:
        # no name holds a NUL: with it as separator a path sorts right before what is below it
        self._rows = sorted((path.replace("/", "\0"), number) for path, number in pairs)

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of exactly that path, ascending."""
        key = _key(names)
        start = bisect_left(self._rows, (key, -1))
        return [number for _, number in self._rows[start : bisect_left(self._rows, (key + "\0",))]]

    def has_below(self, names: Sequence[str]) -> bool:
        """Return whether some path runs through *names* and further."""
        prefix = _key(names) + "\0"
        at = bisect_left(self._rows, (prefix,))
        return at < len(self._rows) and self._rows[at][0].startswith(prefix)

    def children(self, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Yield what is in a folder in byte order: name, and whether something is below it."""
        prefix = _key(names) + "\0"
        at = bisect_left(self._rows, (prefix,))
        while at < len(self._rows) and self._rows[at][0].startswith(prefix):
            name = self._rows[at][0][len(prefix) :].partition("\0")[0]
            at = bisect_left(self._rows, (f"{prefix}{name}\1",), at)
            yield name, self._rows[at - 1][0] != prefix + name


def _key(names: Sequence[str]) -> str:
    return "".join("\0" + name for name in names)


class Stamp(NamedTuple):
    """When something was read: the newest change, and how many versions there were."""

    seq: Seq
    versions: int


class Snapshot(NamedTuple):
    """Paths as they were read, and when."""

    stamp: Stamp
    paths: Paths


class Line(NamedTuple):
    """One change in words; where is a path, or the id of what has none."""

    at: Time
    actor: Actor
    what: str
    where: str
    detail: str = ""


def tree_at(txn: Txn, store_no: StoreNo, at: Time) -> dict[NotePath, Version]:
    """Return the notes of a store as they were at a time (inclusive), by path.

    Of each note the last version, in the order of the log, whose clock said *at* or earlier. Not
    there: notes deleted or archived by then, versions that were redacted or expired since.
    Reads every version of the store, and the change log from the first of them on.
    """
    last: dict[Node, Version] = {}
    first: Seq | None = None
    for _, version in VERSION.scan(txn, keys.store(store_no)):
        first = version.seq if first is None else first
        if version.created_at <= at:
            last[version.node] = version
    if first is None:
        return {}
    away = _away_at(txn, store_no, at, first)
    found: dict[NotePath, Version] = {}
    for version in sorted(last.values(), key=lambda version: version.seq):
        if version.sha256 is not None and version.path is not None and version.node not in away:
            found[NotePath(version.path)] = version
    return found


def _away_at(txn: Txn, store_no: StoreNo, at: Time, first: Seq) -> set[Node]:
    """Return the notes that were archived at a time."""
    away: set[Node] = set()
    for _, row in CHANGE.scan(txn, start=keys.pack_u64(first)):
        if row.store != store_no or row.kind is not ChangeKind.ARCHIVE or row.at > at:
            continue
        if _is_leaving(row):
            away.add(row.node)
        else:
            away.discard(row.node)
    return away


def _is_leaving(row: Change) -> bool:
    """Whether an ARCHIVE row is of a note that left the tree; one that came back has an entry."""
    return row.parent == 0


def snapshot_at(txn: Txn, store_no: StoreNo, at: Time) -> Snapshot:
    """Return the paths of a store's notes at a time, each with the seq of its version."""
    found = tree_at(txn, store_no, at)
    return Snapshot(_stamp(txn), Paths((path, version.seq) for path, version in found.items()))


def departed(txn: Txn, store_no: StoreNo) -> Snapshot:
    """Return the last paths of deleted and archived notes, each with its node.

    A note whose `deleted` version was redacted has no path any more.
    """
    pairs: list[tuple[str, int]] = []
    prefix = keys.by_operation(store_no, Operation.DELETED, Seq(0))[:-8]
    for key, _ in txn.scan("by_operation", prefix):
        version = VERSION.get(txn, keys.in_store(store_no, keys.u64(key)))
        if version is not None and version.path is not None:
            pairs.append((version.path, version.node))
    for key, _ in txn.scan("archived", keys.store(store_no)):
        info = NODE.get(txn, keys.node(Node(keys.parse_in_store(key)[1])))
        if info is not None:
            pairs.append((info.name, info.node))
    return Snapshot(_stamp(txn), Paths(pairs))


def still(
    txn: Txn, store_no: StoreNo, snapshot: Snapshot, at: Time | None = None
) -> Snapshot | None:
    """Return a snapshot, stamped anew, if reading it again would give the same; else None.

    at: the time it was read for by `snapshot_at`; None for one by `departed`.
    Bounded: after many changes the answer is None, too.
    """
    rows = change.read(txn, snapshot.stamp.seq, limits.SCAN_BATCH)
    if len(rows) == limits.SCAN_BATCH or any(
        row.store == store_no and _concerns(row, at) for row in rows
    ):
        return None
    # retention removes versions and writes no row: only then do the numbers not add up
    written = sum(row.kind is ChangeKind.NOTE for row in rows)
    now = _stamp(txn)
    if now.versions != snapshot.stamp.versions + written:
        return None
    return Snapshot(now, snapshot.paths)


def _concerns(row: Change, at: Time | None) -> bool:
    if row.kind in (ChangeKind.REDACT, ChangeKind.PURGE, ChangeKind.STORE):
        return True
    if at is None:
        return row.kind is ChangeKind.ARCHIVE or row.operation is Operation.DELETED
    return row.kind in (ChangeKind.NOTE, ChangeKind.ARCHIVE) and row.at <= at


def _stamp(txn: Txn) -> Stamp:
    return Stamp(change.last_seq(txn), txn.count("version"))


def version_at(txn: Txn, store_no: StoreNo, seq: int) -> Version:
    """Return the version with a text that a change wrote.

    Raises: NotFound, also when it was redacted or expired.
    """
    version = VERSION.get(txn, keys.in_store(store_no, seq))
    if version is None or version.sha256 is None:
        raise NotFound("the version was removed or redacted: look again with ls")
    return version


def text_at(txn: Txn, store_no: StoreNo, seq: int) -> bytes:
    """Return the text of the version that a change wrote.

    Raises: NotFound.
    """
    version = version_at(txn, store_no, seq)
    return b"" if version.sha256 is None else content.get(txn, version.sha256)


def is_history(txn: Txn, store_no: StoreNo, names: tuple[str, ...], gone: Paths) -> bool:
    """Return whether a note or folder is, or a departed note was, at or below a path."""
    if gone.numbers(names) or gone.has_below(names):
        return True
    return trees.resolve(txn, stores.by_no(txn, store_no), names) is not None


def notes_at(txn: Txn, store_no: StoreNo, names: tuple[str, ...], gone: Paths) -> list[Node]:
    """Return the note at a path and the departed ones that were last there, oldest first."""
    nodes = {Node(number) for number in gone.numbers(names)}
    info = trees.resolve(txn, stores.by_no(txn, store_no), names)
    if info is not None and info.note is not None:
        nodes.add(info.node)
    return sorted(nodes)


def history(
    txn: Txn, store_no: StoreNo, names: tuple[str, ...], gone: Paths
) -> tuple[set[str], list[Version]]:
    """Return the names below a path, and the versions with a text of the notes at it.

    Raises: NotFound.
    """
    if not is_history(txn, store_no, names, gone):
        raise NotFound("no note or folder is or was there: look again with ls")
    below = {name for name, _ in gone.children(names)}
    info = trees.resolve(txn, stores.by_no(txn, store_no), names)
    if info is not None and info.note is None:
        below.update(name for name, _, _ in trees.entries(txn, store_no, info.node))
    kept = [
        version
        for node in notes_at(txn, store_no, names, gone)
        for version in versions.of_note(txn, store_no, node)
        if version.sha256 is not None
    ]
    return below, kept


def refused_at(txn: Txn, store_no: StoreNo, n: int) -> Refused:
    """Return what is known about a refused text.

    Raises: NotFound.
    """
    refused = REFUSED.get(txn, keys.in_store(store_no, n)) if 0 < n < 2**64 else None
    if refused is None:
        raise NotFound(f"no refused text {n}: list them with `memfs refused list`")
    return refused


def recent(txn: Txn, store_no: StoreNo, limit: int) -> list[Line]:
    """Return the last changes of a store in words, oldest first.

    Goes back through the change log until it has them all or meets the making of the store.
    """
    store = stores.by_no(txn, store_no)
    lines: list[Line] = []
    for _, row in CHANGE.scan(txn, reverse=True):
        if row.store != store_no:
            continue
        lines.append(_line(txn, row))
        made = row.kind is ChangeKind.STORE and row.at == store.created_at
        if len(lines) == limit or made:
            break
    lines.reverse()
    return lines


def _line(txn: Txn, row: Change) -> Line:
    """Return a row in words."""
    what, where, detail = row.kind.name.lower(), row.subject, ""
    match row.kind:
        case ChangeKind.NOTE:
            what = what if row.operation is None else row.operation.word
            version = VERSION.get(txn, keys.in_store(row.store, row.seq))
            where = row.subject if version is None or version.path is None else version.path
        case ChangeKind.ARCHIVE:
            what = "archived" if _is_leaving(row) else "unarchived"
        case ChangeKind.FOLDER:
            where = _path_of(txn, row)
        case ChangeKind.ATTR:
            # not the row's name: it outlives redaction and purge
            info = NODE.get(txn, keys.node(row.node))
            where = "-" if info is None else trees.path_of(txn, info)
        case ChangeKind.REDACT:
            what = "redacted"
        case ChangeKind.PURGE:
            what = "purged"
        case ChangeKind.REFUSED:
            refused = REFUSED.get(txn, keys.in_store(row.store, int(row.subject)))
            if refused is not None:
                where, detail = refused.path, refused.reason
        case _:
            pass
    return Line(row.at, row.actor, what, where, detail)


def _path_of(txn: Txn, row: Change) -> str:
    """Return where a row's entry is or was; a name alone when its folder is gone."""
    parent = NODE.get(txn, keys.node(row.parent))
    if row.parent == 0 or parent is None:
        return row.name or "/"
    above = trees.path_of(txn, parent)
    return f"{above if above != '/' else ''}/{row.name}"
