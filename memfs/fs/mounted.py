"""What the parts of the mount share: the service, the tables, and how to tell the kernel."""

import errno
import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from memfs.engine import notes, tree
from memfs.engine.scratch import ScratchRules
from memfs.engine.service import Service
from memfs.errors import CrossStore, MemfsError, NotFound, ReadOnly
from memfs.fs.attached import Attached
from memfs.fs.control import Control
from memfs.fs.inodes import Handle, Inode, Kind, Table
from memfs.fs.listing import Listing
from memfs.types import Attachment, AttachmentNo, Node, NodeInfo, Sha256, StoreNo, Task

log = logging.getLogger(__name__)


class Stale(MemfsError):
    """The inode no longer is what its name leads to; the kernel looks the name up again."""

    errno = errno.ESTALE


class Mounted:
    """Everything that is mounted, by attachment."""

    def __init__(
        self,
        service: Service,
        scratch: ScratchRules,
        status: Callable[[], dict[str, object]],
    ) -> None:
        self.service = service
        self.scratch = scratch
        self._status = status
        self.table = Table()
        self.attached: dict[AttachmentNo, Attached] = {}
        self.by_store: dict[StoreNo, list[Attached]] = {}
        self.handles: dict[int, Handle] = {}
        self.listings: dict[int, Listing] = {}
        self._last_handle = 0
        self.kernel_news: list[tuple[Inode, str | None]] = []  # for fs.invalidate
        self.ring: Callable[[], None] = lambda: None

    def attach(self, task: Task, attachment: Attachment) -> Attached:
        """Show an attachment below the mount's root; its folder is its number."""
        folder = Control(self.service, task, attachment, self._status)
        attached = Attached(task, attachment, folder)
        root = self.table.add(Kind.FOLDER, attached, attachment.root)
        root.lookups = 1  # stays until detached
        attached.by_node[attachment.root] = root
        self.attached[attachment.no] = attached
        self.by_store.setdefault(attachment.store, []).append(attached)
        return attached

    def detach(self, no: AttachmentNo) -> None:
        """Hide an attachment; its scratch is gone."""
        attached = self.attached.pop(no, None)
        if attached is None:
            return
        self.by_store[attached.store].remove(attached)
        ended = Stale("the task has ended: its files cannot be written any more")
        for fh, handle in self.handles.items():
            file = handle.inode.file
            if handle.inode.attached is attached and file is not None and fh in file.dirty_by:
                handle.refused = ended  # readers may go on, and close without an error
        for inode in self.table.of(attached):
            inode.stale = True
            if inode.kind in (Kind.SCRATCH, Kind.NOTE) and inode.node == 0:
                inode.gone = True
            if inode.file is not None:  # a close that comes later commits nothing
                inode.file.dirty_by.clear()
                inode.file.emptied = False
            inode.place = None
            self.table.forget(inode, inode.lookups)

    def root(self, no: int) -> Inode | None:
        """Return the top folder of an attachment, or None."""
        attached = self.attached.get(AttachmentNo(no))
        return None if attached is None else attached.by_node[attached.attachment.root]

    def inode(self, ino: int) -> Inode:
        """Return what the kernel means by *ino*."""
        inode = self.table.get(ino)
        if inode is None:
            raise Stale(f"inode {ino} is not known any more: look its name up again")
        return inode

    def folder(self, ino: int) -> Inode:
        """Return the folder that the kernel means by *ino*."""
        inode = self.inode(ino)
        if inode.attached.no not in self.attached:
            raise NotFound("the task has ended: its folder is gone")
        return inode

    def writable(self, attached: Attached) -> None:
        """Check that an attachment may be written through.

        Raises: ReadOnly, Stale (the task ended).
        """
        if attached.no not in self.attached:
            raise Stale("the task has ended: its folder is gone")
        if attached.read_only:
            raise ReadOnly(
                f"{attached.attachment.name} is attached read-only: write to another memory folder"
            )

    def same(self, one: Inode, other: Inode) -> None:
        """Check that two folders belong to one attachment.

        Raises: CrossStore.
        """
        if one.attached is not other.attached:
            raise CrossStore("a note cannot be moved to another memory folder: copy it")

    def open_handle(self, handle: Handle) -> int:
        """Return a number for an open file."""
        self._last_handle += 1
        self.handles[self._last_handle] = handle
        return self._last_handle

    def open_listing(self, listing: Listing) -> int:
        """Return a number for an open folder."""
        self._last_handle += 1
        self.listings[self._last_handle] = listing
        return self._last_handle

    def others(self, attached: Attached) -> bool:
        """Whether other attachments show the same store."""
        return len(self.by_store.get(attached.store, ())) > 1

    def of_stores(self, stores: Iterable[StoreNo]) -> list[Attached]:
        """Return the attachments of some stores."""
        return [attached for store in stores for attached in self.by_store.get(store, ())]

    def of_node(self, attached: Attached, info: NodeInfo) -> Inode:
        """Return the inode that a node's name leads to now, making it if there is none."""
        inode = attached.by_node.get(info.node)
        if inode is not None:
            if info.note is None or inode.is_current(info.note.sha256):
                return inode
            self.supersede(inode)
        kind = Kind.FOLDER if info.note is None else Kind.NOTE
        inode = self.table.add(kind, attached, info.node)
        attached.by_node[info.node] = inode
        if info.note is not None:
            inode.sha256 = info.note.sha256
        return inode

    def control(self, attached: Attached, parts: tuple[str, ...]) -> Inode:
        """Return the inode of a path below .memfs, making it if there is none."""
        inode = attached.control.get(parts)
        if inode is None:
            inode = self.table.add(Kind.CONTROL, attached)
            inode.parts = parts
            attached.control[parts] = inode
        return inode

    def placed(self, attached: Attached, parent: Node, name: str, info: NodeInfo) -> None:
        """Note that *info* is the note at an entry now; it may have come back from its backup."""
        moved = attached.backups.pop((parent, name), None)
        if moved is None or moved.backup.node != info.node:
            return
        there, folder = attached.by_node.get(info.node), attached.by_node.get(parent)
        if there is not None:
            self.supersede(there)
        if folder is not None:
            self.tell_kernel(folder, moved.name)

    def supersede(self, inode: Inode) -> None:
        """Make an inode stale: its note is another's text now, or gone."""
        inode.stale = True
        if inode.attached.by_node.get(inode.node) is inode:
            del inode.attached.by_node[inode.node]
        self.pin(inode)
        self.table.drop_unused(inode)

    def pin(self, inode: Inode) -> None:
        """Keep the text of an open file that is about to lose its note."""
        file = inode.file
        if file is not None and file.handles and file.buffer is None and inode.sha256 is not None:
            file.load(self.text(inode.sha256))

    def text(self, sha256: Sha256) -> bytes:
        """Return a text by its sha256."""
        return self.service.view(notes.text, sha256)

    def head(self, inode: Inode) -> NodeInfo:
        """Return the record of a committed note, checking that the inode still shows it.

        Raises: Stale.
        """
        if inode.stale:
            raise Stale("the note was changed: look its name up again")
        try:
            info = self.service.view(tree.get, inode.node)
        except NotFound:
            info = None
        if info is None or info.note is None or info.parent == 0:
            self.supersede(inode)
            raise Stale("the note was removed: look its name up again")
        if not inode.is_current(info.note.sha256):
            self.supersede(inode)
            raise Stale("the note was changed: look its name up again")
        return info

    def path_in(self, folder: Inode, name: str) -> str:
        """Return the path of a folder's entry, for messages."""
        try:
            return self._path(folder.node, name)
        except NotFound:
            return f"/{name}"

    def place_of(self, inode: Inode) -> str:
        """Return the path of a file, for messages and refused texts, and remember it.

        When its place is lost: the last one that was remembered.
        """
        try:
            if inode.place is not None:
                inode.path = self._path(*inode.place)
            else:
                inode.path = self._path_of(inode.node)
        except NotFound:
            return inode.path or f"/{inode.node}"
        return inode.path

    def _path_of(self, node: Node) -> str:
        return self.service.view(lambda txn: tree.path_of(txn, tree.get(txn, node)))

    def _path(self, parent: Node, name: str) -> str:
        above = self._path_of(parent)
        return f"{'' if above == '/' else above}/{name}"

    @contextmanager
    def explaining(self, attached: Attached, place: Callable[[], str]) -> Generator[None]:
        """Show in .memfs/log why something was refused, since an errno cannot say it."""
        try:
            yield
        except MemfsError as error:
            attached.folder.note_refusal(place(), str(error))
            raise

    def tell_kernel(self, inode: Inode, name: str | None = None) -> None:
        """Have the kernel forget a folder's entry *name*, or what it has cached of an inode.

        It happens after the request that is being answered, from the notifier.
        """
        self.kernel_news.append((inode, name))
        self.ring()
