"""What a mount asks of the engine: rules by folder and name instead of by path (SEMANTICS: Mount).

They end in the same versions, conflicts and limits as `notes`; what differs is what POSIX wants:
a rename may replace, a folder may be empty, a save knows the text it started from.
"""

from collections.abc import Iterable

from memfs.engine import log, notes, saves, stores, tree
from memfs.engine.saves import Backup
from memfs.engine.secrets import Scanner, screen
from memfs.errors import (
    FolderNotEmpty,
    Invalid,
    IsAFolder,
    NotAFolder,
    NotFound,
    PreconditionFailed,
)
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, VERSION
from memfs.types import (
    NO_NODE,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NoteId,
    NotePath,
    Record,
    Sha256,
    Store,
    StoreNo,
    Text,
    Time,
    evolve,
)


class Save(Record, frozen=True):
    """A file's text on its way into a note.

    base: sha256 of the text the file started from, None if it started from nothing.
    tail: what was appended to it, when nothing but appends was done; None otherwise.
    """

    text: Text
    base: Sha256 | None
    tail: bytes | None
    mode: int
    mtime: Time


class Seen(Record, frozen=True):
    """The text of a note that a task last opened, for the lost-update guard."""

    note_id: NoteId
    sha256: Sha256


def check_create(txn: Txn, store_no: StoreNo, parent: Node, name: str) -> None:
    """Check that a new note or folder may be made at an entry.

    Raises: StoreArchived, LimitReached, InvalidPath, NotFound (the folder).
    """
    store = stores.by_no(txn, store_no)
    stores.check_live(store)
    tree.check_fits(txn, parent, name)
    stores.check_room(store)
    txn.require_space()


def check_new_files_fit(
    txn: Txn, folder: Node, parent: Node, name: str, places: Iterable[tuple[Node, str]]
) -> None:
    """Check that new files below a folder, not committed yet, may move along with it.

    places: folder and name of each new file of the store, wherever it is.
    Raises: InvalidPath, NameTooLong, NotFound (the new parent).
    """
    above = tree.path_of(txn, tree.get(txn, parent))
    top = f"{above if above != '/' else ''}/{name}"
    for place, new_name in places:
        names, node = [new_name], place
        while node not in (folder, NO_NODE):
            info = NODE.get(txn, keys.node(node))
            if info is None:  # removed under the file
                break
            names.append(info.name)
            node = info.parent
        if node == folder:
            tree.check_moved("/".join((top, *reversed(names))))


def check_guard(txn: Txn, caller: Caller, info: NodeInfo, seen: Seen | None) -> None:
    """Check that nobody else changed a note since the caller's task last opened it.

    Raises: PreconditionFailed.
    """
    note = notes.note_of(info)
    if seen is None or seen.note_id != note.id or seen.sha256 == note.sha256:
        return
    head = VERSION.get(txn, keys.in_store(info.store, note.head_seq))
    if head is None or head.created_by != caller.actor:
        raise PreconditionFailed(
            f"{tree.path_of(txn, info)} was changed since this task opened it: read it again, "
            "then write"
        )


def save(txn: Txn, caller: Caller, now: Time, node: Node, save: Save, scanner: Scanner) -> NodeInfo:
    """Commit a file's text as its note's head and return the note. Same text: no version.

    Another head than the base: appends are put behind it, anything else is refused.
    Raises: PreconditionFailed, StoreArchived, NoSpace; for moved appends also what screen raises.
    """
    info = NODE.get(txn, keys.node(node))
    if info is None or info.note is None or info.parent == 0:
        raise PreconditionFailed("the note was deleted meanwhile: the text is in .memfs/refused")
    stores.check_live(stores.by_no(txn, info.store))
    text = save.text
    if info.note.sha256 not in (save.base, text.sha256):
        text = _rebase(txn, info, save, scanner)
    return _replace_text(txn, caller, now, info, text, save.mode, save.mtime)


def save_new(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_no: StoreNo,
    parent: Node,
    name: str,
    save: Save,
    scanner: Scanner,
    waiting: Node | None = None,
    backup: Backup | None = None,
) -> NodeInfo:
    """Commit a new file's text as a new note and return it.

    waiting: a note of this name that was moved to a scratch name; the file continues it. backup:
    the same for one that was moved to a backup's name.
    Raises: as save; PreconditionFailed also when somebody else made that note meanwhile.
    """
    store = _store_of_folder(txn, store_no, parent)
    there = tree.child(txn, store_no, parent, name)
    if there is None:
        return _place(txn, caller, now, store, parent, name, save, backup)
    note = _note(there)
    text = save.text
    if there.node != waiting and note.sha256 != text.sha256:
        text = _rebase(txn, there, save, scanner)
    elif there.node == waiting and note.sha256 not in (save.base, text.sha256):
        raise _changed(txn, there)
    return _replace_text(txn, caller, now, there, text, save.mode, save.mtime)


