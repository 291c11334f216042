"""One attachment while it is mounted: what only this task sees or remembers."""

import os
from typing import NamedTuple

from memfs.engine.saves import Backup
from memfs.engine.tasks import caller_of
from memfs.fs.control import Control
from memfs.fs.inodes import Inode
from memfs.types import Access, Attachment, Node, NoteId, Sha256, Task

_BACKUPS = 64  # moves to a backup's name that are remembered; a save follows at once


class Waiting:
    """A note that was renamed to a scratch name: hidden here, unchanged in the store.

    A new file at its path continues it; removing the scratch copy first deletes it.
    """

    __slots__ = ("copy", "node", "sha256")

    def __init__(self, node: Node, sha256: Sha256, copy: Inode) -> None:
        self.node = node
        self.sha256 = sha256
        self.copy = copy


class Moved(NamedTuple):
    """Where a note went that was moved to a backup's name."""

    backup: Backup
    name: str


class Attached:
    """State of a mounted attachment."""

    def __init__(self, task: Task, attachment: Attachment, folder: Control) -> None:
        self.task = task
        self.attachment = attachment
        self.no = attachment.no
        self.store = attachment.store
        self.caller = caller_of(task, attachment)
        self.read_only = attachment.access is Access.READ_ONLY
        self.uid = os.getuid() if task.uid is None else task.uid
        self.gid = os.getgid() if task.gid is None else task.gid
        self.folder = folder  # .memfs
        self.by_node: dict[Node, Inode] = {}  # the inode that a note's or folder's name leads to
        self.control: dict[tuple[str, ...], Inode] = {}
        self.fresh: dict[Node, dict[str, Inode]] = {}  # new and scratch files by folder and name
        self.hidden: dict[tuple[Node, str], Waiting] = {}
        self.backups: dict[tuple[Node, str], Moved] = {}  # by the entry that a note was moved from
        self.seen: dict[NoteId, Sha256] = {}  # texts this task opened, for the guard
        self.scratch_bytes = 0

    def note_backup(self, parent: Node, name: str, moved: Moved) -> None:
        """Remember that a note was moved away to make room for what is saved at its entry."""
        self.backups[parent, name] = moved
        if len(self.backups) > _BACKUPS:
            del self.backups[next(iter(self.backups))]

    def backup_at(self, parent: Node, name: str) -> Backup | None:
        """Return the backup of the note that was at an entry, unless somebody is writing in it."""
        moved = self.backups.get((parent, name))
        if moved is None:
            return None
        inode = self.by_node.get(moved.backup.node)
        is_written = inode is not None and inode.file is not None and inode.file.writers > 0
        return None if is_written else moved.backup

    def fresh_at(self, parent: Node, name: str) -> Inode | None:
        """Return the new or scratch file at an entry, or None."""
        there = self.fresh.get(parent)
        return None if there is None else there.get(name)

    def put_fresh(self, inode: Inode, parent: Node, name: str) -> None:
        """Give a new or scratch file its entry."""
        inode.place = (parent, name)
        self.fresh.setdefault(parent, {})[name] = inode

    def take_fresh(self, inode: Inode) -> None:
        """Take a new or scratch file's entry away."""
        if inode.place is None:
            return
        parent, name = inode.place
        inode.place = None
        there = self.fresh.get(parent)
        if there is not None and there.get(name) is inode:
            del there[name]
            if not there:
                del self.fresh[parent]
