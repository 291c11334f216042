"""Notes: create, update, rename, delete, archive, purge (SEMANTICS: Notes).

Order of checks, at every door: exists, store archived, shape (made by the argument types), state
already as asked, precondition, path conflict, limits; then the first write. A rule that raises has
changed nothing.
"""

from collections.abc import Iterator
from itertools import islice

from memfs import ids
from memfs.engine import log, stores, tree, versions
from memfs.engine import path as paths
from memfs.engine.secrets import Scanner, screen
from memfs.errors import Invalid, NotFound, PreconditionFailed
from memfs.store import change, content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE
from memfs.types import (
    NO_NODE,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NoteId,
    NoteInfo,
    NotePath,
    Operation,
    Page,
    Seq,
    Sha256,
    Store,
    Text,
    Time,
    VersionId,
    evolve,
)


def get(txn: Txn, store_id: str, note_id: str) -> NodeInfo:
    """Return a living or archived note of a store.

    Raises: NotFound.
    """
    store = stores.get(txn, store_id)
    node = ids.number(note_id, "mem_")
    if node is not None:
        info = NODE.get(txn, keys.pack_u64(node))
        if (
            info is not None
            and info.store == store.no
            and info.note is not None
            and info.note.id == note_id
        ):
            return info
    raise NotFound(f"no note {note_id!r} in memory store {store.name!r}: list it with `memfs ls`")


def at(txn: Txn, store_id: str, path: NotePath) -> NodeInfo:
    """Return the note at a path.

    Raises: NotFound.
    """
    store = stores.get(txn, store_id)
    info = tree.resolve(txn, store, paths.segments(path))
    if info is None or info.note is None:
        raise NotFound(f"no note {path} in memory store {store.name!r}: list it with `memfs ls`")
    return info


def note_of(info: NodeInfo) -> NoteInfo:
    """Return the note of a node that is known to be one."""
    if info.note is None:
        raise NotFound(f"{info.name!r} is a folder, not a note")
    return info.note


def text(txn: Txn, sha256: Sha256) -> bytes:
    """Return the text with that sha256, of a note's head or of any version.

    Raises: Corrupt.
    """
    return content.get(txn, sha256)


def text_of(txn: Txn, info: NodeInfo) -> bytes:
    """Return a note's text."""
    return content.get(txn, note_of(info).sha256)


def create(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    path: NotePath,
    text: Text,
    mode: int = tree.NOTE_MODE,
    mtime: Time | None = None,
) -> NodeInfo:
    """Make a new note and return it; never overwrites. mtime None: now.

    Raises: NotFound, StoreArchived, PathConflict, LimitReached, NoSpace.
    """
    store = stores.get(txn, store_id)
    stores.check_live(store)
    tree.check_free(txn, store, path)
    stores.check_room(store)
    txn.require_space()
    tree.remove_empty_folder(txn, store, path)
    *folders, name = paths.segments(path)
    parent = tree.make_folders(txn, caller, now, store, tuple(folders))
    return place(txn, caller, now, store, parent, name, path, text, mode, mtime)


def place(
    txn: Txn,
    caller: Caller,
    now: Time,
    store: Store,
    parent: Node,
    name: str,
    path: NotePath,
    text: Text,
    mode: int = tree.NOTE_MODE,
    mtime: Time | None = None,
) -> NodeInfo:
    """Write a new note at a free entry of an existing folder and return it."""
    info = NodeInfo(
        node=Node(txn.next("node")),
        store=store.no,
        parent=parent,
        name=name,
        mode=mode & 0o777,
        mtime=now if mtime is None else mtime,
        ctime=now,
    )
    fresh = NoteInfo(
        id=NoteId(ids.new("mem_", info.node)),
        version_id=VersionId(""),
        sha256=Sha256(""),
        size_bytes=0,
        created_at=now,
        updated_at=now,
        ordinal=0,
        head_seq=Seq(0),
    )
    stores.adjust_notes(txn, store, 1)
    tree.touch(txn, parent, now)
    return _write(txn, caller, now, info, fresh, Operation.CREATED, path, text)


