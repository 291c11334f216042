"""The daemon's life: start in order, one nursery, drain and stop in order.

Start: lock, dead mounts away, writer, FUSE, notifier, tasks' folders, HTTP. Stop: HTTP, written
texts, tasks' folders, FUSE, writer, lock. Nothing here outlives what it uses.
"""

import logging
import os
import signal
import sys
import threading
from functools import partial

import trio

from daemon import guardian
from daemon import log as logs
from daemon.attachments import Attachments
from daemon.config import Config, check_socket_folder
from daemon.http.app import make_app
from daemon.http.cursor import Cursors, load_key
from daemon.http.door import Door
from daemon.http.serve import serve_http
from daemon.mount import mount_fuse, remove_dead, serve_fuse, unmount_fuse
from memfs.engine import scratch, stores, versions
from memfs.engine.service import Service
from memfs.errors import Conflict
from memfs.feed import Progress
from memfs.fs import loop
from memfs.fs.invalidate import Notifier
from memfs.fs.operations import Operations
from memfs.store.env import Env
from memfs.types import Actor, Caller, Seq

log = logging.getLogger("memfs")

DRAIN_S = 10.0  # for written texts at the end
_UNMOUNT_S = 5.0
_SETTLE_S = 5.0  # how long an answer waits for mounts to drop what they cached
_RETENTION_S = 3600.0
_RETENTION_BATCH = 256
_READER_CHECK_S = 60.0


def serve(config: Config) -> None:
    """Serve a workspace until SIGINT or SIGTERM.

    Raises: InUse (another daemon has the workspace), FormatTooNew, NotFound (no /dev/fuse).
    """
    logs.setup(config.log_level)
    # the writer, the notifier and the loop share two cores: a thread that waits for the
    # interpreter should not wait its default 5 ms
    sys.setswitchinterval(0.0005)
    env = Env(config.data_dir, config.map_size_bytes)
    try:
        for path in remove_dead(config):
            log.warning("removed a dead mount: %s", path)
        trio.run(_Daemon(config, env).run)
    finally:
        env.close()


