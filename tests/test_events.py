"""The change log as a stream: the engine's view of it, and /v1/events over a real socket."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.http.bounds import Bounds
from memfs import ids
from memfs.engine import events, files, keys, notes, stores, tasks, versions
from memfs.engine import path as paths
from memfs.engine.service import Txn
from memfs.errors import Invalid, Unauthenticated
from memfs.types import Access, Actor, Caller, Power, Seq, Time
from tests.conftest import SECOND, USER, Engine, text
from tests.served import AStore, Served, serving

ALL = 1_000


# The engine -------------------------------------------------------------------------------------


def rows(engine: Engine, caller: Caller = USER, **rest: Any) -> list[events.Event]:
    return engine.view(events.read, caller, Seq(0), ALL, **rest).events


def shown(engine: Engine, kind: str) -> list[tuple[str | None, str | None, str | None]]:
    return [
        (event.what, event.path, event.old_path)
        for event in rows(engine)
        if event.change.kind.name == kind.upper()
    ]


def shown_words(engine: Engine, kind: str) -> list[str | None]:
    return [event.what for event in rows(engine) if event.change.kind.name.lower() == kind]


def test_a_row_has_the_path_of_its_own_change_whatever_came_later(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    note = engine.commit(notes.create, store.id, paths.parse("/a/b"), text("1"))
    assert note.note is not None
    engine.commit(notes.update, store.id, note.note.id, None, paths.parse("/c"))
    engine.commit(notes.update, store.id, note.note.id, text("2"))
    engine.commit(notes.archive, store.id, note.note.id, "old")
    engine.commit(notes.unarchive, store.id, note.note.id)
    engine.commit(notes.update, store.id, note.note.id, None, paths.parse("/d"))
    engine.commit(notes.delete, store.id, note.note.id)
    assert shown(engine, "note") == [
        ("created", "/a/b", None),
        ("modified", "/c", "/a/b"),
        ("modified", "/c", None),
        ("modified", "/d", "/c"),
        ("deleted", "/d", None),
    ]
    assert shown(engine, "archive") == [("archived", "/c", None), ("unarchived", "/c", None)]
    assert {event.note_id for event in rows(engine) if event.version_id} == {note.note.id}
    seqs = [event.change.seq for event in rows(engine)]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_folder_that_moves_shows_where_its_notes_came_from(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    engine.commit(notes.create, store.id, paths.parse("/a/x/1"), text("1"))
    folder = engine.view(lambda txn: events.tree.child(txn, store.no, store.root, "a"))
    assert folder is not None
    engine.commit(files.rename, store.no, store.root, "a", store.root, "b")
    assert shown(engine, "note")[-1] == ("modified", "/b/x/1", "/a/x/1")
    assert shown(engine, "folder")[-1] == (None, "/b", "/a")


def test_rows_of_stores_workers_tasks_and_keys_say_what_was_done_where_it_is_certain(
    engine: Engine,
) -> None:
    kept = engine.commit(stores.create, "kept")
    engine.commit(stores.update, kept.id, "renamed")
    engine.commit(stores.archive, kept.id)
    assert shown_words(engine, "store") == ["created", "modified", "archived"]
    gone = engine.commit(stores.create, "gone")
    engine.commit(stores.delete, gone.id)
    # of a store that is gone only the log tells, and that only of its end
    assert shown_words(engine, "store")[3:] == [None, "deleted"]
    for task in ("ended", "deleted", "ended first"):
        engine.commit(tasks.create, "Ada", [], task.replace(" ", "-"))
    engine.commit(tasks.update, "ended", "a title")
    engine.commit(tasks.end, "ended")
    engine.commit(tasks.delete, "deleted")
    engine.commit(tasks.end, "ended-first")
    engine.commit(tasks.delete, "ended-first")
    assert shown_words(engine, "worker") == ["created"]
    assert shown_words(engine, "task") == [
        *("created", "created", "created", "modified", "ended", "deleted", "ended", "deleted"),
    ]
    key, _ = engine.commit(keys.create, Power.PERSON, "k")
    engine.commit(keys.revoke, key.id)
    assert shown_words(engine, "key") == ["created", "revoked"]


def test_what_two_moments_of_one_name_may_have_done_is_not_said(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    engine.clock -= SECOND  # the archive bears the time of the creation
    engine.commit(stores.archive, store.id)
    assert shown_words(engine, "store") == [None, None]


@pytest.mark.parametrize("how", ["redact", "purge", "expire"])
def test_what_was_taken_away_shows_no_path(engine: Engine, how: str) -> None:
    store = engine.commit(stores.create, "s")
    note = engine.commit(notes.create, store.id, paths.parse("/private"), text("1"))
    assert note.note is not None
    first = note.note.version_id
    engine.commit(notes.update, store.id, note.note.id, None, paths.parse("/b"))
    engine.commit(notes.update, store.id, note.note.id, text("2"))
    engine.commit(notes.archive, store.id, note.note.id, "r")
    if how == "redact":
        engine.commit(versions.redact, store.id, first)
        assert rows(engine)[-1].note_id == note.note.id
    elif how == "purge":
        engine.commit(notes.purge, store.id, note.note.id)
        assert rows(engine)[-1].note_id == note.note.id
    else:
        engine.commit(versions.expire, store.no, 0, Seq(0), 100)
    assert "private" not in repr([(event.path, event.old_path) for event in rows(engine)])
    assert shown(engine, "note")[0] == ("created", None, None)


def test_an_agent_gets_the_rows_of_stores_it_reaches_now_and_nothing_of_others(
    engine: Engine,
) -> None:
    shared = engine.commit(stores.create, "shared")
    foreign = engine.commit(stores.create, "foreign")
    mine = engine.commit(tasks.create, "Ada", [tasks.Wanted(shared.id, Access.READ_ONLY)], "mine")
    own_of_ada = mine.attachments[0].store_id
    engine.commit(tasks.create, "Bob", [tasks.Wanted(own_of_ada)], "theirs")
    engine.commit(tasks.create, "Bob", [], "others")
    ada = keys.caller_of(*engine.commit(keys.create, Power.AGENT, "k", "Ada"))
    for store in (shared, foreign):
        engine.commit(notes.create, store.id, paths.parse("/n"), text("1"))

    def seen() -> set[tuple[str, str | None, str]]:
        return {
            (
                event.change.kind.name,
                event.store_id,
                event.change.subject if event.path is None else "",
            )
            for event in rows(engine, ada)
        }

    own = {
        ("STORE", own_of_ada, own_of_ada),
        ("WORKER", own_of_ada, mine.worker_id),
        ("TASK", own_of_ada, "mine"),
    }
    of_shared = {("STORE", shared.id, shared.id), ("NOTE", shared.id, "")}
    assert seen() == own | of_shared
    engine.commit(tasks.delete, "mine")  # which must not end the agent's stream
    assert seen() == own
    # Bob attaches Ada's store: her rows there, not her tasks
    bob = keys.caller_of(*engine.commit(keys.create, Power.AGENT, "k", "Bob"))
    theirs = rows(engine, bob)
    assert "mine" not in [event.change.subject for event in theirs]
    assert mine.worker_id not in [event.change.subject for event in theirs]
    everybody = rows(engine, Caller(Actor("api_actor", "x"), power=Power.READONLY))
    assert {"KEY", "TASK"} < {event.change.kind.name for event in everybody}


def test_rows_of_a_deleted_task_are_still_its_own_workers(engine: Engine) -> None:
    engine.commit(tasks.create, "Ada", [], "gone")
    engine.commit(tasks.create, "Bob", [], "others")
    callers = {
        name: keys.caller_of(*engine.commit(keys.create, Power.AGENT, "k", name))
        for name in ("Ada", "Bob")
    }
    engine.commit(tasks.delete, "gone")
    seen = {
        name: [event.change.subject for event in rows(engine, caller)]
        for name, caller in callers.items()
    }
    assert (seen["Ada"].count("gone"), seen["Bob"].count("gone")) == (2, 0)


def test_a_revoked_key_gets_nothing_more(engine: Engine) -> None:
    key, secret = engine.commit(keys.create, Power.PERSON)
    caller = keys.caller_of(key, secret)
    assert rows(engine, caller)
    engine.commit(keys.revoke, key.id)
    with pytest.raises(Unauthenticated):
        rows(engine, caller)


def test_a_stream_begins_only_where_the_log_is(engine: Engine) -> None:
    engine.commit(stores.create, "s")
    assert engine.view(events.start, None) == 1
    assert engine.view(events.start, 0) == 0
    with pytest.raises(Invalid):
        engine.view(events.start, 2)


# The stream -------------------------------------------------------------------------------------


class Stream:
    """Reads a stream's blocks as dictionaries."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def block(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return found
            name, _, value = line.partition(": ")
            found[name] = value
        return {}

    def event(self) -> Any:
        """Return the data of the next event, None at the end."""
        while found := self.block():
            if "data" in found:
                data = json.loads(found["data"])
                assert found["id"] == str(data["seq"])
                assert found["event"] == data["kind"]
                return data
        return None


