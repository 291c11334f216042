"""The front desk: view, scan, commit; the only way to the rules, with one writer.

Group commit: the writer takes every queued rule, runs them in one write transaction, commits once
(one fsync) and then answers them all. A rule that raises has written nothing by contract; one that
did write before it raised is a bug, and then the batch is undone and each rule runs alone.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Concatenate, ParamSpec, TypeVar

import outcome
import trio

from memfs.engine import credentials
from memfs.engine.secrets import Scanner, screen
from memfs.errors import MemfsError, Unavailable
from memfs.feed import Feed
from memfs.store import change
from memfs.store.env import Env, Txn
from memfs.types import Caller, Change, Seq, Text, Time

P = ParamSpec("P")
R = TypeVar("R")

_BATCH = 256  # rules in one transaction: bounds what one failure can send back to be run alone
_INLINE_SCREEN_BYTES = 16_384  # screening less takes under a tenth of a millisecond
_SCANS = 4


class _Job:
    """A queued rule. Whoever takes the claim first has it: the writer, or a cancelled caller."""

    __slots__ = ("claim", "result", "rule", "task")

    def __init__(self, rule: Callable[[Txn], object], task: trio.lowlevel.Task) -> None:
        self.rule = rule
        self.task = task
        self.claim = threading.Lock()
        self.result: outcome.Outcome[object] | None = None

    def take(self) -> bool:
        """Return True once, to one of all that ask."""
        return self.claim.acquire(blocking=False)


class Service:
    """Runs rules against one environment. One per process; `run` must be running."""

    def __init__(self, env: Env, clock: Callable[[], int] = time.time_ns) -> None:
        self.env = env
        self._clock = clock
        with env.read() as txn:
            self.feed = Feed(change.last_seq(txn))
            self.scanner = Scanner(tuple(credentials.everything(txn)))
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()  # None: close
        self._scans = trio.CapacityLimiter(_SCANS)
        self._closing = False
        self.on_commit: Callable[[int, float], None] = _ignore  # rules, seconds; on the loop

    def now(self) -> Time:
        """Return the wall clock, ns."""
        return Time(self._clock())

    def view(self, rule: Callable[Concatenate[Txn, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a short reading rule on the loop, on a snapshot."""
        with self.env.read() as txn:
            return rule(txn, *args, **kwargs)

    def changes(self, after: Seq, limit: int) -> list[Change]:
        """Return up to *limit* rows of the change log after *after*, oldest first."""
        return self.view(change.read, after, limit)

    def require_space(self) -> None:
        """Check that there is room for a growing write.

        Raises: NoSpace.
        """
        self.env.require_space()

    async def scan(
        self, rule: Callable[Concatenate[Txn, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a long reading rule in a thread, on a snapshot."""
        return await trio.to_thread.run_sync(
            lambda: self.view(rule, *args, **kwargs), limiter=self._scans
        )

    async def commit(
        self,
        rule: Callable[Concatenate[Txn, Caller, Time, P], R],
        caller: Caller,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a writing rule; its effects are on disk when this returns.

        Cancelled while queued: not applied. Once it runs, the true result comes back.
        Raises: what the rule raises; Unavailable when the daemon is stopping.
        """
        if self._closing:
            raise Unavailable("the daemon is stopping: try again when it is back")
        await trio.lowlevel.checkpoint_if_cancelled()
        now = self.now()
        task = trio.lowlevel.current_task()
        job = _Job(lambda txn: rule(txn, caller, now, *args, **kwargs), task)

        def abort(_: object) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED if job.take() else trio.lowlevel.Abort.FAILED

        self._queue.put(job)
        return await trio.lowlevel.wait_task_rescheduled(abort)

    async def screen(self, data: bytes) -> Text:
        """Return *data* as text that may be stored; large texts are checked in a thread.

        Raises: InvalidText, TextTooLong, SecretRefused.
        """
        if len(data) <= _INLINE_SCREEN_BYTES:
            return screen(data, self.scanner)
        return await trio.to_thread.run_sync(screen, data, self.scanner, limiter=self._scans)

    def refresh_scanner(self) -> None:
        """Take up a change of the registered credentials."""
        self.scanner = Scanner(self.view(lambda txn: tuple(credentials.everything(txn))))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is queued, until `close`; then return with nothing left in the queue.

        A thread of its own: handing each batch to a pool's cost a tenth of a save.
        """
        stopped = trio.Event()
        token = trio.lowlevel.current_trio_token()
        writer = threading.Thread(target=self._writer, args=(token, stopped), name="writer")
        writer.start()
        task_status.started()
        try:
            await stopped.wait()
        finally:
            self.close()
            with trio.CancelScope(shield=True):  # as long as one batch takes
                await stopped.wait()
            writer.join()

    def close(self) -> None:
        """Refuse further commits; `run` returns once the queue is empty."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)

    def _writer(self, token: trio.lowlevel.TrioToken, stopped: trio.Event) -> None:
        """Take what is queued, write it, answer. In the writer thread."""
        closing = False
        while not closing:
            batch: list[_Job] = []
            job = self._queue.get()
            while True:
                if job is None:
                    closing = True
                elif job.take():
                    batch.append(job)
                if len(batch) == _BATCH:
                    break
                try:
                    job = self._queue.get_nowait()
                except Empty:
                    break
            if batch:
                begun = time.perf_counter()
                seq = self._write(batch)
                token.run_sync_soon(self._answer, batch, seq, time.perf_counter() - begun)
                token.run_sync_soon(self.feed.ring, idempotent=True)
        token.run_sync_soon(stopped.set)

    def _answer(self, batch: list[_Job], seq: Seq, seconds: float) -> None:
        """Publish and wake those who wait; on the loop, where nobody sees one without the other."""
        self.feed.publish(seq)
        for job in batch:
            trio.lowlevel.reschedule(job.task, job.result or outcome.Value(None))
        self.on_commit(len(batch), seconds)

    def _write(self, batch: list[_Job]) -> Seq:
        """Run a batch in one transaction, or each rule alone if that fails (in a thread)."""
        if not self._together(batch):
            for job in batch:
                self._alone(job)
        with self.env.read() as txn:
            return change.last_seq(txn)

    def _together(self, batch: list[_Job]) -> bool:
        try:
            with self.env.write() as txn:
                for job in batch:
                    puts = txn.puts
                    job.result = outcome.capture(job.rule, txn)
                    if isinstance(job.result, outcome.Error) and txn.puts != puts:
                        raise _Undo
        except Exception:
            return False
        return True

    def _alone(self, job: _Job) -> None:
        def run() -> object:
            with self.env.write() as txn:
                return job.rule(txn)

        job.result = outcome.capture(run)


def _ignore(rules: int, seconds: float) -> None:
    """Nobody counts."""


class _Undo(MemfsError):
    """A rule wrote and then raised: take back the batch."""