def install(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_no: StoreNo,
    parent: Node,
    name: str,
    save: Save,
    seen: Seen | None = None,
    backup: Backup | None = None,
    *,
    replace: bool = True,
) -> NodeInfo:
    """Commit the text of a scratch file that is being renamed to an ordinary name.

    A note of that name keeps its id and history; otherwise it becomes a new note, or continues the
    one whose backup is given. replace False: there may be none.
    Raises: PreconditionFailed (the guard), PathConflict, IsAFolder, StoreArchived, LimitReached,
    NoSpace.
    """
    store = _store_of_folder(txn, store_no, parent)
    there = tree.child(txn, store_no, parent, name)
    if there is None:
        return _place(txn, caller, now, store, parent, name, save, backup)
    _note(there)
    if not replace:
        raise tree.conflict(txn, there, tree.path_of(txn, there))
    check_guard(txn, caller, there, seen)
    return _replace_text(txn, caller, now, there, save.text, save.mode, save.mtime)


def unlink(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_no: StoreNo,
    parent: Node,
    name: str,
    expected: Sha256 | None = None,
) -> NodeInfo:
    """Delete the note at an entry and return what it was; its folder stays, even if empty.

    Raises: NotFound, IsAFolder, PreconditionFailed.
    """
    info = _existing(txn, store_no, parent, name)
    notes.check_expected(_note(info), expected)
    notes.end(txn, caller, now, info, keep_folder=True)
    return info


def make_folder(
    txn: Txn, caller: Caller, now: Time, store_no: StoreNo, parent: Node, name: str, mode: int
) -> NodeInfo:
    """Make a folder that stays until it is removed and return it.

    Raises: PathConflict (the name is taken), StoreArchived, InvalidPath, NoSpace.
    """
    store = _store_of_folder(txn, store_no, parent)
    path = tree.check_fits(txn, parent, name)
    there = tree.child(txn, store_no, parent, name)
    if there is not None:
        raise tree.conflict(txn, there, path)
    txn.require_space()
    node = Node(txn.next("node"))
    info = NodeInfo(node, store.no, parent, name, mode & 0o777, now, now, kept=True)
    tree.link(txn, info)
    tree.touch(txn, parent, now)
    log.record_node(txn, caller, now, ChangeKind.FOLDER, info)
    return info


def remove_folder(
    txn: Txn, caller: Caller, now: Time, store_no: StoreNo, parent: Node, name: str
) -> NodeInfo:
    """Remove an empty folder and return what it was; its parent stays, even if empty.

    Raises: NotFound, NotAFolder, FolderNotEmpty.
    """
    info = _existing(txn, store_no, parent, name)
    _check_empty_folder(txn, info)
    tree.remove(txn, info)
    tree.touch(txn, parent, now, keep=True)
    log.record_node(txn, caller, now, ChangeKind.FOLDER, info)
    return info


def rename(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_no: StoreNo,
    parent: Node,
    name: str,
    new_parent: Node,
    new_name: str,
    seen: Seen | None = None,
    backup: Backup | None = None,
    *,
    replace: bool = True,
    temporary: bool = False,
) -> NodeInfo:
    """Move a note or folder to another entry and return what is there now.

    Over a note: that note keeps its id and history and gets the text; the moved one is deleted.
    Over its own older backup: that one is deleted, since a save will bring the moved one back.
    A folder takes its notes along, each with a version. replace False: the entry must be free.
    backup: the note that was moved from the new entry to a backup's name; a temporary note's text
    continues it. temporary: see saves.leave.
    Raises: NotFound, PathConflict, IsAFolder, NotAFolder, FolderNotEmpty, PreconditionFailed (the
    guard), StoreArchived, InvalidPath.
    """
    _store_of_folder(txn, store_no, new_parent)
    info = _existing(txn, store_no, parent, name)
    if (parent, name) == (new_parent, new_name):
        return info
    path = tree.check_fits(txn, new_parent, new_name, info)
    there = tree.child(txn, store_no, new_parent, new_name)
    if there is not None and not replace:
        raise tree.conflict(txn, there, path)
    if info.note is None:
        return _rename_folder(txn, caller, now, info, new_parent, new_name, there)
    kept = saves.unchanged(txn, new_parent, backup) if temporary and there is None else None
    if there is not None:
        _note(there)
        check_guard(txn, caller, there, seen)
        if parent == new_parent and saves.is_backup_name(name, new_name):
            notes.end(txn, caller, now, there, keep_folder=True)
            there = None
    if there is None and kept is None:
        return _move(txn, caller, now, info, new_parent, new_name, path)
    text = Text(content.get(txn, info.note.sha256), info.note.sha256)
    txn.require_space()
    saves.leave(txn, caller, now, info, temporary=temporary)
    if kept is not None:
        mode, mtime = info.mode, info.mtime
        return saves.take_place(txn, caller, now, kept, new_name, path, text, mode, mtime)
    assert there is not None
    return _replace_text(txn, caller, now, there, text, info.mode, info.mtime)


