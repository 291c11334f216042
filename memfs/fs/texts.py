"""Reading and writing file texts, and how a text becomes a version (SEMANTICS: Saving)."""

import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import trio

from memfs import limits
from memfs.engine import files, refused, tree
from memfs.engine.files import Save
from memfs.engine.secrets import can_become_utf8, refusal
from memfs.errors import (
    InvalidText,
    MemfsError,
    NoSpace,
    NotFound,
    SecretRefused,
    TextTooLong,
    Unavailable,
)
from memfs.fs import orphans
from memfs.fs.inodes import File, Handle, Inode, Kind
from memfs.fs.mounted import Mounted, Stale
from memfs.fs.settle import Settle
from memfs.types import NodeInfo, Sha256, Text

log = logging.getLogger(__name__)

# After these a text may still become the note's. After anything else it is kept in .memfs/refused.
_PASSING = (NoSpace, Unavailable)
_DETACHED = Sha256("")  # base of a file whose appends were put behind somebody else's text


class Texts:
    """The buffers of open files and their commits."""

    def __init__(self, mounted: Mounted, settle: Settle) -> None:
        self._mounted = mounted
        self._service = mounted.service
        self._settle = settle

    def buffer(self, inode: Inode) -> bytearray:
        """Return the buffer of an open file, loading it if need be."""
        file = _file(inode)
        if file.buffer is not None:
            return file.buffer
        if inode.sha256 is None:
            return file.load(b"")
        return file.load(self._mounted.text(inode.sha256))

    def read(self, handle: Handle, offset: int, size: int) -> bytes:
        """Return up to *size* bytes of an open file."""
        if handle.data is not None:
            return handle.data[offset : offset + size]
        inode = handle.inode
        file = _file(inode)
        if file.buffer is not None:
            return bytes(memoryview(file.buffer)[offset : offset + size])
        if inode.sha256 is None:
            return b""
        return self._mounted.text(inode.sha256)[offset : offset + size]

    def write(self, fh: int, handle: Handle, offset: int, data: bytes) -> int:
        """Put *data* into the buffer and return its length.

        Refuses as early as the fault can be known; after a refused write this opening commits
        nothing more.
        Raises: TextTooLong, InvalidText, SecretRefused, NoSpace (scratch), Stale (the task ended).
        """
        if handle.refused is not None:
            raise handle.refused.with_traceback(None)
        inode = handle.inode
        self._mounted.writable(inode.attached)
        file = _file(inode)
        buffer = self.buffer(inode)
        end = offset + len(data)
        length = len(buffer)
        if file.rolled_back and offset > length:
            # the kernel still counts what was taken back: NULs would fill the gap
            raise Stale("an earlier write was refused and taken back: open the file again")
        if inode.kind is Kind.SCRATCH:
            self._grow_scratch(inode, end)
            _overwrite(buffer, offset, data)
        else:
            try:
                self._check(buffer, offset, data)
                covered = bytes(buffer[offset:end])
                _overwrite(buffer, offset, data)
                found = self._service.scanner.find_near(buffer, offset, end)
                if found is not None:
                    buffer[offset : offset + len(covered)] = covered
                    del buffer[length:]
                    raise refusal(found)
            except MemfsError as error:
                self._refuse_write(fh, handle, error)
                raise
            begins = handle.empties and not length  # a new text, though nothing is before it
            file.appends = file.appends and offset == length and not begins
            file.dirty_by.add(fh)
            file.emptied = False
            file.writes += 1
        file.mtime = self._service.now()
        return len(data)

    def truncate(self, inode: Inode, size: int, fh: int = 0) -> None:
        """Cut or lengthen the buffer. To nothing: by itself no version while it may be written.

        Raises: TextTooLong, NoSpace (scratch).
        """
        file = _file(inode)
        if size == 0:
            if inode.kind is Kind.SCRATCH:
                self._grow_scratch(inode, 0, shrink=True)
            file.load(b"")
        else:
            buffer = self.buffer(inode)
            if inode.kind is Kind.SCRATCH:
                self._grow_scratch(inode, size, shrink=True)
            elif size > limits.NOTE_BYTES:
                raise _too_long()
            if size < len(buffer):
                del buffer[size:]
            else:
                buffer.extend(bytes(size - len(buffer)))
        file.mtime = self._service.now()
        if inode.kind is Kind.SCRATCH:
            return
        file.appends = False
        file.writes += 1
        if size == 0:
            file.dirty_by.clear()
            file.emptied = True
        else:
            file.dirty_by.add(fh)
            file.emptied = False

    def flush(self, fh: int, handle: Handle) -> Coroutine[Any, Any, None] | None:
        """Commit what this handle wrote since the last commit; None when there is nothing to do.

        Raises: what a refused write of this opening raised.
        """
        if handle.refused is not None:
            raise handle.refused.with_traceback(None)
        file = handle.inode.file
        if file is None or fh not in file.dirty_by or handle.inode.gone:
            return None
        return self._flush(handle)

    async def _flush(self, handle: Handle) -> None:
        inode = handle.inode
        await self.commit(inode)
        if self._mounted.others(inode.attached):
            await self._settle.text(self._service.feed.seq)

    def release(self, fh: int, handle: Handle) -> Coroutine[Any, Any, None] | None:
        """Close a handle. The last writer's close commits a file that was only made or emptied.

        Writes may also come after the last flush, from memory maps; they are committed here.
        """
        inode = handle.inode
        file = inode.file
        if handle.data is not None or file is None:
            self._mounted.table.drop_unused(inode)
            return None
        file.handles -= 1
        file.writers -= handle.writes
        if handle.refused is not None:
            file.dirty_by.discard(fh)
        if inode.kind is not Kind.SCRATCH and not inode.gone:
            if _is_due(fh, file):
                return self._release(fh, inode)
            if inode.node == 0 and inode.place is not None and file.handles == 0:
                self._abandon(inode)
        if orphans.is_orphan(self._mounted, inode):
            return orphans.keep(self._mounted, inode)
        self.tidy(inode)
        return None

    async def _release(self, fh: int, inode: Inode) -> None:
        file, failed = _file(inode), True
        file.handles += 1  # until the commit is over
        try:
            await self.commit(inode, fh)
            failed = False
        except MemfsError as error:
            if not isinstance(error, InvalidText):  # flush said so; others may complete it
                log.warning("a close could not be committed: %s", error)
        finally:
            file.handles -= 1
            if failed and not file.handles:  # flush told the program; now the head shows again
                self._roll_back(inode)
                self._abandon(inode)
            self.tidy(inode)

    def tidy(self, inode: Inode) -> None:
        """Drop the buffer of a note that nobody has open."""
        file = inode.file
        if file is None or file.handles or inode.place is not None:
            return
        self.free_scratch(inode)
        if inode.kind is Kind.NOTE and not inode.gone and not file.is_ahead:
            inode.file = None
        self._mounted.table.drop_unused(inode)

    def free_scratch(self, inode: Inode) -> None:
        """Give back what a removed temporary file takes, once nobody has it open."""
        file = inode.file
        if inode.kind is Kind.SCRATCH and inode.gone and file is not None and not file.handles:
            inode.attached.scratch_bytes -= len(file.buffer or b"")
            file.buffer = None

    def _abandon(self, inode: Inode) -> None:
        """Take away a new file of which nothing may be kept."""
        if inode.place is None:
            return
        parent, name = inode.place
        attached = inode.attached
        attached.take_fresh(inode)
        inode.gone = inode.stale = True  # stale: the kernel may open it once more by this name
        folder = attached.by_node.get(parent)
        if folder is not None:
            self._mounted.tell_kernel(folder, name)

    def detach(self, inode: Inode) -> bool:
        """Make an inode whose note others have changed fit to be opened; False if it is gone.

        It shows its own, older text; appends will be put behind whatever is the head then.
        """
        try:
            info = self._service.view(tree.get, inode.node)
        except NotFound:
            return False
        if info.note is None or info.parent == 0 or inode.sha256 is None:
            return False
        if inode.file is None or not inode.file.handles:
            inode.file = File(_DETACHED)
            inode.file.load(self._mounted.text(inode.sha256))
            inode.file.mode, inode.file.base_mtime = info.mode, info.mtime
        return True

    def is_promised(self, inode: Inode) -> bool:
        """Whether a file holds what a stop must not take: written text, or a name just made.

        Emptiness alone is none: the note, or the one it continues, has its text until a write.
        """
        file = inode.file
        if file is None or inode.kind is not Kind.NOTE:
            return False
        return bool(file.dirty_by) or (
            file.emptied and inode.place is not None and file.waiting is None
        )

    def lock(self, inode: Inode) -> trio.Lock:
        """Return what is held while a file's text is being committed."""
        file = _file(inode)
        if file.lock is None:
            file.lock = trio.Lock()
        return file.lock

    async def commit(self, inode: Inode, closed: int | None = None) -> None:
        """Make the buffer the note's head as one version; a text equal to the head makes none.

        closed: the handle whose close is the reason; if it was opened again since, none is.
        Raises: what files.save raises. A text that lost against another change is kept in
        .memfs/refused first, then the file is stale.
        """
        file = _file(inode)
        async with self.lock(inode):
            if not file.is_ahead or inode.gone:
                return
            if closed is not None and not _is_due(closed, file):
                return
            data, writes, text = bytes(self.buffer(inode)), file.writes, None
            try:
                text = await self._service.screen(data)
                await self._save(inode, file, text, writes)
            except InvalidText as error:
                # in the middle of a character, as when a child closes its copy: it may go on
                if not can_become_utf8(data):
                    self._refuse_all(inode, error)
                    self._roll_back(inode)
                raise
            except SecretRefused as error:
                self._refuse_all(inode, error)
                self._roll_back(inode)
                raise
            except _PASSING:
                raise
            except Exception as failure:
                bug = MemfsError("a bug in memfs: see the daemon's log")
                error = failure if isinstance(failure, MemfsError) else bug
                lost = self._refuse_all(inode, error)
                if text is not None:
                    await self._keep_refused(inode, file, text, error, lost)
                raise

    async def commit_last(self, inode: Inode) -> None:
        """Commit a text that nobody will be able to complete: half a character at its end goes.

        Raises: as commit.
        """
        try:
            await self.commit(inode)
        except InvalidText:
            file = _file(inode)
            if file.buffer is None or not can_become_utf8(bytes(file.buffer)):
                raise
            whole = bytes(file.buffer).decode(errors="ignore").encode()
            del file.buffer[len(whole) :]
            file.writes += 1
            log.warning("%s ended within a character", self._mounted.place_of(inode))
            await self.commit(inode)

    async def _save(self, inode: Inode, file: File, text: Text, writes: int) -> None:
        """Commit *text*, which the buffer was after *writes*; what came since stays uncommitted."""
        attached = inode.attached
        now = self._service.now()
        attributes = file.mtime, file.mode
        save = Save(
            text=text,
            base=file.base,
            tail=text.data[file.base_bytes :] if file.appends else None,
            mode=file.mode,
            mtime=now if file.mtime is None else file.mtime,
        )
        scanner = self._service.scanner
        file.committing = text.sha256
        try:
            if inode.node != 0:
                info = await self._service.commit(
                    files.save, attached.caller, inode.node, save, scanner
                )
            else:
                assert inode.place is not None
                info = await self._service.commit(
                    files.save_new,
                    attached.caller,
                    attached.store,
                    *inode.place,
                    save,
                    scanner,
                    file.waiting,
                    attached.backup_at(*inode.place),
                )
                self._mounted.placed(attached, *inode.place, info)
        finally:
            file.committing = None
        ahead = file.mtime, file.dirty_by.copy(), file.emptied
        appends, late = file.appends, (file.mtime, file.mode) != attributes
        self.committed(inode, info, text)
        if file.writes != writes:  # more came meanwhile
            file.mtime, file.dirty_by, file.emptied = ahead
            file.appends = appends and self.buffer(inode).startswith(text.data)
        elif late:
            with suppress(MemfsError):  # the text is committed, whatever becomes of the note
                await self._service.commit(
                    files.set_attr, attached.caller, inode.node, file.mode, ahead[0]
                )

    def committed(self, inode: Inode, info: NodeInfo, text: Text) -> None:
        """Note that *inode*'s text is now *info*'s head, or was put behind another's text."""
        assert info.note is not None
        file, attached = _file(inode), inode.attached
        if inode.place is not None:
            attached.hidden.pop(inode.place, None)
            attached.take_fresh(inode)
        file.waiting = None
        inode.kind, inode.node = Kind.NOTE, info.node
        inode.sha256, file.base_mtime = text.sha256, info.mtime
        attached.seen[info.note.id] = info.note.sha256
        there = attached.by_node.get(info.node)
        if info.note.sha256 == text.sha256 and not inode.stale:
            file.settle(text.sha256, text.size_bytes)
            if there is not None and there is not inode:
                self._mounted.supersede(there)
            attached.by_node[info.node] = inode
            return
        file.settle(_DETACHED, text.size_bytes)
        for old in {inode, there} - {None}:
            assert old is not None
            self._mounted.supersede(old)
        self._forget_entry(inode)

    def _forget_entry(self, inode: Inode) -> None:
        """Have the kernel look up again what a stale inode's name leads to."""
        try:
            info = self._service.view(tree.get, inode.node)
        except NotFound:
            return
        folder = inode.attached.by_node.get(info.parent)
        if folder is not None:
            self._mounted.tell_kernel(folder, info.name)

    async def _keep_refused(
        self, inode: Inode, file: File, text: Text, error: MemfsError, lost: set[int]
    ) -> None:
        """Keep the text that lost, and let the file's name lead to the head again.

        lost: the handles that have been told. What others write meanwhile is theirs to commit, or
        to be told of.
        """
        attached, writes = inode.attached, file.writes
        data = bytes(self.buffer(inode))
        if data != text.data:  # written while the commit ran; those who did have been told, too
            with suppress(InvalidText, SecretRefused, TextTooLong):
                text = await self._service.screen(data)
        path = self._mounted.place_of(inode)
        base = None if file.base in (None, _DETACHED) else file.base
        try:
            await self._service.commit(
                refused.keep,
                attached.caller,
                attached.store,
                path,
                text,
                str(error),
                base,
                inode.node,
            )
        except MemfsError as failure:
            log.error("a refused text could not be kept: %s", failure)
        file.dirty_by -= lost
        if file.writes == writes:
            file.emptied = False
        inode.sha256 = text.sha256
        if inode.node == 0:
            self._refuse_writers(inode, error)
            self._abandon(inode)
            return
        self._mounted.supersede(inode)
        self._forget_entry(inode)

    def _check(self, buffer: bytearray, offset: int, data: bytes) -> None:
        self._service.require_space()
        if max(len(buffer), offset + len(data)) > limits.NOTE_BYTES:
            raise _too_long()
        if not can_become_utf8(data):
            raise InvalidText("a note is UTF-8 text: encode it, or keep binary files elsewhere")

    def _refuse_all(self, inode: Inode, error: MemfsError) -> set[int]:
        """Let every handle whose writes are lost with this commit say so at its close."""
        lost = _file(inode).dirty_by.copy()
        for fh in lost:
            handle = self._mounted.handles.get(fh)
            if handle is not None:
                handle.refused = error
        return lost

    def _refuse_writers(self, inode: Inode, error: MemfsError) -> None:
        """Let every handle that may still write say that it is too late."""
        for handle in self._mounted.handles.values():
            if handle.inode is inode and handle.writes and handle.refused is None:
                handle.refused = error

    def _refuse_write(self, fh: int, handle: Handle, error: MemfsError) -> None:
        """Take back what this opening wrote, unless others wrote too."""
        handle.refused = error
        inode = handle.inode
        inode.attached.folder.note_refusal(self._mounted.place_of(inode), str(error))
        file = _file(inode)
        if file.dirty_by <= {fh}:
            self._roll_back(inode)
        file.dirty_by.discard(fh)

    def _roll_back(self, inode: Inode) -> None:
        """Take back what is not committed; the name leads to a fresh inode from now on.

        The kernel counts what it wrote to this one: an append would leave a gap.
        """
        file = _file(inode)
        file.drop()
        file.rolled_back = True
        if inode.node != 0 and not inode.gone:
            self._mounted.supersede(inode)
            self._mounted.tell_kernel(inode)
            self._forget_entry(inode)

    def _grow_scratch(self, inode: Inode, end: int, *, shrink: bool = False) -> None:
        attached, now = inode.attached, len(self.buffer(inode))
        more = end - now if shrink or end > now else 0
        if end > limits.SCRATCH_FILE_BYTES:
            raise NoSpace(f"a temporary file holds at most {limits.SCRATCH_FILE_BYTES} bytes")
        if more > 0 and attached.scratch_bytes + more > limits.SCRATCH_ATTACHMENT_BYTES:
            raise NoSpace("the task's temporary files are full: remove some")
        attached.scratch_bytes += more


def _file(inode: Inode) -> File:
    if inode.file is None:
        raise NotFound("the file was closed")
    return inode.file


def _is_due(fh: int, file: File) -> bool:
    """Whether the close of *fh* has to commit: it wrote, or nobody is left who might write."""
    return fh in file.dirty_by or (file.is_ahead and file.writers == 0)


def _too_long() -> TextTooLong:
    return TextTooLong(f"a note holds at most {limits.NOTE_BYTES} bytes: split it")


def _overwrite(buffer: bytearray, offset: int, data: bytes) -> None:
    if offset > len(buffer):
        buffer.extend(bytes(offset - len(buffer)))
    buffer[offset : offset + len(data)] = data
