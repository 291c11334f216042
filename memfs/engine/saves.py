"""Saves that go through names of their own: temporary files and backups (SEMANTICS: Saving).

A program that saves atomically makes a note beside the one it saves, for a moment; one that keeps a
backup moves the note away first. Either way the history that goes on is that of the saved path.
"""

from memfs.engine import log, notes, stores, tree, versions
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, VERSION
from memfs.types import (
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NotePath,
    Record,
    Text,
    Time,
    VersionId,
    evolve,
)

# what programs add to a name for a backup: sed and perl -i, patch, install, editors
_SUFFIXES = frozenset((".bak", ".BAK", ".orig", ".old", ".backup", ".save", ".prev"))


def is_backup_name(name: str, backup: str) -> bool:
    """Whether programs call the backup of *name* so; there what was called so before gives way."""
    return backup.startswith(name) and backup[len(name) :] in _SUFFIXES


class Backup(Record, frozen=True):
    """A note that was moved to a backup's name, as it was then."""

    node: Node
    version_id: VersionId


def leave(txn: Txn, caller: Caller, now: Time, info: NodeInfo, *, temporary: bool) -> None:
    """Take a note out of the tree whose text went into another.

    temporary: it was made for that; if it has but its first version, by the caller's actor, its
    record goes as a scratch file's would. Otherwise it gets its `deleted` version.
    """
    note = notes.note_of(info)
    first = VERSION.get(txn, keys.in_store(info.store, note.head_seq))
    if not temporary or note.ordinal != 1 or first is None or first.created_by != caller.actor:
        notes.end(txn, caller, now, info, keep_folder=True)
        return
    tree.remove(txn, info)
    tree.touch(txn, info.parent, now, keep=True)
    stores.adjust_notes(txn, stores.by_no(txn, info.store), -1)
    versions.forget(txn, info.store, info.node)
    log.record(txn, caller, now, ChangeKind.PURGE, info.store, subject=note.id, node=info.node)


def unchanged(txn: Txn, parent: Node, backup: Backup | None) -> NodeInfo | None:
    """Return the note of a backup, None if anything happened to it since, or it left *parent*."""
    info = None if backup is None else NODE.get(txn, keys.node(backup.node))
    if backup is None or info is None or info.note is None or info.parent != parent:
        return None
    return info if info.note.version_id == backup.version_id else None


def take_place(
    txn: Txn,
    caller: Caller,
    now: Time,
    info: NodeInfo,
    name: str,
    path: NotePath,
    text: Text,
    mode: int,
    mtime: Time,
) -> NodeInfo:
    """Give a backup's note its old name and a new text; the backup is a note of its own now.

    Check before: the name is free and fits, there is room for one more note and text.
    """
    note, backup_path = notes.note_of(info), tree.path_of(txn, info)
    old = Text(content.get(txn, note.sha256), note.sha256)
    tree.unlink(txn, info)
    back = evolve(info, name=name, mode=mode & 0o777, mtime=mtime)
    saved = notes.modify(txn, caller, now, back, path, text, (info.parent, info.name))
    store = stores.by_no(txn, info.store)
    notes.place(
        txn, caller, now, store, info.parent, info.name, backup_path, old, info.mode, info.mtime
    )
    return saved
