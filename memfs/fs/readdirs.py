"""Listing folders: the store's entries and those of this attachment (SEMANTICS: Mount)."""

from collections.abc import Coroutine
from typing import Any

from pyfuse3 import ROOT_INODE, EntryAttributes, FileHandleT, ReaddirToken, readdir_reply

from memfs.engine import tree
from memfs.engine.service import Service
from memfs.errors import NotFound
from memfs.fs import attr
from memfs.fs.control import Kind as ControlKind
from memfs.fs.inodes import Inode, Kind
from memfs.fs.listing import DOTS, Listing
from memfs.fs.mounted import Mounted
from memfs.types import Node, NodeInfo, Seq

_AHEAD = 256  # entries to read from the store at a time; a buffer of the kernel's takes some 200
_WHOLE = 131_072  # entries of whole folders to keep


class _Whole:
    """Folders as they were listed from end to end, good until something is committed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seq = Seq(0)
        self._entries: dict[Node, list[NodeInfo]] = {}
        self._room = _WHOLE

    def read(self, listing: Listing, after: str) -> list[NodeInfo]:
        """Return the entries after a name, last first; a whole folder's or a number of them."""
        seq, folder = self._service.feed.seq, listing.inode
        if self._seq != seq:
            self._entries, self._room, self._seq = {}, _WHOLE, seq
        if not after:
            whole = self._entries.get(folder.node)
            listing.ahead_seq, listing.read = seq, [] if whole is None else None
            if whole is not None:
                return whole[::-1]
        elif listing.ahead_seq != seq:
            listing.ahead_seq, listing.read = seq, None  # the beginning was of another time
        store = folder.attached.store
        found = self._service.view(tree.list_folder, store, folder.node, after, _AHEAD)
        if listing.read is not None:
            listing.read += found
            if len(found) < _AHEAD and len(listing.read) <= self._room:
                self._room -= len(listing.read)
                self._entries[folder.node], listing.read = listing.read, None
        return found[::-1]


