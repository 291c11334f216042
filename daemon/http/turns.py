"""One thing of HTTP's in each pass of the loop, so that the mount never waits for many."""

from collections import deque

from trio import lowlevel


class Turns:
    """Lets tasks go on one after the other, one in each pass of trio's scheduler.

    A pass runs all that can run and only then looks for new requests, the kernel's among them;
    with 32 busy clients one lasts as long as a hundred reads of a note through the mount.
    """

    def __init__(self) -> None:
        self._taken = False  # in this pass
        self._waiting: deque[lowlevel.Task] = deque()
        self._token = lowlevel.current_trio_token()

    async def take(self) -> None:
        """Wait for a turn; at once if nobody had one in this pass."""
        if not self._taken:
            self._taken = True
            self._token.run_sync_soon(self._next)
            return
        task = lowlevel.current_task()
        self._waiting.append(task)

        def abort(_: object) -> lowlevel.Abort:
            self._waiting.remove(task)
            return lowlevel.Abort.SUCCEEDED

        await lowlevel.wait_task_rescheduled(abort)

    def _next(self) -> None:
        """Give the next one its turn; in the next pass."""
        self._taken = bool(self._waiting)
        if self._waiting:
            lowlevel.reschedule(self._waiting.popleft())
            self._token.run_sync_soon(self._next)
