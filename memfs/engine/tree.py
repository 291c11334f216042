"""Folders and names: a store's tree of nodes, and where a path leads in it.

A path conflict is the tree's own truth: a name is one entry, and an entry is a folder or a note.
"""

from collections.abc import Iterator

from memfs import limits
from memfs.engine import log
from memfs.engine import path as paths
from memfs.errors import Corrupt, InvalidPath, NameTooLong, NotAFolder, NotFound, PathConflict
from memfs.store import keys
from memfs.store.env import Txn
from memfs.store.records import NODE
from memfs.types import (
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NotePath,
    Store,
    StoreNo,
    Time,
    evolve,
)

FOLDER_MODE = 0o755
NOTE_MODE = 0o644


def get(txn: Txn, node: Node) -> NodeInfo:
    """Return a node.

    Raises: NotFound.
    """
    info = NODE.get(txn, keys.node(node))
    if info is None:
        raise NotFound("it was deleted: look again with ls")
    return info


def put(txn: Txn, info: NodeInfo) -> None:
    """Write a node's record."""
    NODE.put(txn, keys.node(info.node), info)


def child(txn: Txn, store: StoreNo, parent: Node, name: str) -> NodeInfo | None:
    """Return what *name* is in the folder *parent*, or None."""
    key = keys.dentry(store, parent, name)
    # a longer name cannot be there, and would not fit into a key
    value = txn.get("dentry", key) if len(key) <= keys.DENTRY_BYTES else None
    if value is None:
        return None
    node, _ = keys.parse_dentry(value)
    info = NODE.get(txn, keys.node(node))
    if info is None:
        raise _leads_nowhere(keys.node(node))
    return info


def link(txn: Txn, info: NodeInfo) -> None:
    """Write a node's record and its entry in its parent."""
    kind = keys.FOLDER if info.note is None else keys.NOTE
    key = keys.dentry(info.store, info.parent, info.name)
    txn.put("dentry", key, keys.dentry_value(info.node, kind))
    put(txn, info)


def unlink(txn: Txn, info: NodeInfo) -> None:
    """Remove a node's entry from its parent; the record stays."""
    txn.delete("dentry", keys.dentry(info.store, info.parent, info.name))


def remove(txn: Txn, info: NodeInfo) -> None:
    """Remove a node's entry and record."""
    unlink(txn, info)
    NODE.delete(txn, keys.node(info.node))


def touch(txn: Txn, folder: Node, now: Time, *, keep: bool = False) -> None:
    """Note that an entry of *folder* came or went. keep: from now on it stays while empty."""
    info = get(txn, folder)
    put(txn, evolve(info, mtime=now, ctime=now, kept=info.kept or keep))


def entries(
    txn: Txn, store: StoreNo, folder: Node, after: str = ""
) -> Iterator[tuple[str, Node, int]]:
    """Yield (name, node, kind) of a folder's entries in byte order of names, after *after*."""
    start = keys.dentry(store, folder, after) + b"\0" if after else None
    for key, value in txn.scan("dentry", keys.entries(store, folder), start):
        node, kind = keys.parse_dentry(value)
        yield keys.dentry_name(key), node, kind


def list_folder(
    txn: Txn, store: StoreNo, folder: Node, after: str = "", limit: int = limits.SCAN_BATCH
) -> list[NodeInfo]:
    """Return up to *limit* nodes of a folder in byte order of names, after *after*."""
    start = keys.dentry(store, folder, after) + b"\0" if after else None
    rows = txn.values("dentry", keys.entries(store, folder), start, limit)
    wanted = [value[:8] for value in rows]  # a dentry's value begins with the node's key
    found = NODE.get_many(txn, wanted)
    if len(found) != len(wanted):
        raise _leads_nowhere(min(set(wanted) - {keys.node(info.node) for info in found}))
    return found


def _leads_nowhere(key: bytes) -> Corrupt:
    return Corrupt(f"an entry leads to node {keys.u64(key)}: run `memfs check`")


def is_empty(txn: Txn, info: NodeInfo) -> bool:
    """Return whether a folder has no entries."""
    return next(entries(txn, info.store, info.node), None) is None


def path_of(txn: Txn, info: NodeInfo) -> NotePath:
    """Return a node's path; an archived note's is the one it had."""
    if info.note is not None and info.parent == 0:
        return NotePath(info.name)
    names: list[str] = []
    while info.parent != 0:
        names.append(info.name)
        info = get(txn, info.parent)
    return NotePath("/" + "/".join(reversed(names)))


def resolve(txn: Txn, store: Store, segments: tuple[str, ...]) -> NodeInfo | None:
    """Return the node at a path, or None."""
    node = store.root
    for name in segments:
        value = txn.get("dentry", keys.dentry(store.no, node, name))
        if value is None:
            return None
        node, _ = keys.parse_dentry(value)
    return get(txn, node)


