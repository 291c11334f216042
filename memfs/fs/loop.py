"""How pyfuse3 waits for requests: without trio's scheduler as long as requests keep coming.

pyfuse3 takes for each request a trio.Lock (two checkpoints) and trio's wait_readable (an epoll_ctl,
an epoll_wait, a task switch). That costs several times what an answer takes, and the next request
of the same program has often arrived by then. `install` puts in their place a lock without
checkpoints and a wait that looks first, through the module attribute that pyfuse3.asyncio
replaces for its purposes, too. Measured by `scripts/bench fs`: about half of the floor's time.
"""

import select
import time
from types import SimpleNamespace, TracebackType

import pyfuse3
import trio
from trio import lowlevel

_YIELD_NS = 500_000  # the longest that requests keep the rest of the daemon waiting


class _Lock:
    """Mutual exclusion in which a running task may overtake one that waits.

    All who want it receive requests, so it does not matter which one does.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting: list[lowlevel.Task] = []

    async def __aenter__(self) -> None:
        while self._held:
            task = lowlevel.current_task()
            self._waiting.append(task)

            def abort(_: object, task: lowlevel.Task = task) -> lowlevel.Abort:
                self._waiting.remove(task)
                return lowlevel.Abort.SUCCEEDED

            await lowlevel.wait_task_rescheduled(abort)
        self._held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = False
        if self._waiting:
            lowlevel.reschedule(self._waiting.pop())


class _Waiter:
    """Waits until the connection has a request."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._fd = -1
        self._yielded_ns = 0

    async def wait_readable(self, fd: int) -> None:
        if fd != self._fd:
            self._poll.register(fd, select.POLLIN)
            self._fd = fd
        if not self._poll.poll(0):
            await lowlevel.wait_readable(fd)
        elif time.monotonic_ns() - self._yielded_ns < _YIELD_NS:
            return
        else:
            await lowlevel.checkpoint()
        self._yielded_ns = time.monotonic_ns()


def install() -> None:
    """Make pyfuse3.main wait this way. Call it once, before."""
    seen_by_pyfuse3 = SimpleNamespace(
        Lock=_Lock,
        ClosedResourceError=trio.ClosedResourceError,
        open_nursery=trio.open_nursery,
        lowlevel=SimpleNamespace(
            current_task=lowlevel.current_task,
            current_trio_token=lowlevel.current_trio_token,
            notify_closing=lowlevel.notify_closing,
            wait_readable=_Waiter().wait_readable,
        ),
    )
    setattr(pyfuse3, "trio", seen_by_pyfuse3)  # noqa: B010 - not in its stubs
