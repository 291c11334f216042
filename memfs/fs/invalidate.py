"""The notifier: follows the change log and has the kernel forget what others changed.

One thread, never inside a handler, ENOENT (the kernel holds nothing) ignored. A late notifier
loses nothing but time: every open asks the store, so only `stat` can be behind.
"""

import logging
from collections.abc import Callable, Iterable

import pyfuse3
import trio
from pyfuse3 import FileNameT, InodeT

from memfs import limits
from memfs.engine.service import Service
from memfs.feed import Progress
from memfs.fs import orphans
from memfs.fs.attached import Attached
from memfs.fs.inodes import Inode
from memfs.fs.mounted import Mounted
from memfs.types import Change, ChangeKind, Node, Seq, StoreNo

log = logging.getLogger(__name__)

News = list[Callable[[], None]]

_OVER = Seq(2**63)  # past every change


class Notifier:
    """Tells the kernel."""

    def __init__(self, service: Service, mounted: Mounted, progress: Progress) -> None:
        self._service = service
        self._mounted = mounted
        self._progress = progress
        self._limiter = trio.CapacityLimiter(1)
        self._rung = trio.Event()
        mounted.ring = self._ring

    def _ring(self) -> None:
        self._rung.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the change log until cancelled."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, name="notifier: changes")
                nursery.start_soon(self._own, name="notifier: own")
        finally:
            self._progress.reach(_OVER)  # closes at the daemon's end must not wait for it

    async def _follow(self) -> None:
        seq = self._progress.seq
        while True:
            await self._service.feed.wait_past(seq)
            touched: set[StoreNo] = set()
            while rows := self._service.changes(seq, limits.SCAN_BATCH):
                await self._tell([news for row in rows for news in self._news(row)])
                seq = rows[-1].seq
                touched.update(row.store for row in rows)
            # rows of purged or compacted history may be missing: the feed's word counts
            seq = max(seq, Seq(self._service.feed.seq)) if not rows else seq
            self._progress.reach(seq)
            for attached in self._mounted.of_stores(touched):
                await orphans.keep_all(self._mounted, attached)

    async def _own(self) -> None:
        """Tell what handlers asked for: refused writes and rebased texts of this mount."""
        while True:
            await self._rung.wait()
            self._rung = trio.Event()
            asked, self._mounted.kernel_news = self._mounted.kernel_news, []
            await self._tell(
                [_entry(inode, name) if name is not None else _text(inode) for inode, name in asked]
            )

    async def _tell(self, news: News) -> None:
        if news:
            await trio.to_thread.run_sync(_tell, news, limiter=self._limiter)

    def _news(self, row: Change) -> Iterable[Callable[[], None]]:
        for attached in tuple(self._mounted.by_store.get(row.store, ())):
            if attached.no == row.attachment:
                continue
            if row.kind is ChangeKind.STORE:
                yield from self._whole(attached)
                continue
            inode = attached.by_node.get(row.node)
            if inode is not None and not row.name:  # mode or time; or the note left the tree
                yield _attributes(inode)
            yield from self._name(attached, row.parent, row.name)
            yield from self._name(attached, row.old_parent, row.old_name)

    def _name(self, attached: Attached, parent: Node, name: str) -> Iterable[Callable[[], None]]:
        folder = attached.by_node.get(parent)
        if folder is not None and name:
            yield _entry(folder, name)
            yield _attributes(folder)

    def _whole(self, attached: Attached) -> Iterable[Callable[[], None]]:
        """The store was archived, renamed or deleted."""
        for inode in tuple(attached.by_node.values()):
            yield _attributes(inode)


def _tell(news: News) -> None:
    for tell in news:
        try:
            tell()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.debug("the kernel did not take a notice: %s", error)


def _entry(folder: Inode, name: str) -> Callable[[], None]:
    ino, raw = InodeT(folder.ino), FileNameT(name.encode())
    return lambda: pyfuse3.invalidate_entry(ino, raw)


def _attributes(inode: Inode) -> Callable[[], None]:
    ino = InodeT(inode.ino)
    return lambda: pyfuse3.invalidate_inode(ino, attr_only=True)


def _text(inode: Inode) -> Callable[[], None]:
    ino = InodeT(inode.ino)
    return lambda: pyfuse3.invalidate_inode(ino)
