"""Keys and what their callers may see, by the rules alone."""

import pytest

from memfs.engine import access, keys, secrets, stores, tasks, workers
from memfs.errors import (
    Forbidden,
    Invalid,
    NotFound,
    ReadOnly,
    ReadOnlyKey,
    ScopeDenied,
    SecretRefused,
)
from memfs.store import change
from memfs.types import Access, Caller, ChangeKind, Power, Seq, Store
from tests.conftest import NO_SECRETS, USER, Engine


def agent(engine: Engine, worker: str) -> Caller:
    return keys.caller_of(*engine.commit(keys.create, Power.AGENT, "", worker))


def attach(engine: Engine, worker: str, store: Store, how: Access = Access.READ_WRITE) -> str:
    return engine.commit(tasks.create, worker, (tasks.Wanted(store.id, how),)).id


# ------------------------------------------------------------------------------------------ keys


def test_a_key_is_found_by_its_secret_until_it_is_revoked(engine: Engine) -> None:
    key, secret = engine.commit(keys.create, Power.PERSON, "laptop")
    other, _ = engine.commit(keys.create, Power.READONLY)
    assert engine.view(keys.find, secret) == key
    engine.reopen()
    assert engine.view(keys.find, secret) == key
    for wrong in ("", secret[:-1], secret + "A", secret.upper(), "memfs_", "\ud800"):
        assert engine.view(keys.find, wrong) is None
    revoked = engine.commit(keys.revoke, key.id)
    assert revoked.revoked_at is not None
    assert engine.view(keys.find, secret) is None
    assert engine.commit(keys.revoke, key.id) == revoked
    with pytest.raises(NotFound):
        engine.commit(keys.revoke, "apikey_none")
    assert engine.view(lambda txn: list(keys.everything(txn))) == [revoked, other]
    rows = engine.view(change.read, Seq(0), 10)
    assert [(row.kind, row.subject) for row in rows] == [
        (ChangeKind.KEY, each) for each in (key.id, other.id, key.id)
    ]


def test_a_secret_is_kept_nowhere_and_no_text_may_hold_it(engine: Engine) -> None:
    for _ in range(50):
        _, secret = engine.commit(keys.create, Power.PERSON)
        assert secret.startswith(keys.PREFIX)
        assert secret.encode() not in (engine.path / "data.mdb").read_bytes()
        with pytest.raises(SecretRefused, match="memfs key"):
            secrets.screen(f"the key: {secret}\n".encode(), NO_SECRETS)


