"""Who imports keeps nobody else from it for long."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon import tar
from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.imports import Imports
from memfs.types import Actor, Caller, Power
from tests.served import serving
from tests.test_transfer import client, imported, packed

OWNER = Caller(Actor("user_actor", "1"))
PERSON = Caller(Actor("api_actor", "p"))
AGENT = Caller(Actor("api_actor", "a"), power=Power.AGENT)
OTHER_AGENT = Caller(Actor("api_actor", "b"), power=Power.AGENT)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("inside", "comes", "finds"),
    [
        ([], AGENT, True),
        ([AGENT], OWNER, True),
        ([AGENT], PERSON, True),
        ([PERSON], OWNER, True),
        ([PERSON], AGENT, True),
        ([OWNER], OWNER, False),
        ([AGENT], AGENT, False),
        ([AGENT], OTHER_AGENT, False),
        ([OWNER, PERSON], AGENT, False),
        ([OWNER, AGENT], PERSON, False),
    ],
)
async def test_a_caller_has_one_place_and_agents_leave_one_to_persons(
    stack: AsyncExitStack, inside: list[Caller], comes: Caller, finds: bool
) -> None:
    imports = Imports()
    for one in inside:
        await stack.enter_async_context(imports.place(one, 0))
    if finds:
        await stack.enter_async_context(imports.place(comes, 0))
    else:
        with pytest.raises(wire.TooMany):
            await stack.enter_async_context(imports.place(comes, 0))


async def test_who_waits_goes_in_when_a_place_is_free() -> None:
    imports, done = Imports(), list[Caller]()

    async def come(caller: Caller) -> None:
        async with imports.place(caller, 20):
            done.append(caller)

    async with trio.open_nursery() as nursery, imports.place(AGENT, 0):
        for caller in (OTHER_AGENT, AGENT, OTHER_AGENT):
            nursery.start_soon(come, caller)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
    assert sorted(one.actor.id for one in done) == ["a", "b", "b"]


def test_an_import_must_be_whole_in_time_however_steadily_it_comes(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            yield tar.pack(".memfs/x", bytes(100_000))
            time.sleep(0.001)

    with serving(tmp_path, bounds=Bounds(import_s=1)) as served:
        with served.other_clients(), client(served) as http:
            url = "/v1/memory_stores/import"
            answer = http.post(url, params={"name": "n"}, content=endless())
            assert answer.status_code == 408
            assert "1 s" in answer.json()["error"]["message"]
        assert imported(served, packed(), name="n")
