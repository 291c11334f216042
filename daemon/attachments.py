"""Live tasks' folders: follows the change log and mounts, or takes away, what tasks attach."""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from daemon.config import Config
from daemon.mount import Binder, read_mounts
from memfs.engine import tasks
from memfs.engine.service import Service
from memfs.errors import MemfsError
from memfs.feed import Progress
from memfs.fs.operations import Operations
from memfs.types import Access, Attachment, ChangeKind, Seq, Task, TaskId

log = logging.getLogger(__name__)

_BATCH = 512


class Found(NamedTuple):
    """mounts: each folder that should be there, and whether the kernel has it.

    strays: what lies beside the folders, where nothing keeps versions of it.
    """

    mounts: list[dict[str, object]]
    strays: list[str]


class Attachments:
    """Keeps the kernel's mounts equal to the live tasks."""

    def __init__(self, config: Config, service: Service, operations: Operations) -> None:
        self._config = config
        self._service = service
        self._operations = operations
        self._binder = Binder(config)
        self._limiter = trio.CapacityLimiter(1)
        self._looking = trio.CapacityLimiter(1)
        self._shown: dict[TaskId, Task] = {}
        self.progress = Progress(service.feed.seq)
        self.problems: dict[str, str] = {}  # folder that could not be put in place -> why

    def path(self, task: Task, attachment: Attachment) -> Path:
        """Return where a task sees an attachment."""
        return self._config.tasks_dir / task.id / "memory" / attachment.name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Mount every live task, then follow the change log until cancelled."""
        seq = self._service.feed.seq
        await self._sweep()
        for task in await self._service.scan(lambda txn: tasks.live(txn)):
            await self._show(task)
        self.progress.reach(seq)
        task_status.started()
        while True:
            await self._service.feed.wait_past(seq)
            while rows := self._service.changes(seq, _BATCH):
                for row in rows:
                    if row.kind is ChangeKind.TASK:
                        await self._follow_safely(TaskId(row.subject))
                seq = rows[-1].seq
            seq = Seq(max(seq, self._service.feed.seq))
            self.progress.reach(seq)

    async def _sweep(self) -> None:
        """Take away the folders of ended tasks that a daemon left which was killed meanwhile."""
        for name in await trio.to_thread.run_sync(self._folders):
            task = self._service.view(tasks.find, name)
            if task is not None and task.ended_at is not None:
                await self._unbind(task)

    def _folders(self) -> list[str]:
        """Return what may be tasks' folders, of tasks that have ended too."""
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._config.tasks_dir) if name.isascii()]
        return []

    async def _follow_safely(self, task_id: TaskId) -> None:
        try:
            await self._follow(task_id)
        except Exception:  # one task's folders must not end the others'
            log.exception("bug in mounting task %s", task_id)

    async def _follow(self, task_id: TaskId) -> None:
        task = self._service.view(tasks.find, task_id)  # a deleted one, too: its folders must go
        if task is None:
            return
        if task.ended_at is None:
            await self._show(task)
        else:
            await self._hide(task)

    async def _show(self, task: Task) -> None:
        if task.id in self._shown:
            return
        self._shown[task.id] = task
        for attachment in task.attachments:
            self._operations.attach(task, attachment)
            target = self.path(task, attachment)
            read_only = attachment.access is Access.READ_ONLY
            source = self._config.mount_dir / str(attachment.no)
            try:
                # resolves its source through our own mount: never on the loop
                await trio.to_thread.run_sync(
                    self._binder.bind,
                    source,
                    target,
                    read_only,
                    task.uid,
                    task.gid,
                    limiter=self._limiter,
                )
                self.problems.pop(str(target), None)
            except MemfsError as error:
                self.problems[str(target)] = str(error)
                log.error("%s is not mounted: %s", target, error)

    async def _hide(self, task: Task) -> None:
        self._shown.pop(task.id, None)
        await self._unbind(task)
        for attachment in task.attachments:
            self.problems.pop(str(self.path(task, attachment)), None)
            await self._operations.detach(attachment.no)

    async def hide_all(self) -> None:
        """Take every folder away; at the end of the daemon."""
        for task in list(self._shown.values()):
            await self._unbind(task)
        self._shown.clear()

    async def _unbind(self, task: Task) -> None:
        targets = [self.path(task, attachment) for attachment in task.attachments]
        try:
            await trio.to_thread.run_sync(self._binder.unbind, *targets, limiter=self._limiter)
        except MemfsError as error:
            log.error("the folders of task %s could not be taken away: %s", task.id, error)

    async def look(self) -> Found:
        """Return what the kernel and the disk have of what should be there.

        In a thread: with hundreds of folders it takes longer than a request of the kernel's should.
        """
        shown = list(self._shown.values())  # the thread reads nothing that the loop changes
        return await trio.to_thread.run_sync(self._look, shown, limiter=self._looking)

    def _look(self, shown: Sequence[Task]) -> Found:
        mounted = {str(mount.path) for mount in read_mounts()}
        mounts: list[dict[str, object]] = [
            {
                "path": str(path),
                "alive": str(path) in mounted or path.is_symlink(),
                "task": task.id,
                "store": attachment.store_id,
                "access": attachment.access.word,
            }
            for task in shown
            for attachment in task.attachments
            for path in [self.path(task, attachment)]
        ]
        return Found(mounts, self._strays(shown))

    def _strays(self, shown: Sequence[Task]) -> list[str]:
        """Return what lies beside attachments, or where they once were: it gets no versions."""
        known = {task.id: {each.name for each in task.attachments} for task in shown}
        found: list[str] = []
        for task_id in self._folders():
            memory = self._config.tasks_dir / task_id / "memory"
            with contextlib.suppress(OSError):
                there = known.get(TaskId(task_id), set[str]())
                found += [str(memory / name) for name in os.listdir(memory) if name not in there]
        return found