@contextmanager
def streaming(
    served: Served, headers: Any = None, status: int = 200, **query: Any
) -> Iterator[Stream]:
    transport = httpx.HTTPTransport(uds=str(served.config.socket_path))
    with (
        served.other_clients(),
        httpx.Client(transport=transport, base_url="http://memfs", timeout=20) as http,
        http.stream("GET", "/v1/events", params=query, headers=headers) as response,
    ):
        assert response.status_code == status
        yield Stream(response)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws"), bounds=Bounds(heartbeat_s=0.3)) as one:
        yield one


@pytest.fixture
def store(served: Served) -> AStore:
    return served.store()


def test_a_change_arrives_with_who_when_and_what(served: Served, store: AStore) -> None:
    with streaming(served) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["cache-control"] == "no-store"
        assert stream.block() == {"retry": "1000", "id": str(served.service.feed.seq)}
        made = store.write("/a")
        got = stream.event()
        assert got == {
            "type": "change",
            "seq": served.service.feed.seq,
            "at": made["created_at"],
            "kind": "note",
            "operation": "created",
            "memory_store_id": store.id,
            "memory_id": made["id"],
            "memory_version_id": made["memory_version_id"],
            "path": "/a",
            "old_path": None,
            "actor": {"type": "user_actor", "user_id": "user_7"},
            "subject": made["id"],
        }


