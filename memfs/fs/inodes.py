"""What the kernel holds: inodes, and the state of those that are open.

An inode's text changes only by its own handles. When somebody else changes the note, the inode
that the kernel knows becomes *stale*: handles that are open on it keep their text, the next open
by path gets ESTALE, which makes the kernel look the name up again and find a fresh inode. So no
reader ever sees half of one version and half of another, and no cached page has to be taken away
from somebody who is reading it.
"""

from enum import Enum, auto
from typing import TYPE_CHECKING

import trio

from memfs.errors import MemfsError
from memfs.types import NO_NODE, Node, NodeInfo, Sha256, Time

if TYPE_CHECKING:
    from pyfuse3 import EntryAttributes

    from memfs.fs.attached import Attached


class Kind(Enum):
    """What an inode is."""

    FOLDER = auto()
    NOTE = auto()  # committed, or new and not yet committed (then it has a place and no node)
    SCRATCH = auto()  # in memory only
    CONTROL = auto()  # something below .memfs


class File:
    """The text of an open or uncommitted file; all handles of an inode share one."""

    __slots__ = (
        "appends",
        "base",
        "base_bytes",
        "base_mtime",
        "buffer",
        "committing",
        "dirty_by",
        "emptied",
        "handles",
        "lock",
        "mode",
        "mtime",
        "rolled_back",
        "waiting",
        "writers",
        "writes",
    )

    def __init__(self, base: Sha256 | None, buffer: bytearray | None = None) -> None:
        self.buffer = buffer  # None: not loaded, the text is the base's
        self.base = base  # sha256 of the text that the next commit starts from
        self.base_bytes = 0  # its length, once loaded
        self.base_mtime = Time(0)
        self.appends = True  # nothing but appends since the base
        self.dirty_by: set[int] = set()  # handles with writes that are not committed
        self.emptied = False  # made or truncated, and not written since
        self.writes = 0  # ever; tells whether more came while a commit ran
        self.handles = 0
        self.writers = 0
        self.mode = 0o644
        self.mtime: Time | None = None  # not committed yet
        self.rolled_back = False  # a write was refused: the kernel's size may be more than ours
        self.lock: trio.Lock | None = None  # one commit at a time
        self.committing: Sha256 | None = None  # what a commit under way is making the head
        self.waiting: Node | None = None  # the note that this new file continues

    @property
    def is_ahead(self) -> bool:
        """Whether the buffer is not what the store holds."""
        return bool(self.dirty_by) or self.emptied

    def load(self, text: bytes) -> bytearray:
        """Take *text* as the base's and return the buffer."""
        self.buffer = bytearray(text)
        self.base_bytes = len(text)
        return self.buffer

    def settle(self, base: Sha256 | None, length: int) -> None:
        """Note that the buffer's first *length* bytes are committed as *base*."""
        self.base = base
        self.base_bytes = length
        self.appends = True
        self.dirty_by.clear()
        self.emptied = False
        self.mtime = None

    def drop(self) -> None:
        """Forget what is not committed."""
        self.buffer = None
        self.appends = True
        self.dirty_by.clear()
        self.emptied = False
        self.mtime = None


class Inode:
    """One inode that the kernel knows, or that something is open on."""

    __slots__ = (
        "attached",
        "file",
        "gone",
        "ino",
        "kind",
        "lookups",
        "node",
        "parts",
        "path",
        "place",
        "pushed",
        "sha256",
        "shown",
        "shown_of",
        "stale",
        "temporary",
    )

    def __init__(self, ino: int, kind: Kind, attached: "Attached", node: Node = NO_NODE) -> None:
        self.ino = ino
        self.kind = kind
        self.attached = attached
        self.node = node
        self.lookups = 0
        self.sha256: Sha256 | None = None  # the text that the kernel may have cached
        self.file: File | None = None
        self.place: tuple[Node, str] | None = None  # of scratch and of new files
        self.path = ""  # where the writer last knew it; a refused text carries it
        self.parts: tuple[str, ...] = ()  # of .memfs
        self.stale = False  # somebody else changed or removed the note
        self.temporary = False  # made here as mkstemp makes files, with a name that is no scratch
        self.gone = False  # its name was removed through this attachment
        self.pushed = False  # the kernel was given the text and has not forgotten the inode
        self.shown: EntryAttributes | None = None  # attributes of the record `shown_of`
        self.shown_of: NodeInfo | None = None

    def is_current(self, head: Sha256) -> bool:
        """Whether *head* is what this inode shows, or what its own commit just wrote."""
        return self.sha256 == head or (self.file is not None and self.file.committing == head)


class Handle:
    """One open file description. data: what a .memfs file held when it was opened."""

    __slots__ = ("data", "empties", "inode", "refused", "writes")

    def __init__(
        self,
        inode: Inode,
        *,
        writes: bool = False,
        empties: bool = False,
        data: bytes | None = None,
    ) -> None:
        self.inode = inode
        self.writes = writes
        self.empties = empties  # opened with O_TRUNC
        self.data = data
        self.refused: MemfsError | None = None  # this opening commits nothing more


class Table:
    """All inodes by number."""

    _FRESH = 1 << 62  # numbers from here on are given in turn; below they are attachment and node

    def __init__(self) -> None:
        self._by_ino: dict[int, Inode] = {}
        self._next = self._FRESH

    def __len__(self) -> int:
        return len(self._by_ino)

    def get(self, ino: int) -> Inode | None:
        """Return the inode with that number, or None."""
        return self._by_ino.get(ino)

    def add(self, kind: Kind, attached: "Attached", node: Node = NO_NODE) -> Inode:
        """Make an inode. The number is attachment and node as long as that is free.

        So an unchanged file keeps its number over the kernel's forgetting it.
        """
        ino = attached.no << 40 | node
        if node == 0 or ino in self._by_ino:
            ino = self._next
            self._next += 1
        inode = Inode(ino, kind, attached, node)
        self._by_ino[ino] = inode
        return inode

    def forget(self, inode: Inode, lookups: int) -> None:
        """Take back *lookups* of the kernel's, and drop the inode when nothing needs it."""
        inode.lookups -= lookups
        if inode.lookups <= 0:
            inode.pushed = False
            self.drop_unused(inode)

    def drop_unused(self, inode: Inode) -> None:
        """Drop an inode that neither the kernel nor an open file nor a place needs."""
        if (
            inode.lookups <= 0
            and (inode.file is None or inode.file.handles == 0)
            and (inode.place is None or inode.gone)
            and not (inode.file is not None and inode.file.is_ahead and not inode.gone)
        ):
            self._by_ino.pop(inode.ino, None)
            by_node = inode.attached.by_node
            if by_node.get(inode.node) is inode:
                del by_node[inode.node]
            if inode.kind is Kind.CONTROL and inode.attached.control.get(inode.parts) is inode:
                del inode.attached.control[inode.parts]

    def of(self, attached: "Attached") -> list[Inode]:
        """Return an attachment's inodes."""
        return [inode for inode in self._by_ino.values() if inode.attached is attached]
