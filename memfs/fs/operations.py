"""The kernel's requests, decoded and passed on; no rules here (SEMANTICS: Mount).

A handler that can answer at once is a plain call; one that has to wait returns a coroutine, which
`handler` awaits under a deadline.
"""

import logging
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pyfuse3
from pyfuse3 import (
    RENAME_NOREPLACE,
    ROOT_INODE,
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from memfs import limits
from memfs.engine import files, stores
from memfs.engine.scratch import ScratchRules, is_mkstemp
from memfs.engine.service import Service
from memfs.errors import (
    Forbidden,
    Invalid,
    IsAFolder,
    MemfsError,
    NotAFolder,
    NotFound,
)
from memfs.feed import Progress
from memfs.fs import attr, xattr
from memfs.fs.attached import Attached
from memfs.fs.handler import handler, last
from memfs.fs.inodes import File, Handle, Inode, Kind
from memfs.fs.mounted import Mounted, Stale
from memfs.fs.names import Names, read_only
from memfs.fs.readdirs import Readdirs
from memfs.fs.settle import Settle
from memfs.fs.texts import Texts
from memfs.types import Attachment, AttachmentNo, Task, Time

log = logging.getLogger(__name__)

_BLOCK = 4096
_RETRYING = 1024  # opens remembered as being tried again; one that is forgotten costs an ESTALE


class Operations(pyfuse3.Operations):
    """One FUSE connection with every attachment as a numbered folder below its root."""

    supports_dot_lookup = False
    enable_writeback_cache = False  # with it, a change made elsewhere left truncated reads
    enable_acl = False

    def __init__(
        self,
        service: Service,
        scratch: ScratchRules,
        status: Callable[[], dict[str, object]],
    ) -> None:
        super().__init__()
        self._service = service
        self.mounted = Mounted(service, scratch, status)
        self.progress = Progress(service.feed.seq)
        # threads whose open was answered with ESTALE, and the inode of their look-up since
        self._retrying: dict[int, int] = {}
        self._settle = Settle(self.progress)
        self.texts = Texts(self.mounted, self._settle)
        self.names = Names(self.mounted, self.texts, self._settle)
        self.readdirs = Readdirs(self.mounted)

    # ---- for the daemon

    def attach(self, task: Task, attachment: Attachment) -> None:
        """Show an attachment; its folder in the root is its number."""
        self.mounted.attach(task, attachment)

    async def detach(self, no: AttachmentNo) -> None:
        """Commit what is written in an attachment, then hide it; its scratch is gone."""
        attached = self.mounted.attached.get(no)
        if attached is not None:
            await self.drain([attached])
            self.mounted.detach(no)

    async def drain(self, which: Sequence[Attached] | None = None) -> list[str]:
        """Commit every written text that is not committed; return those that could not be."""
        failed: list[str] = []
        for attached in list(self.mounted.attached.values()) if which is None else which:
            for inode in self.mounted.table.of(attached):
                if not self.texts.is_promised(inode):
                    continue
                try:
                    await self.texts.commit_last(inode)
                except Exception as error:
                    if not isinstance(error, MemfsError):
                        log.exception("bug in drain")
                    failed.append(f"{self.mounted.place_of(inode)}: {error}")
        return failed

    # ---- names

    @handler
    def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        """Return what *name* is."""
        if parent_inode == ROOT_INODE:
            inode = self.mounted.root(int(name)) if name.isdigit() else None
            if inode is None:
                raise NotFound("no such attachment")
            inode.lookups += 1
            return self._getattr(inode)
        entry = self.names.lookup(self.mounted.folder(parent_inode), name)
        if self._retrying and ctx.pid in self._retrying and isinstance(entry, EntryAttributes):
            self._retrying[ctx.pid] = entry.st_ino
            if not entry.st_ino:  # there is nothing to open any more: this retry is over
                del self._retrying[ctx.pid]
        return entry

    @last
    def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Take back lookups."""
        for ino, lookups in inode_list:
            inode = self.mounted.table.get(ino)
            if inode is not None:
                self.mounted.table.forget(inode, lookups)

    @handler
    def getattr(
        self, inode: InodeT, ctx: RequestContext
    ) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        """Return attributes."""
        if inode == ROOT_INODE:
            return _root()
        return self._getattr(self.mounted.inode(inode))

    def _getattr(self, inode: Inode) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        return self.names.getattr(inode)

    @handler
    def opendir(
        self, inode: InodeT, ctx: RequestContext
    ) -> FileHandleT | Coroutine[Any, Any, FileHandleT]:
        """Return a number for an open folder."""
        if inode == ROOT_INODE:
            raise Forbidden("the memory folders are below the workspace's tasks")
        found = self.mounted.inode(inode)
        if found.kind not in (Kind.FOLDER, Kind.CONTROL):
            raise NotAFolder("not a folder")
        return self.readdirs.opendir(found)

    @handler
    def readdir(
        self, fh: FileHandleT, start_id: int, token: ReaddirToken
    ) -> Coroutine[Any, Any, None] | None:
        """Give out entries."""
        return self.readdirs.readdir(self.mounted.listings[fh], start_id, token)

    @last
    def releasedir(self, fh: FileHandleT) -> None:
        """Close a folder."""
        self.mounted.listings.pop(fh, None)

    @handler
    def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Do nothing: changes of names are on disk when they return."""

    @handler
    def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> Coroutine[Any, Any, EntryAttributes]:
        """Make a folder."""
        return self.names.mkdir(self._folder(parent_inode), name, mode)

    @handler
    def rmdir(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> Coroutine[Any, Any, None]:
        """Remove an empty folder."""
        return self.names.rmdir(self._folder(parent_inode), name)

    @handler
    def unlink(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> Coroutine[Any, Any, None] | None:
        """Remove a file's name."""
        return self.names.unlink(self._folder(parent_inode), name)

    @handler
    def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> Coroutine[Any, Any, None]:
        """Move an entry; RENAME_NOREPLACE is honoured, RENAME_EXCHANGE is not known."""
        if flags & ~RENAME_NOREPLACE:
            raise Invalid("names cannot be exchanged: rename one after the other")
        return self.names.rename(
            self._folder(parent_inode_old),
            name_old,
            self._folder(parent_inode_new),
            name_new,
            replace=not flags & RENAME_NOREPLACE,
        )

    @handler
    def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Refuse."""
        self.names.check_makes(self._folder(parent_inode))
        raise Forbidden("memory holds notes and folders: no symbolic links")

    @handler
    def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Refuse."""
        self.names.check_makes(self._folder(new_parent_inode))
        raise Forbidden("memory holds notes and folders: no hard links")

    @handler
    def mknod(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        rdev: int,
        ctx: RequestContext,
    ) -> Coroutine[Any, Any, EntryAttributes]:
        """Make an empty file, as tar does that restores attributes; refuse anything else."""
        parent = self._folder(parent_inode)
        self.names.check_makes(parent)
        if not stat.S_ISREG(mode):
            raise Forbidden("memory holds notes and folders: no devices, pipes or sockets")
        return self._mknod(parent, name, mode)

    async def _mknod(self, parent: Inode, name: bytes, mode: int) -> EntryAttributes:
        inode = await self.names.mknod(parent, name, mode)
        entry = self._getattr(inode)
        return entry if isinstance(entry, EntryAttributes) else await entry

    @handler
    def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """Refuse."""
        raise Invalid("not a symbolic link")

    # ---- files

    @handler
    def create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        """Make a file and open it."""
        inode = self.names.create(
            self._folder(parent_inode),
            name,
            mode,
            exclusive=bool(flags & os.O_EXCL),
            mkstemp=is_mkstemp(flags, mode),
            appends=bool(flags & os.O_APPEND),
        )
        info = self._open(inode, flags)
        entry = self._getattr(inode)
        assert isinstance(entry, EntryAttributes)
        inode.lookups += 1
        return info, entry

    @handler
    def open(
        self, inode: InodeT, flags: FlagT, ctx: RequestContext
    ) -> FileInfo | Coroutine[Any, Any, FileInfo]:
        """Open a file."""
        found = self.mounted.inode(inode)
        if found.kind is Kind.CONTROL:
            if flags & (os.O_ACCMODE | os.O_TRUNC):
                raise read_only()
            return self._open_control(found)
        try:
            return self._open(found, flags, retry=self._retrying.pop(ctx.pid, 0) == inode)
        except Stale:
            if len(self._retrying) >= _RETRYING:
                self._retrying.clear()
            self._retrying[ctx.pid] = 0
            raise

    async def _open_control(self, inode: Inode) -> FileInfo:
        data = await inode.attached.folder.read(inode.parts)
        fh = self.mounted.open_handle(Handle(inode, data=data))
        return FileInfo(fh=FileHandleT(fh), direct_io=True)

    def _open(self, inode: Inode, flags: int, *, retry: bool = False) -> FileInfo:
        """Open a note or scratch file; the opening remembers the head it starts from.

        retry: the kernel looked the name up again for this very open, because the note had
        changed. If it changed once more since, the text of that moment is still a right answer to
        a reader, and the kernel would not ask a third time.
        """
        attached = inode.attached
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        empties = bool(flags & os.O_TRUNC)
        if writes or empties:
            self.mounted.writable(attached)
        if inode.kind is Kind.FOLDER:
            raise IsAFolder("a folder cannot be opened as a file")
        if inode.node != 0 and not inode.gone:
            appends = flags & (os.O_ACCMODE | os.O_APPEND) == os.O_WRONLY | os.O_APPEND
            try:
                self._check_open(inode, writes=writes or empties, empties=empties)
            except Stale:
                # what is only appended goes behind the newest text anyway
                reads = flags & os.O_ACCMODE == os.O_RDONLY and retry
                if empties or not (appends or reads) or not self.texts.detach(inode):
                    raise
        elif inode.file is None or inode.stale or (inode.gone and not inode.file.handles):
            raise Stale("the file was removed: look its name up again")
        file = inode.file
        if file is None:
            file = inode.file = File(inode.sha256)
        if not file.handles and not empties and inode.kind is Kind.NOTE:
            self._push(inode)
        file.handles += 1
        file.writers += writes
        if writes:
            self.mounted.place_of(inode)  # what is refused later says where it was meant to go
        if empties:
            self.texts.truncate(inode, 0)
        fh = self.mounted.open_handle(Handle(inode, writes=writes, empties=empties))
        return FileInfo(fh=FileHandleT(fh), keep_cache=True)

    def _check_open(self, inode: Inode, *, writes: bool, empties: bool) -> None:
        """Check that the inode still is what its name leads to, and the lost-update guard."""
        attached = inode.attached
        if inode.stale and inode.file is not None and inode.file.handles:
            raise Stale("the note was changed: look its name up again")
        info = self.mounted.head(inode)
        assert info.note is not None
        seen = attached.seen.get(info.note.id)
        if empties and attached.attachment.guard and seen is not None:
            last_seen = files.Seen(info.note.id, seen)
            with self.mounted.explaining(attached, lambda: self.mounted.place_of(inode)):
                self._service.view(files.check_guard, attached.caller, info, last_seen)
        if writes:
            self._service.view(lambda txn: stores.check_live(stores.by_no(txn, attached.store)))
        if not empties:
            attached.seen[info.note.id] = info.note.sha256
        if inode.file is None:
            inode.file = File(info.note.sha256)
        if not inode.file.handles:
            inode.file.mode, inode.file.base_mtime = info.mode, info.mtime

    def _push(self, inode: Inode) -> None:
        """Give the kernel the text along with the open, which saves it the READ.

        Only when nothing else is open on the inode: then no page of it can be locked by a READ
        that waits for this very loop.
        """
        if inode.pushed or inode.sha256 is None or inode.lookups <= 0:
            return
        file = inode.file
        if file is not None and file.buffer is not None:
            return
        text = self.mounted.text(inode.sha256)
        if not text:
            return
        inode.pushed = True
        try:
            pyfuse3.notify_store(InodeT(inode.ino), 0, text)
        except OSError:  # the kernel has dropped the inode: it will READ
            inode.pushed = False

    @handler
    def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Return bytes of an open file."""
        return self.texts.read(self._handle(fh), off, size)

    @handler
    def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Put bytes into an open file's buffer."""
        return self.texts.write(fh, self._handle(fh), off, buf)

    @handler
    def flush(self, fh: FileHandleT) -> Coroutine[Any, Any, None] | None:
        """Commit at a close, if this opening wrote."""
        return self.texts.flush(fh, self._handle(fh))

    @handler
    def fsync(self, fh: FileHandleT, datasync: bool) -> Coroutine[Any, Any, None] | None:
        """Commit, if this opening wrote."""
        return self.texts.flush(fh, self._handle(fh))

    @last
    def release(self, fh: FileHandleT) -> Coroutine[Any, Any, None] | None:
        """Forget an open file."""
        handle = self.mounted.handles.pop(fh, None)
        if handle is not None:
            return self.texts.release(fh, handle)
        return None

    @handler
    def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        """Set size, permission bits or modification time; owners stay."""
        if inode == ROOT_INODE:
            raise Forbidden("the mount's root cannot be changed")
        found = self.mounted.inode(inode)
        if found.kind is Kind.CONTROL:
            raise read_only()
        self.mounted.writable(found.attached)
        owner = found.attached
        if (fields.update_uid and attr.st_uid != owner.uid) or (
            fields.update_gid and attr.st_gid != owner.gid
        ):
            raise Forbidden(
                "the owner of a memory folder is fixed: see `memfs task create --owner`"
            )
        size = attr.st_size if fields.update_size else None
        mode = attr.st_mode & 0o777 if fields.update_mode else None
        mtime = Time(attr.st_mtime_ns) if fields.update_mtime else None
        return self._setattr(found, fh, size, mode, mtime)

    async def _setattr(
        self,
        inode: Inode,
        fh: int | None,
        size: int | None,
        mode: int | None,
        mtime: Time | None,
    ) -> EntryAttributes:
        if size is not None:
            await self._resize(inode, fh, size)
        file = inode.file
        if mode is not None and file is not None:
            file.mode = mode
        if mtime is not None and file is not None and (file.is_ahead or inode.node == 0):
            file.mtime = mtime
            mtime = None
        if inode.node != 0 and not inode.gone and (mode is not None or mtime is not None):
            attached = inode.attached
            await self._service.commit(files.set_attr, attached.caller, inode.node, mode, mtime)
            if self.mounted.others(attached):
                await self._settle.text(self._service.feed.seq)
        entry = self._getattr(inode)
        return entry if isinstance(entry, EntryAttributes) else await entry

    async def _resize(self, inode: Inode, fh: int | None, size: int) -> None:
        """Cut or lengthen; without a handle that will commit it, commit at once."""
        if inode.kind is Kind.FOLDER:
            raise IsAFolder("a folder has no size to set")
        if inode.node != 0 and not inode.gone and fh is None:
            self._check_open(inode, writes=True, empties=size == 0)
        if inode.file is None:
            raise Stale("the file was removed: look its name up again")
        handle = None if fh is None else self.mounted.handles.get(fh)
        if handle is not None and handle.refused is not None:
            raise handle.refused.with_traceback(None)
        self.texts.truncate(inode, size, fh or 0)
        if fh is None and inode.kind is Kind.NOTE and not (size == 0 and inode.file.writers):
            inode.file.handles += 1  # a close meanwhile must not drop the buffer
            try:
                await self.texts.commit(inode)
                if self.mounted.others(inode.attached):
                    await self._settle.text(self._service.feed.seq)
            finally:
                inode.file.handles -= 1
                self.texts.tidy(inode)

    # ---- the rest

    @handler
    def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an attribute. The kernel asks for security.capability before each write."""
        if name == b"security.capability":
            raise xattr.not_here()
        found = self.mounted.table.get(inode)
        if found is None:
            raise xattr.not_here()
        return xattr.get(self.mounted, found, name)

    @handler
    def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Return nothing: what is listed, programs copy, and what memfs knows cannot be set."""
        return []

    @handler
    def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """Refuse."""
        raise xattr.refuse(name)

    @handler
    def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """Refuse."""
        raise xattr.refuse(name)

    @handler
    def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Return room: of the map or the disk under it, whichever is less."""
        data = StatvfsData()
        free, used = self._service.env.free_bytes(), self._service.env.used_bytes()
        data.f_bsize = data.f_frsize = _BLOCK
        data.f_blocks = (free + used) // _BLOCK
        data.f_bfree = data.f_bavail = free // _BLOCK
        data.f_files = limits.NOTES_PER_STORE * limits.LIVE_SHARED_STORES
        data.f_ffree = data.f_favail = data.f_files - len(self.mounted.table)
        data.f_namemax = limits.SEGMENT_BYTES
        return data

    @handler
    def access(self, inode: InodeT, mode: ModeT, ctx: RequestContext) -> bool:
        """Leave it to the kernel (default_permissions)."""
        return True

    def _folder(self, ino: int) -> Inode:
        if ino == ROOT_INODE:
            raise Forbidden("the memory folders are made with `memfs task create`")
        return self.mounted.folder(ino)

    def _handle(self, fh: int) -> Handle:
        handle = self.mounted.handles.get(fh)
        if handle is None:
            raise Stale("the file was closed")
        return handle


def _root() -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = ROOT_INODE
    entry.st_mode = ModeT(attr.FOLDER_BITS | 0o711)
    entry.st_nlink = 2
    entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
    return entry
