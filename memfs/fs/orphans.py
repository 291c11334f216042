"""Scratch files whose folder was removed by another task or door: their texts are kept as refused.

New files that are not committed yet need no help: their commit fails, and keeps the text.
"""

import logging

from memfs.engine import refused, tree
from memfs.errors import Invalid, MemfsError, NotFound
from memfs.fs.attached import Attached
from memfs.fs.inodes import Inode, Kind
from memfs.fs.mounted import Mounted
from memfs.types import Node

log = logging.getLogger(__name__)

_REASON = "the folder of this temporary file was removed: copy the text to where it belongs"


def is_orphan(mounted: Mounted, inode: Inode) -> bool:
    """Whether a scratch file that nobody has open is in a folder that is no more."""
    if inode.kind is not Kind.SCRATCH or inode.place is None:
        return False
    if (
        inode.file is None or inode.file.handles
    ):  # its last close keeps it, with all that is to come
        return False
    return _is_gone(mounted, inode.place[0])


async def keep_all(mounted: Mounted, attached: Attached) -> None:
    """Keep the texts of an attachment's scratch files whose folder is gone. Raises nothing."""
    lost = [
        inode
        for folder, there in attached.fresh.items()
        if _is_gone(mounted, folder)
        for inode in there.values()
    ]
    for inode in lost:
        try:
            if is_orphan(mounted, inode):
                await keep(mounted, inode)
        except Exception:
            log.exception("bug in keep_all")


async def keep(mounted: Mounted, inode: Inode) -> None:
    """Take a scratch file away and keep its text, if it is one that a note could have."""
    file, attached = inode.file, inode.attached
    assert file is not None
    path, data = mounted.place_of(inode), bytes(file.buffer or b"")
    attached.take_fresh(inode)  # atomic: no await before, so nobody keeps it twice
    attached.scratch_bytes -= len(data)
    file.buffer = None
    inode.gone = inode.stale = True
    mounted.table.drop_unused(inode)
    if not data:
        return
    try:
        text = await mounted.service.screen(data)
    except Invalid:  # not UTF-8, too long, a credential: never a note's text
        return
    try:
        await mounted.service.commit(
            refused.keep, attached.caller, attached.store, path, text, _REASON, None
        )
    except MemfsError as error:
        log.error("a temporary file's text could not be kept: %s", error)


def _is_gone(mounted: Mounted, folder: Node) -> bool:
    try:
        mounted.service.view(tree.get, folder)
    except NotFound:
        return True
    return False
