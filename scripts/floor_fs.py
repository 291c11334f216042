"""The floor: the least a pyfuse3 file system can do, with the caching that memfs promises.

Everything is in memory; there are no versions, no rules, no error mapping and no disk. What an
operation costs here is what kernel, libfuse, pyfuse3, trio and Python cost together, so a figure
of memfs divided by one of the floor says what memfs itself adds. `bench_fs.py` starts it; by hand:

    python scripts/floor_fs.py MOUNTPOINT        # until SIGTERM or SIGINT, then unmounts
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Sequence

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

CACHE_TIMEOUT_S = 3600  # entries, attributes and absences, as in memfs (DESIGN §3 Caches)
NAME_MAX_BYTES = 255  # the kernel itself passes names of up to 1,024 bytes
BLOCK_BYTES = 4096


class Inode:
    """A file or folder: ready-made attributes, and text or entries."""

    __slots__ = ("attr", "entries", "lookups", "parent", "text")

    def __init__(self, ino: int, mode: int, parent: Inode | None) -> None:
        """Make an empty inode that nothing names yet."""
        self.parent = parent or self
        self.lookups = 0
        self.text = bytearray()
        self.entries: dict[bytes, Inode] = {}
        self.attr = attr = EntryAttributes()
        now = time.time_ns()
        attr.st_ino = InodeT(ino)
        attr.st_mode = ModeT(mode)
        attr.st_nlink = 2 if stat.S_ISDIR(mode) else 1
        attr.st_uid, attr.st_gid = os.getuid(), os.getgid()
        attr.st_atime_ns = attr.st_mtime_ns = attr.st_ctime_ns = now
        attr.st_blksize = BLOCK_BYTES
        attr.entry_timeout = attr.attr_timeout = CACHE_TIMEOUT_S

    def resized(self) -> None:
        """Bring size, blocks and times of the attributes in line with the text."""
        attr = self.attr
        attr.st_size = len(self.text)
        attr.st_blocks = (len(self.text) + 511) // 512
        attr.st_mtime_ns = attr.st_ctime_ns = time.time_ns()


class Floor(pyfuse3.Operations):
    """An in-memory file system; a handle is the inode number, so open keeps nothing."""

    enable_writeback_cache = False

    def __init__(self) -> None:
        """Make a file system with an empty root."""
        super().__init__()
        self.root = Inode(pyfuse3.ROOT_INODE, stat.S_IFDIR | 0o755, None)
        self.inodes: dict[int, Inode] = {pyfuse3.ROOT_INODE: self.root}
        self.next_ino = pyfuse3.ROOT_INODE + 1
        self.listings: dict[int, list[tuple[bytes, Inode]]] = {}
        self.next_listing = 1
        self.absent = EntryAttributes()
        self.absent.st_ino = InodeT(0)  # inode 0 with a timeout is a cached absence
        self.absent.entry_timeout = CACHE_TIMEOUT_S

    def _add(self, parent_ino: InodeT, name: FileNameT, mode: int) -> Inode:
        if len(name) > NAME_MAX_BYTES:
            raise FUSEError(errno.ENAMETOOLONG)
        parent = self.inodes[parent_ino]
        if name in parent.entries:
            raise FUSEError(errno.EEXIST)
        inode = Inode(self.next_ino, mode, parent)
        self.next_ino += 1
        inode.lookups = 1
        self.inodes[inode.attr.st_ino] = inode
        parent.entries[name] = inode
        parent.attr.st_mtime_ns = parent.attr.st_ctime_ns = inode.attr.st_mtime_ns
        return inode

    def _remove(self, parent_ino: InodeT, name: FileNameT, folder: bool) -> None:
        parent = self.inodes[parent_ino]
        inode = parent.entries.get(name)
        if inode is None:
            raise FUSEError(errno.ENOENT)
        if stat.S_ISDIR(inode.attr.st_mode) != folder:
            raise FUSEError(errno.ENOTDIR if folder else errno.EISDIR)
        if inode.entries:
            raise FUSEError(errno.ENOTEMPTY)
        del parent.entries[name]
        inode.attr.st_nlink = 0
        parent.attr.st_mtime_ns = parent.attr.st_ctime_ns = time.time_ns()
        if inode.lookups == 0:
            del self.inodes[inode.attr.st_ino]

    # names

    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Answer with the entry's attributes, or with an absence the kernel may cache."""
        parent = self.inodes[parent_inode]
        inode = parent.entries.get(name)
        if inode is None:
            if name == b".":
                inode = parent
            elif name == b"..":
                inode = parent.parent
            elif len(name) > NAME_MAX_BYTES:
                raise FUSEError(errno.ENAMETOOLONG)
            else:
                return self.absent
        inode.lookups += 1
        return inode.attr

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Drop inodes that neither the kernel nor a name refers to any more."""
        for ino, count in inode_list:
            inode = self.inodes[ino]
            inode.lookups -= count
            if inode.lookups == 0 and inode.attr.st_nlink == 0:
                del self.inodes[ino]

    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        """Make an empty folder."""
        return self._add(parent_inode, name, stat.S_IFDIR | (mode & 0o777)).attr

    async def create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        """Make an empty file and open it."""
        inode = self._add(parent_inode, name, stat.S_IFREG | (mode & 0o777))
        return FileInfo(fh=FileHandleT(inode.attr.st_ino), keep_cache=True), inode.attr

    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove a file's name; open handles go on working until the kernel forgets the inode."""
        self._remove(parent_inode, name, folder=False)

    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty folder."""
        self._remove(parent_inode, name, folder=True)

    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        """Give an entry another name, replacing what had it unless RENAME_NOREPLACE is asked."""
        if len(name_new) > NAME_MAX_BYTES:
            raise FUSEError(errno.ENAMETOOLONG)
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise FUSEError(errno.EINVAL)
        old, new = self.inodes[parent_inode_old], self.inodes[parent_inode_new]
        inode = old.entries.get(name_old)
        if inode is None:
            raise FUSEError(errno.ENOENT)
        target = new.entries.get(name_new)
        if target is inode:
            return
        if target is not None:
            if flags & pyfuse3.RENAME_NOREPLACE:
                raise FUSEError(errno.EEXIST)
            self._remove(parent_inode_new, name_new, folder=stat.S_ISDIR(inode.attr.st_mode))
        del old.entries[name_old]
        new.entries[name_new] = inode
        inode.parent = new
        now = time.time_ns()
        old.attr.st_mtime_ns = new.attr.st_mtime_ns = inode.attr.st_ctime_ns = now

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Take the listing as it is now; its positions are the cookies."""
        fh = self.next_listing
        self.next_listing += 1
        self.listings[fh] = list(self.inodes[inode].entries.items())
        return FileHandleT(fh)

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Fill the buffer with names and attributes from the cookie on, in constant time each."""
        listing = self.listings[fh]
        reply = pyfuse3.readdir_reply
        for cookie in range(start_id, len(listing)):
            name, inode = listing[cookie]
            if inode.attr.st_nlink == 0:
                continue
            if not reply(token, name, inode.attr, cookie + 1):
                break
            inode.lookups += 1

    async def releasedir(self, fh: FileHandleT) -> None:
        """Let the listing go."""
        del self.listings[fh]

    # files

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file, emptied if O_TRUNC; the page cache stays valid."""
        if flags & os.O_TRUNC:
            file = self.inodes[inode]
            file.text.clear()
            file.resized()
        return FileInfo(fh=FileHandleT(inode), keep_cache=True)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Return the text from *off*; short only at the end of the file."""
        return bytes(self.inodes[fh].text[off : off + size])

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Put *buf* at *off*, zeros before it where the file was shorter."""
        inode = self.inodes[fh]
        text = inode.text
        if off > len(text):
            text.extend(bytes(off - len(text)))
        text[off : off + len(buf)] = buf
        inode.resized()
        return len(buf)

    async def flush(self, fh: FileHandleT) -> None:
        """Do nothing; without a handler the kernel would stop asking and the floor be too low."""

    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Do nothing; memory is as durable as it gets."""

    async def release(self, fh: FileHandleT) -> None:
        """Do nothing; a handle holds nothing."""

    # attributes

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Return the attributes."""
        return self.inodes[inode].attr

    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Set what is asked and return the attributes."""
        target = self.inodes[inode]
        own = target.attr
        if fields.update_size:
            size = attr.st_size
            del target.text[size:]
            target.text.extend(bytes(size - len(target.text)))
            target.resized()
        if fields.update_mode:
            own.st_mode = ModeT(stat.S_IFMT(own.st_mode) | stat.S_IMODE(attr.st_mode))
        if fields.update_uid:
            own.st_uid = attr.st_uid
        if fields.update_gid:
            own.st_gid = attr.st_gid
        if fields.update_atime:
            own.st_atime_ns = attr.st_atime_ns
        if fields.update_mtime:
            own.st_mtime_ns = attr.st_mtime_ns
        own.st_ctime_ns = time.time_ns()
        return own

    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Say that there are none.

        The kernel asks for security.capability twice in a save (truncation, write). ENOTSUP, and
        not "no such attribute": `ls -l` then asks once for the mount and not twice for each file.
        """
        raise FUSEError(errno.ENOTSUP)

    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """List none."""
        return ()

    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Report a roomy disk."""
        data = StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_BYTES
        data.f_blocks = data.f_bfree = data.f_bavail = 1 << 24
        data.f_files = data.f_ffree = data.f_favail = 1 << 24
        data.f_namemax = NAME_MAX_BYTES
        return data


async def serve(operations: pyfuse3.Operations, mountpoint: str) -> None:
    """Mount *operations* and answer the kernel until SIGTERM, SIGINT or an unmount from outside."""
    options = {"default_permissions", "nosuid", "nodev", "noexec", "fsname=memfs-floor"}
    pyfuse3.init(operations, mountpoint, options)
    try:
        async with trio.open_nursery() as nursery:

            async def stop_on_signal() -> None:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        pyfuse3.terminate()
                        return

            nursery.start_soon(stop_on_signal)
            await pyfuse3.main()
            nursery.cancel_scope.cancel()
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: floor_fs.py MOUNTPOINT")
    trio.run(serve, Floor(), sys.argv[1])