def update(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    note_id: str,
    text: Text | None = None,
    path: NotePath | None = None,
    expected: Sha256 | None = None,
) -> NodeInfo:
    """Give a note a new text, a new path or both, as one version, and return it.

    Already as asked: the note comes back unchanged, even if *expected* is stale.
    expected: sha256 the caller last saw; None accepts any.
    Raises: NotFound, StoreArchived, PreconditionFailed, PathConflict, NoSpace.
    """
    info = get(txn, store_id, note_id)
    store = stores.get(txn, store_id)
    stores.check_live(store)
    _check_active(info)
    note, here = note_of(info), tree.path_of(txn, info)
    if (text is None or text.sha256 == note.sha256) and (path is None or path == here):
        return info
    check_expected(note, expected)
    if path is not None and path != here:
        tree.check_free(txn, store, path, ignore=info.node)
    if text is not None and text.sha256 != note.sha256:
        txn.require_space()
    if path is None or path == here:
        info = evolve(info, mtime=now)
        return modify(txn, caller, now, info, here, text)
    return _move(txn, caller, now, store, info, path, text)


def modify(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    path: NotePath,
    text: Text | None,
    old: tuple[Node, str] = (NO_NODE, ""),
) -> NodeInfo:
    """Write one `modified` version of a note whose record is *info* and return it."""
    return _write(txn, caller, now, info, note_of(info), Operation.MODIFIED, path, text, old)


def delete(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    note_id: str,
    expected: Sha256 | None = None,
) -> None:
    """End a note with a `deleted` version; its path is free, its history stays. Archived too.

    Raises: NotFound, PreconditionFailed.
    """
    info = get(txn, store_id, note_id)
    check_expected(note_of(info), expected)
    end(txn, caller, now, info)
    if info.parent != 0:
        tree.prune(txn, caller, now, info.parent)


def end(txn: Txn, caller: Caller, now: Time, info: NodeInfo, *, keep_folder: bool = False) -> None:
    """Write a note's `deleted` version and take it out of the tree."""
    note, path = note_of(info), tree.path_of(txn, info)
    seq = change.next_seq(txn)
    if info.parent != 0:
        tree.remove(txn, info)
        tree.touch(txn, info.parent, now, keep=keep_folder)
        stores.adjust_notes(txn, stores.by_no(txn, info.store), -1)
    else:
        NODE.delete(txn, keys.node(info.node))
        txn.delete("archived", keys.in_store(info.store, info.node))
    last = evolve(
        note, version_id=VersionId(ids.new("memver_", seq)), ordinal=note.ordinal + 1, head_seq=seq
    )
    versions.add(txn, caller, now, info, last, Operation.DELETED, path)
    log.record_node(txn, caller, now, ChangeKind.NOTE, info, operation=Operation.DELETED)


def archive(
    txn: Txn, caller: Caller, now: Time, store_id: str, note_id: str, reason: str
) -> NodeInfo:
    """Take a note out of the tree and of recall, keeping it and its versions; again: unchanged.

    Raises: NotFound, StoreArchived, Invalid (reason).
    """
    info = get(txn, store_id, note_id)
    store = stores.get(txn, store_id)
    stores.check_live(store)
    if not 1 <= len(reason) <= 500:
        raise Invalid("an archive reason has 1 to 500 characters")
    if info.parent == 0:
        return info
    note = evolve(note_of(info), archived_at=now, archive_reason=reason)
    away = evolve(info, parent=NO_NODE, name=tree.path_of(txn, info), note=note, ctime=now)
    tree.unlink(txn, info)
    tree.put(txn, away)
    txn.put("archived", keys.in_store(store.no, info.node), b"")
    stores.adjust_notes(txn, store, -1)
    tree.touch(txn, info.parent, now)
    tree.prune(txn, caller, now, info.parent)
    log.record_node(txn, caller, now, ChangeKind.ARCHIVE, info, named=False)
    return away