def test_a_stream_goes_on_after_any_seq_by_query_or_header(served: Served, store: AStore) -> None:
    first = served.service.feed.seq
    for n in range(3):
        store.write(f"/{n}")
    with streaming(served, after=first) as stream:
        assert [stream.event()["path"] for _ in range(3)] == ["/0", "/1", "/2"]
    header = {"last-event-id": str(first + 1)}
    with streaming(served, headers=header, after=0) as stream:  # as a browser connects again
        assert [stream.event()["path"] for _ in range(2)] == ["/1", "/2"]
    for query, headers in (
        ({"after": served.service.feed.seq + 1}, {}),
        ({"after": -1}, {}),
        ({"after": "x"}, {}),
        ({}, {"last-event-id": "x"}),
        ({}, {"last-event-id": "٣"}),
        ({}, {"last-event-id": "9" * 40}),
    ):
        headers = {name: value.encode() for name, value in headers.items()}
        with streaming(served, headers=headers, status=400, **query) as stream:
            assert json.loads(stream.response.read())["error"]["type"] == "invalid_request_error"


def test_a_stream_of_some_stores_leaves_out_all_else(served: Served, store: AStore) -> None:
    other, third = served.store(), served.store()
    first = served.service.feed.seq
    for one in (other, store, third):
        one.write("/a")
    with streaming(served, after=first, memory_store_id=[store.id, third.id]) as stream:
        assert [stream.event()["memory_store_id"] for _ in range(2)] == [store.id, third.id]
    with streaming(served, status=404, memory_store_id="memstore_nope"):
        pass


