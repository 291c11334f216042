"""The bell: "everything up to seq N is committed". Followers read the change log themselves."""

import trio

from memfs.types import Seq


class Feed:
    """The newest committed seq, and a way to sleep until there is a newer one."""

    def __init__(self, seq: Seq) -> None:
        self.seq = seq
        self._moved = trio.Event()

    def publish(self, seq: Seq) -> None:
        """Note that everything up to *seq* is committed; `ring` wakes the followers."""
        self.seq = max(self.seq, seq)

    def ring(self) -> None:
        """Wake the followers. Apart from `publish`, so that those who wrote can go first."""
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def wait_past(self, seq: Seq) -> Seq:
        """Return the newest committed seq once it is past *seq*."""
        while self.seq <= seq:
            await self._moved.wait()
        return self.seq


class Progress:
    """How far one follower has come, for those who must not go on before it has."""

    def __init__(self, seq: Seq) -> None:
        self.seq = seq
        self._waiting: list[tuple[Seq, trio.Event]] = []

    def reach(self, seq: Seq) -> None:
        """Note that the follower has applied everything up to *seq*."""
        self.seq = seq
        if self._waiting:
            for wanted, event in self._waiting:
                if wanted <= seq:
                    event.set()
            self._waiting = [pair for pair in self._waiting if pair[0] > seq]

    async def wait_for(self, seq: Seq) -> None:
        """Return once the follower has applied *seq*."""
        if self.seq < seq:
            event = trio.Event()
            self._waiting.append((seq, event))
            await event.wait()
