"""Attributes as the kernel wants them."""

import stat

from pyfuse3 import EntryAttributes, InodeT, ModeT

from memfs.fs.attached import Attached
from memfs.fs.inodes import Inode
from memfs.types import NodeInfo, Time

# safe because an inode's text changes only by its own handles, every open asks the store, and
# fs.invalidate takes away entries and attributes that others changed
CACHE_S = 3600

FOLDER_BITS = stat.S_IFDIR
FILE_BITS = stat.S_IFREG
CONTROL_FOLDER_MODE, CONTROL_FILE_MODE = 0o555, 0o444


def make(
    ino: int, attached: Attached, mode: int, size: int, mtime: Time, ctime: Time
) -> EntryAttributes:
    """Return attributes with the usual timeouts. Times are in ns."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(ino)
    entry.entry_timeout = entry.attr_timeout = CACHE_S
    entry.st_mode = ModeT(mode)
    entry.st_nlink = 1
    entry.st_uid = attached.uid
    entry.st_gid = attached.gid
    entry.st_size = size
    entry.st_blksize = 4096
    entry.st_blocks = (size + 511) // 512
    entry.st_atime_ns = entry.st_mtime_ns = mtime
    entry.st_ctime_ns = ctime
    return entry


def of_node(inode: Inode, info: NodeInfo) -> EntryAttributes:
    """Return the attributes of a folder or committed note; an uncommitted text shows its own.

    Those of a note that is not open are made once for each record: a listing asks again for all.
    """
    if inode.file is None and info.note is not None:
        if inode.shown is None or inode.shown_of is not info:
            inode.shown, inode.shown_of = _of_node(inode, info), info
        return inode.shown
    return _of_node(inode, info)


def _of_node(inode: Inode, info: NodeInfo) -> EntryAttributes:
    if info.note is None:
        mode, size, mtime = FOLDER_BITS | info.mode, 4096, info.mtime
        entry = make(inode.ino, inode.attached, mode, size, mtime, info.ctime)
        entry.st_nlink = 2
        return entry
    file, size, mtime = inode.file, info.note.size_bytes, info.mtime
    if file is not None and (file.is_ahead or inode.stale):
        size = size if file.buffer is None else len(file.buffer)
        mtime = mtime if file.mtime is None else file.mtime
    elif file is not None and file.mtime is not None:
        mtime = file.mtime
    return make(inode.ino, inode.attached, FILE_BITS | info.mode, size, mtime, info.ctime)


def of_file(inode: Inode) -> EntryAttributes:
    """Return the attributes of a file that lives in memory: new, scratch, or no longer named."""
    file = inode.file
    assert file is not None
    size = 0 if file.buffer is None else len(file.buffer)
    mtime = file.base_mtime if file.mtime is None else file.mtime
    entry = make(inode.ino, inode.attached, FILE_BITS | file.mode, size, mtime, mtime)
    if inode.gone:
        entry.st_nlink = 0
        entry.attr_timeout = 0
    return entry


def of_control(inode: Inode, mtime: Time, *, is_folder: bool) -> EntryAttributes:
    """Return the attributes of something below .memfs: size 0 as in procfs, nothing cached."""
    mode = FOLDER_BITS | CONTROL_FOLDER_MODE if is_folder else FILE_BITS | CONTROL_FILE_MODE
    entry = make(inode.ino, inode.attached, mode, 0, mtime, mtime)
    entry.entry_timeout = entry.attr_timeout = 0
    return entry


def dot(ino: int) -> EntryAttributes:
    """Return what a listing says of `.` and `..`: number and type are all that is looked at."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(ino)
    entry.st_mode = ModeT(FOLDER_BITS)
    return entry


def nothing() -> EntryAttributes:
    """Return the answer "no such name", to be cached."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(0)
    entry.entry_timeout = CACHE_S
    return entry