@pytest.mark.parametrize(
    ("power", "worker", "scopes"),
    [
        (Power.AGENT, None, None),
        (Power.PERSON, "ada", None),
        (Power.READONLY, "ada", None),
        (Power.PERSON, None, []),
        (Power.PERSON, None, ["stores", "all"]),
        (Power.PERSON, None, ["admin"]),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(
    engine: Engine, power: Power, worker: str | None, scopes: list[str] | None
) -> None:
    engine.commit(workers.create, "ada")
    with pytest.raises(Invalid):
        engine.commit(keys.create, power, "", worker, scopes)
    with pytest.raises(Invalid):
        engine.commit(keys.create, Power.PERSON, "x" * 256)
    with pytest.raises(NotFound):
        engine.commit(keys.create, Power.AGENT, "", "nobody")
    assert engine.view(lambda txn: list(keys.everything(txn))) == []


def test_a_caller_is_its_keys(engine: Engine) -> None:
    worker = engine.commit(workers.create, "ada")
    made = engine.commit(keys.create, Power.AGENT, "", worker.id, ["events", "stores"])
    key, caller = made[0], keys.caller_of(*made)
    assert (caller.actor.type, caller.actor.id) == ("api_actor", key.id)
    assert (caller.power, caller.worker) == (Power.AGENT, worker.id)
    access.check_scope(caller, "stores")
    for scope in ("tasks", "agents", "admin"):
        with pytest.raises(ScopeDenied, match=scope):
            access.check_scope(caller, scope)
        access.check_scope(USER, scope)


# ---------------------------------------------------------------------------------------- access


def test_powers_order_what_may_be_done(engine: Engine) -> None:
    agent_ = agent(engine, engine.commit(workers.create, "ada").id)
    reader = keys.caller_of(*engine.commit(keys.create, Power.READONLY))
    store = engine.commit(stores.create, "s")
    engine.view(access.store_to_manage, USER, store.id)
    assert engine.view(access.store, reader, store.id) == store
    for rule in (access.store_to_write, access.store_to_manage):
        with pytest.raises(ReadOnlyKey):
            engine.view(rule, reader, "memstore_none")  # before it is looked for
        with pytest.raises(NotFound):
            engine.view(rule, agent_, store.id)
    access.check_not_agent(reader)
    access.check_writes(agent_)
    for check, caller in ((access.check_person, agent_), (access.check_not_agent, agent_)):
        with pytest.raises(Forbidden):
            check(caller)
    with pytest.raises(ReadOnlyKey):
        access.check_person(reader)


def test_an_agent_reaches_its_own_store_and_those_of_its_live_tasks(engine: Engine) -> None:
    ada, bob = (engine.commit(workers.create, name) for name in ("ada", "bob"))
    one, two = (engine.commit(stores.create, name) for name in ("one", "two"))
    caller = agent(engine, "ada")
    assert engine.view(access.reach, caller) == {ada.store: Access.READ_WRITE}
    assert engine.view(access.reach, USER) is None
    task = attach(engine, "ada", one, Access.READ_ONLY)
    attach(engine, "bob", two)
    assert engine.view(access.store, caller, one.id).no == one.no
    with pytest.raises(ReadOnly):
        engine.view(access.store_to_write, caller, one.id)
    with pytest.raises(Forbidden):
        engine.view(access.store_to_manage, caller, one.id)
    writing = attach(engine, "ada", one)
    assert engine.view(access.store_to_write, caller, one.id).no == one.no
    engine.commit(tasks.end, writing)
    with pytest.raises(ReadOnly):
        engine.view(access.store_to_write, caller, one.id)
    engine.commit(tasks.end, task)
    own = engine.view(stores.by_no, ada.store)
    assert engine.view(access.store_to_write, caller, own.id) == own
    foreign = engine.view(stores.by_no, bob.store)
    for hidden in (one, two, foreign):
        with pytest.raises(NotFound) as there:
            engine.view(access.store, caller, hidden.id)
        with pytest.raises(NotFound) as nowhere:
            engine.view(stores.get, "memstore_x")
        assert str(there.value).replace(hidden.id, "memstore_x") == str(nowhere.value)


def test_a_deleted_store_is_reached_no_more(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    attach(engine, "ada", store)
    caller = agent(engine, "ada")
    engine.commit(stores.delete, store.id)
    with pytest.raises(NotFound):
        engine.view(access.store, caller, store.id)


def test_an_agent_sees_its_own_tasks_ended_ones_too_and_itself(engine: Engine) -> None:
    mine = engine.commit(tasks.create, "ada")
    other = engine.commit(tasks.create, "bob")
    caller = agent(engine, "ada")
    ended = engine.commit(tasks.end, mine.id)
    assert engine.view(access.task, caller, mine.id) == ended
    assert engine.view(access.worker, caller, "ada").id == mine.worker_id
    assert [one.name for one in engine.view(access.workers_seen, caller)] == ["ada"]
    assert [one.name for one in engine.view(access.workers_seen, USER)] == ["ada", "bob"]
    for rule, unseen in (
        (access.task, other.id),
        (access.worker, "bob"),
        (access.worker, other.worker_id),
    ):
        with pytest.raises(NotFound) as there:
            engine.view(rule, caller, unseen)
        with pytest.raises(NotFound) as nowhere:
            engine.view(rule, USER, "none")
        assert str(there.value).replace(unseen, "none") == str(nowhere.value)
        engine.view(rule, USER, unseen)