def unarchive(txn: Txn, caller: Caller, now: Time, store_id: str, note_id: str) -> NodeInfo:
    """Bring an archived note back to its path; a living one comes back unchanged.

    Raises: NotFound, StoreArchived, PathConflict (its path was taken), LimitReached.
    """
    info = get(txn, store_id, note_id)
    store = stores.get(txn, store_id)
    stores.check_live(store)
    if info.parent != 0:
        return info
    path = NotePath(info.name)
    tree.check_free(txn, store, path)
    stores.check_room(store)
    tree.remove_empty_folder(txn, store, path)
    *folders, name = paths.segments(path)
    parent = tree.make_folders(txn, caller, now, store, tuple(folders))
    note = evolve(note_of(info), archived_at=None, archive_reason=None)
    back = evolve(info, parent=parent, name=name, note=note, ctime=now)
    txn.delete("archived", keys.in_store(store.no, info.node))
    tree.link(txn, back)
    stores.adjust_notes(txn, store, 1)
    tree.touch(txn, parent, now)
    log.record_node(txn, caller, now, ChangeKind.ARCHIVE, back)
    return back


def list_archived(txn: Txn, store_id: str, after: Node = NO_NODE) -> Iterator[NodeInfo]:
    """Yield a store's archived notes that were made after the note *after*, oldest first."""
    store = stores.get(txn, store_id)
    start = keys.in_store(store.no, after + 1)
    for key, _ in txn.scan("archived", keys.store(store.no), start):
        yield tree.get(txn, Node(keys.parse_in_store(key)[1]))


def archived_page(
    txn: Txn, store_id: str, limit: int = 20, after: str | None = None
) -> Page[tuple[NotePath, NodeInfo]]:
    """Return archived notes, oldest first; after is a number from the page before.

    Raises: NotFound (the store).
    """
    found = list(islice(list_archived(txn, store_id, Node(int(after or 0))), limit + 1))
    items = [(tree.path_of(txn, info), info) for info in found[:limit]]
    return Page(items, str(found[limit - 1].node) if len(found) > limit else None)


def restore(
    txn: Txn, caller: Caller, now: Time, store_id: str, version_id: str, scanner: Scanner
) -> NodeInfo:
    """Write an old version's text as a new version and return the note.

    A note that was deleted comes back as a new note at the version's path; an archived one must be
    brought back first. scanner: what counts as a credential now; more may than when it was written.
    Raises: NotFound, Invalid (the version has no text), SecretRefused, PathConflict, LimitReached,
    NoSpace.
    """
    version = versions.get(txn, store_id, version_id)
    stores.check_live(stores.by_no(txn, version.store))
    if version.redacted_at is not None:
        raise Invalid(
            f"version {version.id} was redacted and its text is gone for good: restore another "
            "version of the note, see `memfs log`"
        )
    if version.sha256 is None or version.path is None:
        raise Invalid(f"version {version.id} is the deletion: restore the version before it")
    text = screen(content.get(txn, version.sha256), scanner)
    if NODE.get(txn, keys.node(version.node)) is None:
        return create(txn, caller, now, store_id, NotePath(version.path), text)
    return update(txn, caller, now, store_id, version.note_id, text)


def purge(txn: Txn, caller: Caller, now: Time, store_id: str, note_id: str) -> None:
    """Remove a note with every version and refused text of it; only the change rows stay.

    Raises: NotFound.
    """
    store = stores.get(txn, store_id)
    node = Node(ids.number(note_id, "mem_") or 0)
    if versions.newest_of(txn, store.no, node, note_id) is None:
        raise NotFound(f"no note {note_id!r} in memory store {store.name!r}")
    info = NODE.get(txn, keys.node(node))
    if info is not None and info.parent != 0:
        tree.remove(txn, info)
        tree.touch(txn, info.parent, now)
        stores.adjust_notes(txn, store, -1)
        tree.prune(txn, caller, now, info.parent)
    elif info is not None:
        NODE.delete(txn, keys.node(node))
        txn.delete("archived", keys.in_store(store.no, node))
    versions.forget_note(txn, store, node)
    log.record(txn, caller, now, ChangeKind.PURGE, store.no, subject=note_id, node=node)