class _Daemon:
    def __init__(self, config: Config, env: Env) -> None:
        self.config = config
        self.service = Service(env)
        rules = scratch.ScratchRules((*scratch.PATTERNS, *config.scratch_patterns))
        self.operations = Operations(self.service, rules, self._room)
        self.attachments = Attachments(config, self.service, self.operations)
        self.stopping = trio.Event()
        self.fuse_scope = trio.CancelScope()

    async def run(self) -> None:
        notifier = Notifier(self.service, self.operations.mounted, self.operations.progress)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run, name="writer")
            loop.install()
            mount_fuse(self.operations, self.config)
            watch = guardian.start(self.config.mount_dir)
            fuse_over = trio.Event()
            nursery.start_soon(self._fuse, fuse_over, name="fuse")
            try:
                async with trio.open_nursery() as followers:
                    followers.start_soon(self._signals, name="signals")
                    await followers.start(notifier.run, name="notifier")
                    await followers.start(self.attachments.run, name="attachments")
                    followers.start_soon(self._readers, name="readers")
                    if self.config.keep_versions_ns is not None:
                        keep_ns = self.config.keep_versions_ns
                        followers.start_soon(self._retention, keep_ns, name="retention")
                    await self._http()
                    await self._drain()
                    followers.cancel_scope.cancel()
            finally:
                await self._unmount(fuse_over)
                watch.kill()
                watch.wait()  # it was killed: this takes no time
                self.service.close()

    async def _http(self) -> None:
        check_socket_folder(self.config, make=True)
        door = Door(
            service=self.service,
            cursors=Cursors(load_key(self.config.data_dir)),
            caller=Caller(Actor("user_actor", f"user_{os.getuid()}")),
            settle=self.settle,
            mount_path=lambda task, attachment: str(self.attachments.path(task, attachment)),
            status=self.status,
        )
        async with trio.open_nursery() as nursery:
            addresses: list[tuple[str, int]] = await nursery.start(
                partial(serve_http, shutdown=self.stopping, listen=self.config.listen),
                make_app(door),
                self.config.socket_path,
                door.caller,
                name="http",
            )
            log.info("serving %s", self.config.workspace)
            for host, port in addresses:
                log.info("listening on %s port %d, with a key", host, port)

    async def settle(self, seq: Seq) -> None:
        """Return when mounts show everything up to *seq*, or after a few seconds."""
        waits: tuple[Progress, ...] = (self.operations.progress, self.attachments.progress)
        if all(progress.seq >= seq for progress in waits):
            return
        with trio.move_on_after(_SETTLE_S):
            for progress in waits:
                await progress.wait_for(seq)

    def _room(self) -> dict[str, object]:
        """Return what every task may know: how much still fits."""
        env = self.service.env
        return {"data_bytes": env.used_bytes(), "free_bytes": env.free_bytes()}

    async def status(self) -> dict[str, object]:
        """Return what the daemon knows of itself, for the person who runs it."""
        found = await self.attachments.look()
        return {
            "workspace": str(self.config.workspace),
            "settings": self.config.settings(),
            **self._room(),
            "mounts": found.mounts,
            "problems": [
                *(f"{path}: {why}" for path, why in self.attachments.problems.items()),
                *(
                    f"{path} is an ordinary file without versions: move it into a memory folder"
                    for path in found.strays
                ),
            ],
            "inodes": len(self.operations.mounted.table),
            "open_files": len(self.operations.mounted.handles),
            "threads": threading.active_count(),
        }

    async def _fuse(self, over: trio.Event) -> None:
        try:
            with self.fuse_scope:
                await serve_fuse(self.config)
        finally:
            over.set()
            if not self.stopping.is_set():
                log.error("the mount ended: stopping")
                self.stopping.set()

    async def _signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                log.info("%s: stopping", signal.Signals(number).name)
                self.stopping.set()

    async def _readers(self) -> None:
        """Free the readers of killed processes."""
        while True:
            await trio.sleep(_READER_CHECK_S)
            self.service.env.reader_check()

    async def _retention(self, keep_ns: int) -> None:
        """Expire versions from time to time."""
        caller = Caller(Actor("system_actor", "retention"))
        asked = trio.current_time()
        while True:
            uptime_ns = int((trio.current_time() - asked) * 1e9)
            asked = trio.current_time()
            reached = await self.service.commit(versions.retention_time, caller, uptime_ns)
            await self._expire(caller, keep_ns + self.service.now() - reached)
            await trio.sleep(max(1.0, min(_RETENTION_S, keep_ns / 2e9)))

    async def _expire(self, caller: Caller, keep_ns: int) -> None:
        for store in await self.service.scan(lambda txn: list(stores.everything(txn))):
            after: Seq | None = Seq(0)
            while after is not None:
                after = await self.service.commit(
                    versions.expire, caller, store.no, keep_ns, after, _RETENTION_BATCH
                )

    async def _drain(self) -> None:
        """Commit what is written and not closed yet."""
        with trio.move_on_after(DRAIN_S) as scope:
            for failed in await self.operations.drain():
                log.error("a written text could not be committed: %s", failed)
        if scope.cancelled_caught:
            log.error("not every written text was committed within %s s", DRAIN_S)

    async def _unmount(self, over: trio.Event) -> None:
        """Take the folders away and end FUSE; lazily, saying who holds it, if it is busy."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DRAIN_S):
            await self.attachments.hide_all()
            try:
                await trio.to_thread.run_sync(lambda: unmount_fuse(self.config, lazily=False))
            except Conflict as error:
                log.warning("%s: unmounting lazily", error)
                await trio.to_thread.run_sync(lambda: unmount_fuse(self.config, lazily=True))
            with trio.move_on_after(_UNMOUNT_S) as scope:
                await over.wait()
            if scope.cancelled_caught:
                log.warning("the mount is still in use: its holders get errors from now on")
                self.fuse_scope.cancel()
