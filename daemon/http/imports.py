"""Places of those who import (SEMANTICS: Export and import); each has a file and a thread."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from daemon.http import wire
from memfs.types import Actor, Caller, Power

_PLACES = 2
_OF_AGENTS = 1  # the rest is for the owner and persons, whatever agents do


class Imports:
    """Who imports now; a caller has one place at most, others wait."""

    def __init__(self) -> None:
        self.threads = trio.CapacityLimiter(_PLACES)
        self._inside: dict[Actor, Power] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def place(self, caller: Caller, within_s: float) -> AsyncGenerator[None]:
        """Have a place in the block.

        Raises: TooMany when none was free in time.
        """
        with trio.move_on_after(within_s) as waiting:
            while not self._is_free(caller):
                await self._waiting.park()
            # atomic: no await between the look and this
            self._inside[caller.actor] = caller.power
        if waiting.cancelled_caught:
            raise wire.TooMany(
                "too many imports are under way (one each caller, one of all agents): "
                "try again when they are done"
            )
        try:
            yield
        finally:
            del self._inside[caller.actor]
            self._waiting.unpark_all()

    def _is_free(self, caller: Caller) -> bool:
        if caller.actor in self._inside or len(self._inside) == _PLACES:
            return False
        agents = sum(power is Power.AGENT for power in self._inside.values())
        return caller.power is not Power.AGENT or agents < _OF_AGENTS