class Readdirs:
    """The listings of this mount."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self._service = mounted.service
        self._whole = _Whole(mounted.service)

    def opendir(self, inode: Inode) -> FileHandleT | Coroutine[Any, Any, FileHandleT]:
        """Return a number for an open folder."""
        if inode.kind is Kind.CONTROL:
            return self._opendir_control(inode)
        return FileHandleT(self._mounted.open_listing(Listing(self._mounted.folder(inode.ino))))

    async def _opendir_control(self, inode: Inode) -> FileHandleT:
        listing = Listing(inode)
        found = await inode.attached.folder.list(inode.parts)
        listing.control = [(name, kind is ControlKind.FOLDER) for name, kind in found]
        return FileHandleT(self._mounted.open_listing(listing))

    def readdir(self, listing: Listing, start: int, token: ReaddirToken) -> None:
        """Give out entries from position *start* until the kernel's buffer is full."""
        if start == 0:
            listing.rewind()
        if start < DOTS and not self._dots(listing.inode, start, token):
            return
        if listing.control is not None:
            self._readdir_control(listing, listing.control, max(0, start - DOTS), token)
            return
        after = listing.name_at(start)
        if after is not None:
            if after != listing.last:
                listing.ahead, listing.read, listing.last = [], None, after
                listing.look_up()
            self._readdir(listing, after, token)

    def _dots(self, folder: Inode, start: int, token: ReaddirToken) -> bool:
        """Give out the dots behind *start*; return whether there is room for more.

        The kernel does not count them as looked up.
        """
        dots = ((b".", folder.ino), (b"..", self._above(folder)))
        return all(
            readdir_reply(token, name, attr.dot(ino), position)
            for position, (name, ino) in enumerate(dots[start:], start + 1)
        )

    def _above(self, folder: Inode) -> int:
        """Return the inode number of the folder that a folder is in."""
        attached = folder.attached
        if folder.stale:  # removed, or its task has ended, while it is open
            return folder.ino
        if folder.kind is Kind.CONTROL:
            above = self._mounted.root(attached.no) if not folder.parts else None
            above = above or self._mounted.control(attached, folder.parts[:-1])
            return above.ino
        try:
            info = self._service.view(tree.get, folder.node)
            if info.parent == 0:
                return ROOT_INODE
            parent = self._service.view(tree.get, info.parent)
        except NotFound:  # removed, and the news is not here yet
            return folder.ino
        above = self._mounted.of_node(attached, parent)
        self._mounted.table.drop_unused(above)
        return above.ino

    def _readdir(self, listing: Listing, after: str, token: ReaddirToken) -> None:
        folder = listing.inode
        attached = folder.attached
        more = True
        while more and not folder.stale:
            if attached.hidden or attached.fresh.get(folder.node):
                more = self._give_merged(listing, after, token)
            else:
                more = self._give_stored(listing, after, token)
            after = listing.last

    def _give_stored(self, listing: Listing, after: str, token: ReaddirToken) -> bool:
        """Give out the store's next entries; return whether there is room and something left.

        What was read ahead is good as long as nothing was committed since.
        """
        attached, service = listing.inode.attached, self._service
        if listing.ahead_seq != service.feed.seq or not listing.ahead:
            listing.ahead = self._whole.read(listing, after)
        ahead, by_node, names, first = listing.ahead, attached.by_node, listing.names, DOTS + 1
        while ahead:
            info = ahead[-1]
            inode = by_node.get(info.node)
            if inode is not None and inode.shown_of is info and inode.file is None:
                entry = inode.shown  # the usual case, at once
                assert entry is not None
            else:
                inode = self._mounted.of_node(attached, info)
                entry = attr.of_node(inode, info)
            name = info.name
            # as _give, without the calls: this is `ls -l`
            at = len(names) + first if listing.positions is None else listing.position(name)
            if not readdir_reply(token, name.encode(), entry, at):
                self._mounted.table.drop_unused(inode)
                return False
            inode.lookups += 1
            listing.gave(name)
            ahead.pop()
        return listing.last != after

    def _give_merged(self, listing: Listing, after: str, token: ReaddirToken) -> bool:
        """As _give_stored, with what lives in this attachment only."""
        listing.ahead, listing.read = [], None
        for name, inode, info in self._merged(listing.inode, after):
            if inode is None:
                assert info is not None
                inode = self._mounted.of_node(listing.inode.attached, info)
            entry = attr.of_file(inode) if info is None else attr.of_node(inode, info)
            if not self._give(listing, name, inode, entry, token):
                return False
        return listing.last != after

    def _give(
        self,
        listing: Listing,
        name: str,
        inode: Inode,
        entry: EntryAttributes,
        token: ReaddirToken,
    ) -> bool:
        """Give out an entry, which the kernel then knows; False if the buffer is full."""
        if not readdir_reply(token, name.encode(), entry, listing.position(name)):
            self._mounted.table.drop_unused(inode)
            return False
        inode.lookups += 1
        listing.gave(name)
        return True

    def _merged(self, folder: Inode, after: str) -> list[tuple[str, Inode | None, NodeInfo | None]]:
        """Return the next entries in byte order of names: the store's and this attachment's."""
        attached = folder.attached
        found = self._service.view(tree.list_folder, attached.store, folder.node, after, _AHEAD)
        batch: dict[str, tuple[Inode | None, NodeInfo | None]] = {
            info.name: (None, info)
            for info in found
            if (folder.node, info.name) not in attached.hidden
        }
        edge = found[-1].name.encode() if len(found) == _AHEAD else None
        floor = after.encode()
        for name, inode in attached.fresh.get(folder.node, {}).items():
            raw = name.encode()
            if raw > floor and (edge is None or raw <= edge):
                batch[name] = (inode, None)
        if found and not batch:  # all of them hidden: look further
            return self._merged(folder, found[-1].name)
        return sorted(
            ((name, inode, info) for name, (inode, info) in batch.items()),
            key=lambda row: row[0].encode(),
        )

    def _readdir_control(
        self, listing: Listing, names: list[tuple[str, bool]], start: int, token: ReaddirToken
    ) -> None:
        folder = listing.inode
        for position, (name, is_folder) in enumerate(names[start:], start + DOTS + 1):
            child = self._mounted.control(folder.attached, (*folder.parts, name))
            entry = attr.of_control(child, self._service.now(), is_folder=is_folder)
            if not readdir_reply(token, name.encode(), entry, position):
                self._mounted.table.drop_unused(child)
                return
            child.lookups += 1