def list_page(
    txn: Txn,
    store_id: str,
    prefix: tuple[str, ...] = (),
    depth: int = 0,
    limit: int = 20,
    after: str | None = None,
) -> Page[tuple[NotePath, NodeInfo]]:
    """Return notes (and with depth 1 the folders that hold notes) below *prefix*, in name order.

    after: the last path of the page before; a folder's ends in a slash.
    Raises: NotFound (the store). A missing prefix is an empty page.
    """
    store = stores.get(txn, store_id)
    top = tree.resolve(txn, store, prefix)
    if top is None or top.note is not None:
        return Page([], None)
    base = "/" + "".join(f"{name}/" for name in prefix)
    rest: tuple[str, ...] = ()
    if after is not None and after.startswith(base):
        rest = tuple(after[len(base) :].rstrip("/").split("/"))
    items: list[tuple[NotePath, NodeInfo]] = []
    for found in _walk(txn, top, base, depth, rest):
        if len(items) == limit:
            return Page(items, items[-1][0])
        items.append(found)
    return Page(items, None)


def _walk(
    txn: Txn, folder: NodeInfo, base: str, depth: int, after: tuple[str, ...]
) -> Iterator[tuple[NotePath, NodeInfo]]:
    skip = after[0] if after else ""
    if len(after) > 1 and depth == 0:
        inside = tree.child(txn, folder.store, folder.node, skip)
        if inside is not None and inside.note is None:
            yield from _walk(txn, inside, f"{base}{skip}/", depth, after[1:])
    for name, node, kind in tree.entries(txn, folder.store, folder.node, skip):
        info = tree.get(txn, node)
        if kind == keys.NOTE:
            yield NotePath(base + name), info
        elif depth == 0:
            yield from _walk(txn, info, f"{base}{name}/", depth, ())
        elif next(tree.notes_below(txn, info), None) is not None:
            yield NotePath(f"{base}{name}/"), info


def check_expected(note: NoteInfo, expected: Sha256 | None) -> None:
    """Raise PreconditionFailed unless the note's text is the expected one."""
    if expected is not None and expected != note.sha256:
        raise PreconditionFailed(f"note {note.id} was changed since: read it again, then write")


def _check_active(info: NodeInfo) -> None:
    if info.parent == 0:
        raise Invalid(f"note {note_of(info).id} is archived: bring it back before changing it")


def _move(
    txn: Txn,
    caller: Caller,
    now: Time,
    store: Store,
    info: NodeInfo,
    path: NotePath,
    text: Text | None,
) -> NodeInfo:
    tree.unlink(txn, info)
    tree.touch(txn, info.parent, now)
    tree.remove_empty_folder(txn, store, path)
    *folders, name = paths.segments(path)
    parent = tree.make_folders(txn, caller, now, store, tuple(folders))
    mtime = info.mtime if text is None else now
    moved = evolve(info, parent=parent, name=name, mtime=mtime)
    tree.touch(txn, parent, now)
    result = modify(txn, caller, now, moved, path, text, (info.parent, info.name))
    tree.prune(txn, caller, now, info.parent)
    return result


def _write(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    note: NoteInfo,
    operation: Operation,
    path: NotePath,
    text: Text | None,
    old: tuple[Node, str] = (NO_NODE, ""),
) -> NodeInfo:
    """Write a version, the note's record and entry, and the change row. text None: as it is."""
    seq = change.next_seq(txn)
    if text is None:
        content.add_again(txn, note.sha256)
        sha256, size_bytes = note.sha256, note.size_bytes
    else:
        content.add(txn, text)
        sha256, size_bytes = text.sha256, text.size_bytes
    changed = evolve(
        note,
        version_id=VersionId(ids.new("memver_", seq)),
        sha256=sha256,
        size_bytes=size_bytes,
        updated_at=now,
        ordinal=note.ordinal + 1,
        head_seq=seq,
    )
    versions.add(txn, caller, now, info, changed, operation, path)
    written = evolve(info, note=changed, ctime=now)
    if operation is Operation.MODIFIED and old == (NO_NODE, ""):
        tree.put(txn, written)  # its entry is as it was
    else:
        tree.link(txn, written)
    log.record_node(txn, caller, now, ChangeKind.NOTE, written, operation=operation, old=old)
    return written