def test_a_stream_of_a_store_goes_on_after_the_store_was_deleted(served: Served) -> None:
    store, other = served.store(), served.store()
    first = served.service.feed.seq
    store.write("/a")
    store.call("DELETE", "")
    other.write("/b")
    for resumed in ({"after": first}, {"after": first + 1}):
        with streaming(served, memory_store_id=[store.id, other.id], **resumed) as stream:
            if resumed["after"] == first:
                assert stream.event()["kind"] == "note"
            gone = stream.event()
            assert (gone["kind"], gone["subject"]) == ("store", store.id)
            assert stream.event()["path"] == "/b"
    with streaming(served, memory_store_id=store.id, headers={"last-event-id": str(first)}):
        pass
    with streaming(served, status=404, memory_store_id=store.id):  # it begins: nothing can come
        pass
    never = ids.new("memstore_", 2**31)
    for one in (never, ids.new("memstore_", 0), "memstore_nope", other.id[:-3] + "ZZZ"):
        with streaming(served, status=404, memory_store_id=one, after=first):
            pass


def test_of_deleted_stores_an_agent_resumes_only_those_its_tasks_attach(served: Served) -> None:
    store, foreign = served.store(), served.store()
    resources = [{"type": "memory_store", "memory_store_id": store.id}]
    task = served.call("POST", "tasks", {"worker": "Zoe", "resources": resources})["id"]
    key = served.call("POST", "keys", {"power": "agent", "worker": "Zoe"})
    asked: dict[str, Any] = {
        "headers": {"x-api-key": key["secret"]},
        "after": served.service.feed.seq,
    }
    for one in (store, foreign):
        one.write("/a")
        one.call("DELETE", "")
    with streaming(served, memory_store_id=store.id, **asked) as stream:
        assert [stream.event()["kind"] for _ in range(2)] == ["note", "store"]
    with streaming(served, status=404, memory_store_id=foreign.id, **asked) as stream:
        stream.response.read()
        said = stream.response.json()["error"]["message"].replace(foreign.id, "")
    never = ids.new("memstore_", 2**31)
    with streaming(served, status=404, memory_store_id=never, **asked) as stream:
        stream.response.read()
        assert stream.response.json()["error"]["message"].replace(never, "") == said
    served.call("POST", f"tasks/{task}/end")
    with streaming(served, status=404, memory_store_id=store.id, **asked):
        pass


def test_without_rows_for_it_a_stream_says_that_it_lives_and_where_it_is(
    served: Served, store: AStore
) -> None:
    other = served.store()
    with streaming(served, memory_store_id=store.id) as stream:
        stream.block()
        other.write("/a")
        found = stream.block()
        while found["id"] != str(served.service.feed.seq):
            found = stream.block()
        assert found == {"": "still here", "id": str(served.service.feed.seq)}


def test_a_backlog_of_ten_thousand_rows_comes_whole_while_others_are_answered(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as served:
        store = served.store()

        def fill(txn: Txn, caller: Caller, now: Time) -> None:
            for n in range(5_000):  # each makes a folder, too
                notes.create(txn, caller, now, store.id, paths.parse(f"/{n}/n"), text("x"))

        served.commit(fill, Caller(Actor("user_actor", "u")))
        newest = served.service.feed.seq
        with streaming(served, after=0) as stream:
            got = [stream.event()["seq"] for _ in range(newest)]
            assert served.http.get("/healthz").status_code == 200
        assert got == list(range(1, newest + 1))
        assert newest > 10_000


def test_a_client_that_leaves_is_noticed_though_nothing_happens(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(heartbeat_s=1_000)) as served:
        for _ in range(3):
            with streaming(served) as stream:
                stream.block()  # other_clients waits until our side has closed, too


def test_a_reader_that_takes_nothing_is_cut_off_and_costs_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(stall_s=0.5, grace_s=1_000)) as served:
        store = served.store()

        def fill(txn: Txn, caller: Caller, now: Time) -> None:
            for n in range(4_000):
                notes.create(txn, caller, now, store.id, paths.parse(f"/{n}/n"), text("x"))

        served.commit(fill, Caller(Actor("user_actor", "u")))
        with served.other_clients(), socket.socket(socket.AF_UNIX) as lazy:
            lazy.connect(str(served.config.socket_path))
            lazy.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nhost: x\r\n\r\n")
            end = time.monotonic() + 20
            while not _hung_up(lazy):
                assert time.monotonic() < end, "still held"
                time.sleep(0.01)


