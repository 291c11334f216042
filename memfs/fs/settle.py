"""How long a request may wait for other attachments to drop their caches.

A flush holds no lock of the kernel's that an invalidation needs, so it waits. A request on a
folder holds that folder's lock: if two of them waited for each other's folders to be invalidated,
neither would ever be answered. So at most one waits at a time, and not for long; the others answer
at once.
"""

import trio

from memfs.feed import Progress
from memfs.types import Seq

_TEXT_S = 5.0
_NAMES_S = 0.02


class Settle:
    """Waits for the notifier."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._waiting = False

    async def text(self, seq: Seq) -> None:
        """Wait after a commit of a text."""
        with trio.move_on_after(_TEXT_S):
            await self._progress.wait_for(seq)

    async def names(self, seq: Seq) -> None:
        """Wait after a change of names, unless somebody else does."""
        if self._waiting:
            return
        self._waiting = True
        try:
            with trio.move_on_after(_NAMES_S):
                await self._progress.wait_for(seq)
        finally:
            self._waiting = False