def set_attr(
    txn: Txn,
    caller: Caller,
    now: Time,
    node: Node,
    mode: int | None = None,
    mtime: Time | None = None,
) -> NodeInfo:
    """Keep permission bits or a modification time with a note or folder, without a version.

    Raises: NotFound, StoreArchived.
    """
    info = tree.get(txn, node)
    stores.check_live(stores.by_no(txn, info.store))
    changed = evolve(
        info,
        mode=info.mode if mode is None else mode & 0o777,
        mtime=info.mtime if mtime is None else _fit(mtime),
    )
    if changed == info:
        return info
    changed = evolve(changed, ctime=now)
    tree.put(txn, changed)
    log.record_node(txn, caller, now, ChangeKind.ATTR, changed, named=False)
    return changed


def _place(
    txn: Txn,
    caller: Caller,
    now: Time,
    store: Store,
    parent: Node,
    name: str,
    save: Save,
    backup: Backup | None,
) -> NodeInfo:
    """Make a new note of a file's text at a free entry, or continue the one whose backup is given.

    Continuing makes a note too: of the backup.
    """
    path = tree.check_fits(txn, parent, name)
    stores.check_room(store)
    txn.require_space()
    kept = saves.unchanged(txn, parent, backup)
    if kept is not None:
        mtime = _fit(save.mtime)
        return saves.take_place(txn, caller, now, kept, name, path, save.text, save.mode, mtime)
    return notes.place(
        txn, caller, now, store, parent, name, path, save.text, save.mode, _fit(save.mtime)
    )


def _replace_text(
    txn: Txn, caller: Caller, now: Time, info: NodeInfo, text: Text, mode: int, mtime: Time
) -> NodeInfo:
    if text.sha256 == notes.note_of(info).sha256:
        return set_attr(txn, caller, now, info.node, mode, mtime)
    txn.require_space()
    info = evolve(info, mode=mode & 0o777, mtime=_fit(mtime))
    return notes.modify(txn, caller, now, info, tree.path_of(txn, info), text)


def _fit(mtime: Time) -> Time:
    """Return the nearest time that fits 64 bits: the years 1677 to 2262."""
    return Time(max(-(2**63), min(mtime, 2**63 - 1)))


def _rebase(txn: Txn, info: NodeInfo, save: Save, scanner: Scanner) -> Text:
    """Return the note's head with the file's appends behind it."""
    if save.tail is None:
        raise _changed(txn, info)
    return screen(content.get(txn, notes.note_of(info).sha256) + save.tail, scanner)


def _changed(txn: Txn, info: NodeInfo) -> PreconditionFailed:
    return PreconditionFailed(
        f"{tree.path_of(txn, info)} was changed meanwhile: the text is in .memfs/refused; read "
        "the note again and merge"
    )


def _move(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    parent: Node,
    name: str,
    path: NotePath,
) -> NodeInfo:
    tree.unlink(txn, info)
    tree.touch(txn, info.parent, now, keep=True)
    tree.touch(txn, parent, now)
    moved = evolve(info, parent=parent, name=name)
    return notes.modify(txn, caller, now, moved, path, None, (info.parent, info.name))


def _rename_folder(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    parent: Node,
    name: str,
    there: NodeInfo | None,
) -> NodeInfo:
    above = tree.get(txn, parent)
    while above.parent != 0:
        if above.node == info.node:
            raise Invalid(f"a folder cannot be moved into itself: {info.name!r}")
        above = tree.get(txn, above.parent)
    if there is not None:
        _check_empty_folder(txn, there)
        tree.remove(txn, there)
    tree.unlink(txn, info)
    tree.touch(txn, info.parent, now, keep=True)
    moved = evolve(info, parent=parent, name=name, ctime=now, kept=True)
    tree.link(txn, moved)
    tree.touch(txn, parent, now)
    log.record_node(txn, caller, now, ChangeKind.FOLDER, moved, old=(info.parent, info.name))
    for note in list(tree.notes_below(txn, moved)):
        notes.modify(txn, caller, now, note, tree.path_of(txn, note), None)
    return moved


def _store_of_folder(txn: Txn, store_no: StoreNo, parent: Node) -> Store:
    store = stores.by_no(txn, store_no)
    stores.check_live(store)
    folder = NODE.get(txn, keys.node(parent))
    if folder is None or folder.note is not None:
        raise NotFound("the folder was removed: make it again")
    return store


def _existing(txn: Txn, store_no: StoreNo, parent: Node, name: str) -> NodeInfo:
    info = tree.child(txn, store_no, parent, name)
    if info is None:
        raise NotFound(f"nothing is called {name!r} here: look again with ls")
    return info


def _note(info: NodeInfo) -> notes.NoteInfo:
    if info.note is None:
        raise IsAFolder(f"{info.name!r} is a folder, not a note")
    return info.note


def _check_empty_folder(txn: Txn, info: NodeInfo) -> None:
    if info.note is not None:
        raise NotAFolder(f"{info.name!r} is a note, not a folder")
    if not tree.is_empty(txn, info):
        raise FolderNotEmpty(f"folder {info.name!r} is not empty")
