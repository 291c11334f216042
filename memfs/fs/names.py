"""Folders and names: lookup, create, mkdir, unlink, rmdir, rename (SEMANTICS: Mount).

A folder shows the store's entries and, in front of them, what lives in this attachment only: new
files that are not committed yet and scratch files. A note that was renamed to a scratch name is
hidden until it is clear whether that was a save or a delete.
"""

import os
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any

from pyfuse3 import EntryAttributes

from memfs.engine import files, notes, tree
from memfs.engine.files import Save, Seen
from memfs.engine.path import RESERVED, check_name
from memfs.engine.saves import Backup
from memfs.engine.scratch import is_temporary_for
from memfs.errors import (
    FolderNotEmpty,
    IsAFolder,
    MemfsError,
    NotAFolder,
    NotFound,
    PathConflict,
    PreconditionFailed,
    ReadOnly,
)
from memfs.fs import attr
from memfs.fs.attached import Attached, Moved, Waiting
from memfs.fs.control import Kind as ControlKind
from memfs.fs.inodes import File, Inode, Kind
from memfs.fs.mounted import Mounted, Stale
from memfs.fs.settle import Settle
from memfs.fs.texts import Texts
from memfs.types import NO_NODE, Node, NodeInfo, Text

_CONTROL = RESERVED.encode()


