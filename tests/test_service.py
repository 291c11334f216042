"""The front desk: group commit, cancellation, failing neighbours, the feed."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
import trio.testing

from memfs.engine import credentials, notes, path, stores
from memfs.engine.service import Service
from memfs.errors import Conflict, NoSpace, NotFound, SecretRefused, Unavailable
from memfs.store import change, keys
from memfs.store.check import check
from memfs.store.env import Env, Txn
from memfs.types import Caller, Seq, Time
from tests.conftest import USER, text


class CountingEnv(Env):
    """An environment that counts its write transactions, and can hold the next one back."""

    def __init__(self, path: Path) -> None:
        self.writes = 0
        self.gate: threading.Event | None = None
        self.waiting = threading.Event()
        super().__init__(path)

    def write(self) -> Txn:
        self.writes += 1
        return super().write()

    def hold(self) -> threading.Event:
        """Make the next rule `held` wait, until the event is set."""
        self.gate = threading.Event()
        return self.gate


@pytest.fixture
def data(tmp_path: Path) -> Iterator[CountingEnv]:
    with closing(CountingEnv(tmp_path / "data")) as env:
        yield env
        assert check(env) == []


@asynccontextmanager
async def running(env: Env) -> AsyncIterator[Service]:
    service = Service(env)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        service.close()


def make_store(txn: Txn, caller: Caller, now: Time, name: str) -> str:
    return stores.create(txn, caller, now, name).id


def held(txn: Txn, caller: Caller, now: Time, env: CountingEnv) -> str:
    """A rule that says in the writer's thread that it runs, then waits for the gate."""
    assert env.gate is not None
    env.waiting.set()
    assert env.gate.wait(timeout=30)
    return make_store(txn, caller, now, "held")


def names(service: Service) -> list[str]:
    return service.view(lambda txn: [store.name for store in stores.everything(txn)])


def by_name(service: Service, name: str) -> str:
    (store,) = service.view(stores.list_page, name=name).items
    return store.id


async def until(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, 30)


@asynccontextmanager
async def writer_busy(service: Service, env: CountingEnv) -> AsyncIterator[threading.Event]:
    """Within, the writer is in the middle of a rule, so that what is committed queues up."""
    gate = env.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.commit, held, USER, env)
        await until(env.waiting)
        try:
            yield gate
        finally:
            gate.set()


async def test_many_commits_share_one_transaction(data: CountingEnv):
    async with running(data) as service:
        before = data.writes
        async with trio.open_nursery() as nursery, writer_busy(service, data):
            for number in range(50):
                nursery.start_soon(service.commit, make_store, USER, f"s{number}")
            await trio.testing.wait_all_tasks_blocked()
        assert data.writes - before == 2  # the held one, then all fifty
        assert len(names(service)) == 51


async def test_commit_is_readable_and_published_when_it_returns(data: CountingEnv):
    async with running(data) as service:
        store_id = await service.commit(make_store, USER, "s")
        assert service.view(stores.get, store_id).name == "s"
        assert (await service.scan(stores.get, store_id)).name == "s"
        assert service.feed.seq == service.view(change.last_seq) == 1
        assert [row.subject for row in service.changes(Seq(0), 10)] == [store_id]


async def test_commit_cancelled_in_the_queue_is_not_applied(data: CountingEnv):
    async with running(data) as service:
        async with writer_busy(service, data):
            with trio.move_on_after(0) as already:
                await service.commit(make_store, USER, "cancelled before it was queued")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.commit, make_store, USER, "cancelled")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert already.cancelled_caught
        await service.commit(make_store, USER, "after")
        assert names(service) == ["held", "after"]


async def test_commit_cancelled_while_it_runs_returns_its_true_result(data: CountingEnv):
    results: list[str] = []

    async def commit(service: Service) -> None:
        results.append(await service.commit(held, USER, data))

    async with running(data) as service:
        gate = data.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, service)
            await until(data.waiting)
            nursery.cancel_scope.cancel()
            gate.set()
        assert results == [by_name(service, "held")]


async def test_deadline_of_a_running_commit_does_not_undo_it(data: CountingEnv):
    async with running(data) as service:
        gate = data.hold()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.commit, held, USER, data)
                await until(data.waiting)
                scope.cancel()
                gate.set()
        assert names(service) == ["held"]