def notes_below(txn: Txn, info: NodeInfo) -> Iterator[NodeInfo]:
    """Yield every note below a folder, depth first in name order."""
    for _, node, kind in entries(txn, info.store, info.node):
        found = get(txn, node)
        if kind == keys.NOTE:
            yield found
        else:
            yield from notes_below(txn, found)


def folders_below(txn: Txn, info: NodeInfo) -> Iterator[NodeInfo]:
    """Yield every folder below a folder, deepest first."""
    for _, node, kind in entries(txn, info.store, info.node):
        if kind == keys.FOLDER:
            found = get(txn, node)
            yield from folders_below(txn, found)
            yield found


def check_free(txn: Txn, store: Store, path: NotePath, ignore: Node | None = None) -> None:
    """Check that a note may stand at *path*; empty folders do not count, nor does *ignore*.

    Raises: PathConflict, naming the note at, above or below the path.
    """
    node = store.root
    names = paths.segments(path)
    for depth, name in enumerate(names):
        value = txn.get("dentry", keys.dentry(store.no, node, name))
        if value is None:
            return
        node, kind = keys.parse_dentry(value)
        last = depth == len(names) - 1
        if kind == keys.NOTE:
            if node == ignore and last:
                return
            raise conflict(txn, get(txn, node), path)
        if last:
            below = next(notes_below(txn, get(txn, node)), None)
            if below is not None:
                raise conflict(txn, below, path)


def conflict(txn: Txn, info: NodeInfo, path: str) -> PathConflict:
    """Return the error for a note that stands in the way of *path*."""
    there = path_of(txn, info)
    note_id = "" if info.note is None else info.note.id
    if there == path:
        what = f"{path} exists already"
    else:
        what = f"{path} cannot be a note while {there} is one"
    return PathConflict(
        f"{what}: use another path, or update that note",
        note_id,
        there,
    )


def make_folders(txn: Txn, caller: Caller, now: Time, store: Store, names: tuple[str, ...]) -> Node:
    """Return the folder at a path, making what is missing. Call check_free before."""
    node = store.root
    for name in names:
        value = txn.get("dentry", keys.dentry(store.no, node, name))
        if value is not None:
            node, kind = keys.parse_dentry(value)
            if kind == keys.NOTE:
                raise NotAFolder(f"{name!r} is a note, not a folder")
            continue
        touch(txn, node, now)
        new = Node(txn.next("node"))
        info = NodeInfo(new, store.no, node, name, FOLDER_MODE, now, now)
        link(txn, info)
        log.record_node(txn, caller, now, ChangeKind.FOLDER, info)
        node = new
    return node


def remove_empty_folder(txn: Txn, store: Store, path: NotePath) -> None:
    """Make room for a note at *path* where a folder without notes stands."""
    info = resolve(txn, store, paths.segments(path))
    if info is None or info.note is not None:
        return
    for folder in folders_below(txn, info):
        remove(txn, folder)
    remove(txn, info)


def prune(txn: Txn, caller: Caller, now: Time, folder: Node) -> None:
    """Remove folders that became empty and that nobody asked to keep, from *folder* upwards."""
    info = get(txn, folder)
    while not info.kept and info.parent != 0 and is_empty(txn, info):
        remove(txn, info)
        log.record_node(txn, caller, now, ChangeKind.FOLDER, info)
        info = get(txn, info.parent)
        touch(txn, info.node, now)


def check_fits(txn: Txn, parent: Node, name: str, below: NodeInfo | None = None) -> NotePath:
    """Return the path of *name* in *parent*, checking it and all that moves along below it.

    Raises: InvalidPath, NameTooLong.
    """
    if "/" in name:
        raise InvalidPath(f"{name!r} is more than one name: leave out the '/'")
    top = path_of(txn, get(txn, parent))
    new = paths.parse(f"{top if top != '/' else ''}/{name}")
    if below is None or below.note is not None:
        return new
    old = path_of(txn, below)
    for found in (*folders_below(txn, below), *notes_below(txn, below)):
        check_moved(new + path_of(txn, found)[len(old) :])
    return new


def check_moved(path: str) -> None:
    """Check the length of the path that something gets when a folder above it moves.

    Raises: InvalidPath, NameTooLong.
    """
    if len(path.encode()) > limits.PATH_BYTES:
        raise NameTooLong(f"{path} would exceed {limits.PATH_BYTES} bytes: shorten a name")
    if path.count("/") > limits.PATH_SEGMENTS:
        raise InvalidPath(f"{path} would exceed {limits.PATH_SEGMENTS} segments")