class Names:
    """The tree as this mount shows it."""

    def __init__(self, mounted: Mounted, texts: Texts, settle: Settle) -> None:
        self._mounted = mounted
        self._service = mounted.service
        self._texts = texts
        self._settle = settle

    # ---- looking

    def lookup(
        self, parent: Inode, raw: bytes
    ) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        """Return what *raw* is in a folder; "no such name" is an answer that gets cached."""
        if parent.kind is Kind.CONTROL:
            return self._lookup_control(parent, raw)
        if raw == _CONTROL and parent.node == parent.attached.attachment.root:
            return self._lookup_control(parent, raw)
        try:
            name = check_name(raw)
        except MemfsError:  # it cannot be there; making it says why
            return attr.nothing()
        found = self.find(parent, name)
        if found is None:
            return attr.nothing()
        inode, entry = found
        inode.lookups += 1
        return entry

    async def _lookup_control(self, parent: Inode, raw: bytes) -> EntryAttributes:
        attached = parent.attached
        parts = (*parent.parts, os.fsdecode(raw)) if parent.kind is Kind.CONTROL else ()
        kind = ControlKind.FOLDER if not parts else await attached.folder.kind(parts)
        inode = self._mounted.control(attached, parts)
        inode.lookups += 1
        return await self.attr_control(inode, kind is ControlKind.FOLDER)

    async def attr_control(self, inode: Inode, is_folder: bool | None = None) -> EntryAttributes:
        """Return the attributes of something below .memfs."""
        folder = inode.attached.folder
        if is_folder is None:
            is_folder = not inode.parts or await folder.kind(inode.parts) is ControlKind.FOLDER
        return attr.of_control(inode, self._service.now(), is_folder=is_folder)

    def find(self, parent: Inode, name: str) -> tuple[Inode, EntryAttributes] | None:
        """Return inode and attributes of a folder's entry, or None."""
        attached = parent.attached
        fresh = attached.fresh_at(parent.node, name)
        if fresh is not None:
            return fresh, attr.of_file(fresh)
        if (parent.node, name) in attached.hidden:
            return None
        info = self._service.view(tree.child, attached.store, parent.node, name)
        if info is None:
            return None
        inode = self._mounted.of_node(attached, info)
        return inode, attr.of_node(inode, info)

    def getattr(self, inode: Inode) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        """Return an inode's attributes."""
        if inode.kind is Kind.CONTROL:
            return self.attr_control(inode)
        if inode.kind is Kind.SCRATCH or inode.place is not None or inode.gone:
            if inode.file is None:
                raise NotFound("the file was removed")
            return attr.of_file(inode)
        if inode.kind is Kind.FOLDER:
            self._mounted.folder(inode.ino)
            return attr.of_node(inode, self._service.view(tree.get, inode.node))
        if not (inode.stale and inode.file is not None):
            try:
                return attr.of_node(inode, self._mounted.head(inode))
            except Stale:
                if inode.file is None or not inode.file.handles:
                    raise
        return attr.of_file(inode)

    # ---- making

    def create(
        self,
        parent: Inode,
        raw: bytes,
        mode: int,
        *,
        exclusive: bool,
        mkstemp: bool,
        appends: bool,
    ) -> Inode:
        """Make a new file: scratch by its name, otherwise a note once its text is committed.

        Raises: PathConflict (exclusive, and the name is taken), ReadOnly, InvalidPath,
        StoreArchived, LimitReached.
        """
        self.check_makes(parent)
        attached = self._mounted.folder(parent.ino).attached
        shown = ascii(raw.decode(errors="backslashreplace"))[1:-1]
        with self._mounted.explaining(attached, lambda: self._mounted.path_in(parent, shown)):
            name = check_name(raw)
        there = self.find(parent, name)
        if there is not None:
            if exclusive:
                raise PathConflict(f"{name!r} is there already")
            return there[0]
        if self._mounted.scratch.matches(name, mkstemp):
            inode = self._mounted.table.add(Kind.SCRATCH, attached)
            inode.file = File(None, bytearray())
        else:
            waiting = attached.hidden.get((parent.node, name))
            if waiting is None:  # else it is no new note
                place = partial(self._mounted.path_in, parent, name)
                with self._mounted.explaining(attached, place):
                    self._service.view(files.check_create, attached.store, parent.node, name)
            inode = self._mounted.table.add(Kind.NOTE, attached)
            inode.temporary = mkstemp
            inode.file = file = File(None, bytearray())
            file.emptied = True
            file.appends = appends  # else it is not put behind what another task makes here
            if waiting is not None:
                file.waiting, file.base, file.appends = waiting.node, waiting.sha256, False
        inode.file.mode = mode & 0o777
        inode.file.mtime = self._service.now()
        attached.put_fresh(inode, parent.node, name)
        return inode

    async def mknod(self, parent: Inode, raw: bytes, mode: int) -> Inode:
        """Make an empty file that nobody has open; a note is committed at once.

        Raises: as create and Texts.commit.
        """
        inode = self.create(parent, raw, mode, exclusive=True, mkstemp=False, appends=False)
        inode.lookups += 1
        try:
            if inode.kind is Kind.NOTE:
                await self._texts.commit(inode)
        except BaseException:
            inode.lookups -= 1
            if inode.place is not None:
                self._drop_fresh(inode)
            raise
        self._texts.tidy(inode)
        await self._settled(parent.attached)
        return inode

    async def mkdir(self, parent: Inode, raw: bytes, mode: int) -> EntryAttributes:
        """Make a folder that stays until rmdir."""
        self.check_makes(parent)
        name = check_name(raw)
        attached = self._mounted.folder(parent.ino).attached
        if self.find(parent, name) is not None:
            raise PathConflict(f"{name!r} is there already")
        waiting = attached.hidden.get((parent.node, name))
        if waiting is not None:  # the folder takes its place
            await self._unlink_waiting(attached, (parent.node, name), waiting)
        info = await self._service.commit(
            files.make_folder, attached.caller, attached.store, parent.node, name, mode & 0o777
        )
        await self._settled(attached)
        inode = self._mounted.of_node(attached, info)
        inode.lookups += 1
        return attr.of_node(inode, info)

    # ---- removing

    def unlink(self, parent: Inode, raw: bytes) -> Coroutine[Any, Any, None] | None:
        """Remove a name. An open file goes on working; closing it brings nothing back."""
        name, attached = self._entry(parent, raw), parent.attached
        fresh = attached.fresh_at(parent.node, name)
        if fresh is None:
            if (parent.node, name) in attached.hidden:
                raise NotFound(f"nothing is called {name!r} here")
            return self._unlink(parent, name)
        if self._texts.lock(fresh).locked():
            return self._unlink_after(parent, name, raw)
        self._drop_fresh(fresh)
        return self._end_waiting(attached)

    async def _unlink_after(self, parent: Inode, name: str, raw: bytes) -> None:
        await self._committed(parent, name)
        left = self.unlink(parent, raw)
        if left is not None:
            await left

    async def _unlink(self, parent: Inode, name: str) -> None:
        attached = parent.attached
        found = self.find(parent, name)
        if found is None:
            raise NotFound(f"nothing is called {name!r} here")
        async with self._held(found[0]):  # a close that is under way comes before or not at all
            info = await self._service.commit(
                files.unlink, attached.caller, attached.store, parent.node, name
            )
            self._gone(attached, info.node)
        await self._settled(attached)

    def _end_waiting(self, attached: Attached) -> Coroutine[Any, Any, None] | None:
        """Delete a note in waiting whose copy is gone and whose place nothing took."""
        for place, waiting in attached.hidden.items():
            is_over = waiting.copy.gone or waiting.copy.kind is not Kind.SCRATCH
            if is_over and attached.fresh_at(*place) is None:
                return self._unlink_waiting(attached, place, waiting)
        return None

    async def _unlink_waiting(
        self, attached: Attached, place: tuple[Node, str], waiting: Waiting
    ) -> None:
        del attached.hidden[place]
        try:
            await self._service.commit(
                files.unlink, attached.caller, attached.store, *place, waiting.sha256
            )
        except (PreconditionFailed, NotFound):  # it is another's by now, and shows again
            folder = attached.by_node.get(place[0])
            if folder is not None:
                self._mounted.tell_kernel(folder, place[1])
        await self._settled(attached)

    def _drop_fresh(self, inode: Inode) -> None:
        """Take a new or scratch file's name away."""
        inode.attached.take_fresh(inode)
        inode.gone = True
        self._texts.free_scratch(inode)
        self._mounted.table.drop_unused(inode)

    def _gone(self, attached: Attached, node: Node) -> None:
        """A node's name was removed through this attachment."""
        inode = attached.by_node.pop(node, None)
        if inode is not None:
            inode.gone = True
            if inode.kind is Kind.NOTE:
                if inode.file is None:
                    inode.file = File(inode.sha256)
                self._mounted.pin(inode)
            self._mounted.table.drop_unused(inode)

    async def rmdir(self, parent: Inode, raw: bytes) -> None:
        """Remove an empty folder."""
        name, attached = self._entry(parent, raw), parent.attached
        if attached.fresh_at(parent.node, name) is not None:
            raise NotAFolder(f"{name!r} is a file")
        info = self._service.view(tree.child, attached.store, parent.node, name)
        if info is not None:
            self._check_unused(parent, name, info.node)
        for place, waiting in list(attached.hidden.items()):
            if info is not None and place[0] == info.node:  # its folder goes, as far as seen here
                await self._unlink_waiting(attached, place, waiting)
        info = await self._service.commit(
            files.remove_folder, attached.caller, attached.store, parent.node, name
        )
        inode = attached.by_node.pop(info.node, None)
        if inode is not None:
            inode.stale = True
        await self._settled(attached)

    # ---- renaming

    async def rename(
        self, parent: Inode, raw: bytes, new_parent: Inode, new_raw: bytes, *, replace: bool
    ) -> None:
        """Move an entry to another name of the same attachment."""
        attached = parent.attached
        name, new_name = self._entry(parent, raw), self._entry(new_parent, new_raw)
        self._mounted.same(parent, new_parent)
        if (parent.node, name) == (new_parent.node, new_name):
            return
        await self._committed(parent, name)
        await self._committed(new_parent, new_name)
        async with AsyncExitStack() as held:
            covered = self.find(new_parent, new_name)
            if covered is not None:  # and what is replaced must commit nothing any more
                await held.enter_async_context(self._held(covered[0]))
            await self._rename_held(parent, name, new_parent, new_name, replace=replace)
        while (ending := self._end_waiting(attached)) is not None:
            await ending
        await self._settled(attached)

    async def _rename_held(
        self, parent: Inode, name: str, new_parent: Inode, new_name: str, *, replace: bool
    ) -> None:
        found = self.find(parent, name)
        if found is None:
            raise NotFound(f"nothing is called {name!r} here")
        inode = found[0]
        there = self.find(new_parent, new_name)
        if there is not None:
            if not replace:
                raise PathConflict(f"{new_name!r} is there already")
            self._check_replace(inode, there[0])
            if there[0].kind is Kind.FOLDER:
                self._check_unused(new_parent, new_name, there[0].node)
        if inode.kind is Kind.FOLDER:
            places = self._new_files(inode.attached)
            self._service.view(
                files.check_new_files_fit, inode.node, new_parent.node, new_name, places
            )
            await self._rename(parent, name, new_parent, new_name, None, replace=replace)
            self._remember_places(inode.attached)
        elif self._mounted.scratch.matches(new_name, False) and (
            there is None or there[0].kind is Kind.SCRATCH
        ):
            await self._to_scratch(inode, parent, name, new_parent, new_name)
        elif inode.kind is Kind.SCRATCH:
            await self._from_scratch(inode, new_parent, new_name, replace=replace)
        else:
            if inode.node == 0 or (there is not None and inode.file and inode.file.is_ahead):
                await self._texts.commit(inode)
            await self._rename(parent, name, new_parent, new_name, inode, replace=replace)
        if inode.path:
            self._mounted.place_of(inode)

    def _new_files(self, attached: Attached) -> list[tuple[Node, str]]:
        """Return folder and name of every file of the store, anybody's, that is no note yet."""
        return [
            inode.place
            for other in self._mounted.by_store.get(attached.store, ())
            for there in other.fresh.values()
            for inode in there.values()
            if inode.kind is Kind.NOTE and inode.place is not None
        ]

    def _remember_places(self, attached: Attached) -> None:
        """Let what is being written know where a moved folder took it."""
        for handle in self._mounted.handles.values():
            if handle.writes and handle.inode.attached is attached:
                self._mounted.place_of(handle.inode)

    def _check_replace(self, inode: Inode, there: Inode) -> None:
        if inode.kind is Kind.FOLDER and there.kind is not Kind.FOLDER:
            raise NotAFolder("a folder cannot replace a file")
        if inode.kind is not Kind.FOLDER and there.kind is Kind.FOLDER:
            raise IsAFolder("a file cannot replace a folder")

    def _check_unused(self, parent: Inode, name: str, node: Node) -> None:
        """Check that no file that is not in the store would lose its folder.

        Of other tasks' files those count that are open: they are about to become notes.
        Raises: FolderNotEmpty.
        """
        attached = parent.attached
        if attached.fresh.get(node):
            raise FolderNotEmpty(f"folder {name!r} is not empty: it holds new or temporary files")
        for other in self._mounted.by_store.get(attached.store, ()):
            for inode in other.fresh.get(node, {}).values():
                if inode.file is not None and inode.file.handles:
                    with self._mounted.explaining(
                        attached, lambda: self._mounted.path_in(parent, name)
                    ):
                        raise FolderNotEmpty(
                            f"another task is writing in folder {name!r}: try again when it is done"
                        )

    def _seen(self, parent: Inode, name: str) -> Seen | None:
        """Return what this task last opened at an entry, for the guard."""
        attached = parent.attached
        if not attached.attachment.guard:
            return None
        info = self._service.view(tree.child, attached.store, parent.node, name)
        if info is None or info.note is None or info.note.id not in attached.seen:
            return None
        return Seen(info.note.id, attached.seen[info.note.id])

    async def _rename(
        self,
        parent: Inode,
        name: str,
        new_parent: Inode,
        new_name: str,
        inode: Inode | None,
        *,
        replace: bool,
    ) -> None:
        """Rename in the store; *inode* is the note's, None for a folder."""
        attached = parent.attached
        there = self._service.view(tree.child, attached.store, new_parent.node, new_name)
        info = await self._service.commit(
            files.rename,
            attached.caller,
            attached.store,
            parent.node,
            name,
            new_parent.node,
            new_name,
            self._seen(new_parent, new_name),
            attached.backup_at(new_parent.node, new_name),
            replace=replace or (new_parent.node, new_name) in attached.hidden,
            temporary=inode is not None and _is_temporary(inode, name, new_name),
        )
        self._placed(new_parent, new_name, info)
        if inode is None:
            if there is not None:
                self._gone(attached, there.node)
            return
        if there is not None and there.node != info.node:  # an older backup gave way
            self._gone(attached, there.node)
        if info.note is not None and info.node != inode.node:  # over a note, which lives on
            self._gone(attached, info.node)
            attached.by_node.pop(inode.node, None)
            self._bind(inode, info)
        elif info.note is not None and parent is new_parent and new_name.startswith(f"{name}."):
            backup = Backup(info.node, info.note.version_id)
            attached.note_backup(parent.node, name, Moved(backup, new_name))

    def _placed(self, parent: Inode, name: str, info: NodeInfo) -> None:
        """A rename ended at an entry: what was there in this attachment only is gone."""
        attached = parent.attached
        covered = attached.fresh_at(parent.node, name)
        if covered is not None:
            self._drop_fresh(covered)
        attached.hidden.pop((parent.node, name), None)
        self._mounted.placed(attached, parent.node, name, info)

    def _bind(self, inode: Inode, info: NodeInfo) -> None:
        """From now on *inode* is what a note's name leads to."""
        assert info.note is not None
        attached = inode.attached
        inode.kind, inode.node = Kind.NOTE, info.node
        inode.sha256 = info.note.sha256
        attached.by_node[info.node] = inode
        attached.seen[info.note.id] = info.note.sha256
        if inode.file is not None:
            inode.file.base = info.note.sha256

    async def _to_scratch(
        self, inode: Inode, parent: Inode, name: str, new_parent: Inode, new_name: str
    ) -> None:
        """Rename to a scratch name: a note goes into waiting, its text stays with the inode."""
        attached = inode.attached
        if inode.kind is Kind.NOTE and inode.node != 0:
            if inode.file is not None and inode.file.is_ahead:
                await self._texts.commit(inode)
            info = self._mounted.head(inode)
            note = notes.note_of(info)
            if inode.file is None:
                inode.file = File(note.sha256)
            inode.file.mode, inode.file.mtime = info.mode, info.mtime
            attached.scratch_bytes += len(self._texts.buffer(inode))
            attached.by_node.pop(info.node, None)
            attached.hidden[parent.node, name] = Waiting(info.node, note.sha256, inode)
            inode.node = NO_NODE
        else:
            if inode.kind is Kind.NOTE:
                attached.scratch_bytes += len(self._texts.buffer(inode))
            attached.take_fresh(inode)
        covered = attached.fresh_at(new_parent.node, new_name)
        if covered is not None:
            self._drop_fresh(covered)
        inode.kind = Kind.SCRATCH
        if inode.file is not None:
            inode.file.dirty_by.clear()
            inode.file.emptied = False
        attached.put_fresh(inode, new_parent.node, new_name)

    async def _from_scratch(
        self, inode: Inode, new_parent: Inode, new_name: str, *, replace: bool
    ) -> None:
        """Rename scratch to an ordinary name: its text becomes a version, errors come from here."""
        attached = inode.attached
        file = inode.file
        assert file is not None
        data = bytes(self._texts.buffer(inode))
        text: Text = await self._service.screen(data)
        now = self._service.now()
        save = Save(text, None, None, file.mode, now if file.mtime is None else file.mtime)
        info = await self._service.commit(
            files.install,
            attached.caller,
            attached.store,
            new_parent.node,
            new_name,
            save,
            self._seen(new_parent, new_name),
            attached.backup_at(new_parent.node, new_name),
            replace=replace or (new_parent.node, new_name) in attached.hidden,
        )
        self._placed(new_parent, new_name, info)
        attached.take_fresh(inode)
        attached.scratch_bytes -= len(self._texts.buffer(inode))
        self._gone(attached, info.node)
        file.settle(text.sha256, text.size_bytes)
        self._bind(inode, info)
        if bytes(self._texts.buffer(inode)) != data:  # written to while it became a note
            file.dirty_by.add(0)
            file.appends = False
            await self._texts.commit(inode)
        if not file.handles:
            inode.file = None

    # ---- shared

    async def _committed(self, parent: Inode, name: str) -> None:
        """Wait while a new file at an entry is becoming a note."""
        fresh = parent.attached.fresh_at(parent.node, name)
        if fresh is not None:
            async with self._texts.lock(fresh):
                pass

    def _held(self, inode: Inode) -> AbstractAsyncContextManager[None]:
        """Hold off commits of an open file."""
        return nullcontext() if inode.file is None else self._texts.lock(inode)

    def check_makes(self, parent: Inode) -> None:
        """Check that names of a folder may be made, moved and removed.

        Raises: ReadOnly, Stale (the task ended), NotFound (the folder was removed).
        """
        self._mounted.writable(parent.attached)
        if parent.kind is Kind.CONTROL:
            raise read_only()
        if parent.stale:
            raise NotFound("the folder was removed: look again with ls")

    def _entry(self, parent: Inode, raw: bytes) -> str:
        """Return the name of an entry that may be moved or removed.

        Raises: as check_makes; ReadOnly (it is .memfs), InvalidPath.
        """
        self.check_makes(parent)
        if raw == _CONTROL and parent.node == parent.attached.attachment.root:
            raise read_only()
        return check_name(raw)

    async def _settled(self, attached: Attached) -> None:
        if self._mounted.others(attached):
            await self._settle.names(self._service.feed.seq)


def _is_temporary(inode: Inode, name: str, new_name: str) -> bool:
    """Whether a note was made to be renamed to *new_name*: by how it was made, or by its name."""
    return inode.temporary or is_temporary_for(name, new_name)


def read_only() -> ReadOnly:
    """Return the error for a change of .memfs or of something below it."""
    return ReadOnly(".memfs is read-only: write notes beside it")