async def test_rule_that_writes_and_then_raises_does_not_harm_its_neighbours(data: CountingEnv):
    def bad(txn: Txn, caller: Caller, now: Time) -> None:
        make_store(txn, caller, now, "bad")
        raise Conflict("after a put")

    outcomes: dict[str, object] = {}

    async def commit(service: Service, name: str) -> None:
        try:
            rule = (bad,) if name == "bad" else (make_store,)
            args = () if name == "bad" else (name,)
            outcomes[name] = await service.commit(*rule, USER, *args)
        except Conflict as error:
            outcomes[name] = error

    async with running(data) as service:
        async with trio.open_nursery() as nursery, writer_busy(service, data):
            for name in ("a", "bad", "b"):
                nursery.start_soon(commit, service, name)
            await trio.testing.wait_all_tasks_blocked()
        assert isinstance(outcomes["bad"], Conflict)
        assert sorted(names(service)) == ["a", "b", "held"]
        for name in ("a", "b"):
            assert outcomes[name] == by_name(service, name)
        assert service.feed.seq == service.view(change.last_seq) == 3


async def test_refused_rule_costs_its_neighbours_nothing(data: CountingEnv):
    async def refused(service: Service) -> None:
        with pytest.raises(NotFound):
            await service.commit(stores.archive, USER, "memstore_missing")

    async with running(data) as service:
        before = data.writes
        async with trio.open_nursery() as nursery, writer_busy(service, data):
            nursery.start_soon(service.commit, make_store, USER, "a")
            nursery.start_soon(refused, service)
            nursery.start_soon(service.commit, make_store, USER, "b")
            await trio.testing.wait_all_tasks_blocked()
        assert data.writes - before == 2
        assert sorted(names(service)) == ["a", "b", "held"]


async def test_bug_in_a_rule_reaches_its_caller_and_the_writer_lives(data: CountingEnv):
    def bug(txn: Txn, caller: Caller, now: Time) -> None:
        raise ZeroDivisionError

    def bug_after_a_put(txn: Txn, caller: Caller, now: Time) -> None:
        make_store(txn, caller, now, "bad")
        raise ZeroDivisionError

    async with running(data) as service:
        for rule in (bug, bug_after_a_put):
            with pytest.raises(ZeroDivisionError):
                await service.commit(rule, USER)
        await service.commit(make_store, USER, "a")
        assert names(service) == ["a"]


async def test_full_transaction_fails_alone(tmp_path: Path):
    def huge(txn: Txn, caller: Caller, now: Time) -> None:
        for number in range(40):
            txn.put("by_actor", b"%d" % number, bytes(2**20))

    with closing(Env(tmp_path / "data", 2**20)) as env:
        async with running(env) as service:
            with pytest.raises(NoSpace):
                await service.commit(huge, USER)
            await service.commit(make_store, USER, "a")
            assert names(service) == ["a"]
        assert check(env) == []


async def test_closed_service_refuses_and_finishes_what_was_queued(data: CountingEnv):
    async with running(data) as service:
        async with trio.open_nursery() as nursery, writer_busy(service, data):
            nursery.start_soon(service.commit, make_store, USER, "queued")
            await trio.testing.wait_all_tasks_blocked()
            service.close()
            with pytest.raises(Unavailable):
                await service.commit(make_store, USER, "late")
        assert names(service) == ["held", "queued"]
    with pytest.raises(Unavailable):
        await service.commit(make_store, USER, "later")


async def test_followers_see_every_row_once_and_in_order(data: CountingEnv):
    seen: list[Seq] = []

    async def follow(service: Service) -> None:
        at = Seq(0)
        while len(seen) < 40:
            await service.feed.wait_past(at)
            rows = service.changes(at, 7)
            seen.extend(row.seq for row in rows)
            at = rows[-1].seq

    async with running(data) as service:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, service)
            for number in range(40):
                nursery.start_soon(service.commit, make_store, USER, f"s{number}")
        assert seen == list(range(1, 41))
    with data.read() as txn:
        assert txn.get("change", keys.pack_u64(40)) is not None


async def test_times_given_to_rules_come_from_the_clock(data: CountingEnv):
    service = Service(data, clock=lambda: 42)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        store_id = await service.commit(make_store, USER, "s")
        assert service.view(stores.get, store_id).created_at == 42
        service.close()


async def test_new_credential_is_refused_once_the_scanner_is_refreshed(data: CountingEnv):
    secret = "hunter2-secret99"
    async with running(data) as service:
        store_id = await service.commit(make_store, USER, "s")
        await service.commit(credentials.add, USER, "mail", secret)
        service.refresh_scanner()
        for padding in (0, 50_000):  # inline and in a thread
            with pytest.raises(SecretRefused):
                await service.screen(b"a line\n" * (padding // 7) + secret.encode())
        fine = await service.screen(b"fine")
        assert fine == text("fine")
        await service.commit(notes.create, USER, store_id, path.parse("/a"), fine)
    assert Service(data).scanner.find(secret.encode()) is not None


async def test_commit_always_checkpoints(data: CountingEnv):
    async with running(data) as service:
        with trio.testing.assert_checkpoints():
            await service.commit(make_store, USER, "s")
        with trio.testing.assert_no_checkpoints():
            service.view(change.last_seq)