def _hung_up(sock: socket.socket) -> bool:
    """Whether the other side has closed, though there is still something to read."""
    try:
        sock.send(b"x")
    except OSError:
        return True
    return False


def test_when_the_daemon_stops_a_stream_ends_well(tmp_path: Path) -> None:
    with (
        serving(tmp_path, bounds=Bounds(grace_s=1_000)) as served,
        streaming(served) as stream,
    ):
        stream.block()
        served.stop()
        assert stream.event() is None  # chunked: an end that was cut off would raise


@pytest.mark.parametrize("stopping", [True, False])
def test_a_connection_whose_stream_has_ended_ends_too(tmp_path: Path, stopping: bool) -> None:
    bounds = Bounds(grace_s=1_000, idle_s=1_000 if stopping else 0.3)
    with serving(tmp_path, bounds=bounds) as served:
        key = served.call("POST", "keys", {"power": "person"})
        with served.other_clients(), socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(str(served.config.socket_path))
            head = f"GET /v1/events HTTP/1.1\r\nhost: x\r\nx-api-key: {key['secret']}\r\n\r\n"
            sock.sendall(head.encode())
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200")
            if stopping:
                served.stop()
            else:
                served.call("POST", f"keys/{key['id']}/revoke")
            while sock.recv(65_536):
                pass


def test_a_stream_ends_when_its_key_is_revoked_and_needs_the_scope(served: Served) -> None:
    made = served.call("POST", "keys", {"power": "readonly", "scopes": ["events"]})
    headers = {"x-api-key": made["secret"]}
    with streaming(served, headers=headers) as stream:
        stream.block()
        served.call("POST", f"keys/{made['id']}/revoke")
        assert stream.event() is None
    lacking = served.call("POST", "keys", {"power": "readonly", "scopes": ["stores"]})
    with streaming(served, headers={"x-api-key": lacking["secret"]}, status=403):
        pass


def test_an_agents_stream_follows_its_tasks(served: Served, store: AStore) -> None:
    served.call("POST", "tasks", {"id": "before", "worker": "Eve"})
    made = served.call("POST", "keys", {"power": "agent", "worker": "Eve"})
    resources = [{"type": "memory_store", "memory_store_id": store.id}]
    with streaming(served, headers={"x-api-key": made["secret"]}) as stream:
        stream.block()
        store.write("/unseen")
        served.call("POST", "tasks", {"id": "e1", "worker": "Eve", "resources": resources})
        seen = stream.event()
        if seen["path"] == "/unseen":  # the pages may have been read as one: reached by then
            seen = stream.event()
        assert (seen["kind"], seen["subject"]) == ("task", "e1")
        store.write("/seen")
        assert stream.event()["path"] == "/seen"
        served.call("POST", "tasks/e1/end")
        assert stream.event()["kind"] == "task"
        store.write("/unseen2")
        served.call("POST", "tasks", {"id": "e2", "worker": "Mallory"})
        served.call("POST", "tasks", {"id": "e3", "worker": "Eve"})
        assert stream.event()["subject"] == "e3"
    with streaming(
        served, headers={"x-api-key": made["secret"]}, status=404, memory_store_id=store.id
    ):
        pass


def test_many_streams_get_every_row_once(served: Served, store: AStore) -> None:
    got: list[list[str]] = [[] for _ in range(4)]
    ready = threading.Barrier(5)

    def follow(paths: list[str]) -> None:
        transport = httpx.HTTPTransport(uds=str(served.config.socket_path))
        with (
            httpx.Client(transport=transport, base_url="http://memfs", timeout=20) as http,
            http.stream("GET", "/v1/events", params={"memory_store_id": store.id}) as response,
        ):
            stream = Stream(response)
            stream.block()
            ready.wait(20)
            while len(paths) < 30:
                paths.append(stream.event()["path"])

    with served.other_clients():
        followers = [threading.Thread(target=follow, args=(one,)) for one in got]
        for one in followers:
            one.start()
        ready.wait(20)
        for n in range(30):
            store.write(f"/{n:02}")
        for one in followers:
            one.join(20)
    assert got == [[f"/{n:02}" for n in range(30)]] * 4
