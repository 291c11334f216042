"""HTTP's tasks go on one in each pass of the loop."""

import trio
from trio import lowlevel
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from daemon.http.turns import Turns


class Passes(trio.abc.Instrument):
    """Counts the scheduler's passes."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_one_task_goes_on_in_each_pass_in_the_order_of_coming() -> None:
    turns, passes = Turns(), Passes()
    went: list[tuple[int, int]] = []

    async def client(n: int) -> None:
        for _ in range(3):
            await turns.take()
            went.append((n, passes.count))
            await lowlevel.checkpoint()

    lowlevel.add_instrument(passes)
    try:
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(client, n)
    finally:
        lowlevel.remove_instrument(passes)
    order, when = [n for n, _ in went], [count for _, count in went]
    assert when == sorted(set(when))
    assert sorted(order[:8]) == list(range(8))
    assert order == order[:8] * 3


async def test_a_task_alone_does_not_wait() -> None:
    turns = Turns()
    for _ in range(3):
        with assert_no_checkpoints():
            await turns.take()
        await wait_all_tasks_blocked()


async def test_who_is_cancelled_while_waiting_gives_up_the_place() -> None:
    turns = Turns()
    went: list[int] = []
    scopes = [trio.CancelScope() for _ in range(4)]

    async def client(n: int) -> None:
        with scopes[n]:
            await turns.take()
            if not went:  # the others wait, or will in this very pass
                for other in [other for other in range(4) if other != n][:2]:
                    scopes[other].cancel()
            went.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(client, n)
    assert sorted(went) == [n for n in range(4) if not scopes[n].cancelled_caught]
    assert len(went) == 2
    with trio.fail_after(1):
        await turns.take()
        await turns.take()
