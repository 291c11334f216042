"""Every method of the SDK's memory stores, memories, versions and sessions (issue 3: Show).

Each test runs four times: sync and async, over the owner's socket and over TCP with a key.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from daemon.config import Config
from memfs.engine import notes, stores
from memfs.engine import path as paths
from memfs.store.env import Env, Txn
from memfs.types import Time
from tests import sdk as sdk_module
from tests.conftest import USER, text
from tests.mount import Api, Daemon, make_store, served
from tests.sdk import Cutter, Sdk, connected, make_key, tcp_port

pytest_plugins = ("tests.mount", "tests.sdk")
pytestmark = pytest.mark.fuse

MANY = 2_500


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def precondition(text: str) -> Any:
    return {"type": "content_sha256", "content_sha256": sha(text)}


@contextmanager
def refused(error: type[anthropic.APIStatusError], kind: str) -> Iterator[Any]:
    """The block fails with an error whose envelope is right and which was not retried."""
    with pytest.raises(error) as info:
        yield info
    said = info.value
    assert said.type == kind
    assert said.request_id == said.body["request_id"]  # pyright: ignore
    assert said.body["error"]["message"] == said.api_message  # pyright: ignore
    assert said.response.request.headers["x-stainless-retry-count"] == "0"


def attach(*store_ids: str, **rest: Any) -> list[Any]:
    return [{"type": "memory_store", "memory_store_id": one, **rest} for one in store_ids]


def many_notes(txn: Txn) -> None:
    store = stores.create(txn, USER, Time(0), "many")
    for n in range(MANY):
        path = paths.parse(f"/{n // 100:02}/{n:04}.md")
        notes.create(txn, USER, Time(n), store.id, path, text(f"note {n}"))


def stores_up_to_the_limit(txn: Txn) -> None:
    for n in range(1_000):
        stores.create(txn, USER, Time(n), f"s{n}")


def fill(workspace: Path, rule: Callable[[Txn], None]) -> Path:
    """Put something into a new workspace before its daemon starts, in one commit."""
    config = Config(workspace)
    with closing(Env(config.data_dir, config.map_size_bytes)) as env, env.write() as txn:
        rule(txn)
    return workspace


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    workspace = fill(tmp_path_factory.mktemp("sdk") / "ws", many_notes)
    with served(workspace, sdk_module.LISTENS) as daemon:
        yield daemon


# Stores -----------------------------------------------------------------------------------------


def test_stores_are_made_read_changed_archived_and_deleted(sdk: Sdk):
    stores = sdk.beta.memory_stores
    made = sdk.do(stores.create(name="Handbook ß", description="how", metadata={"a": "1"}))
    assert (made.type, made.name, made.description) == ("memory_store", "Handbook ß", "how")
    assert (made.metadata, made.archived_at) == ({"a": "1"}, None)
    assert sdk.do(stores.retrieve(made.id)) == made

    changed = sdk.do(stores.update(made.id, description="", metadata={"a": None, "b": "2"}))
    assert (changed.name, changed.description, changed.metadata) == ("Handbook ß", "", {"b": "2"})
    assert changed.updated_at > made.updated_at
    assert sdk.do(stores.update(made.id, name=None, description=None)) == changed

    archived = sdk.do(stores.archive(made.id))
    assert archived.archived_at is not None
    assert sdk.do(stores.archive(made.id)) == archived
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(stores.update(made.id, name="late"))
    gone = sdk.do(stores.delete(made.id))
    assert (gone.id, gone.type) == (made.id, "memory_store_deleted")
    for call in (stores.retrieve, stores.delete, stores.archive):
        with refused(anthropic.NotFoundError, "not_found_error"):
            sdk.do(call(made.id))


def test_stores_are_listed_by_time_page_after_page(sdk: Sdk):
    stores = sdk.beta.memory_stores
    made = [sdk.do(stores.create(name=f"s{n}")) for n in range(5)]
    sdk.do(stores.archive(made[3].id))
    window = {"created_at_gte": made[0].created_at, "created_at_lte": made[4].created_at}
    listed = sdk.every(stores.list(limit=2, **window))
    assert [row.name for row in listed] == ["s4", "s2", "s1", "s0"]
    listed = sdk.every(stores.list(limit=2, include_archived=True, **window))
    assert [row.name for row in listed] == ["s4", "s3", "s2", "s1", "s0"]
    as_text = made[4].created_at.isoformat().replace("+00:00", "Z")
    assert sdk.every(stores.list(created_at_gte=as_text))[-1].id == made[4].id
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(stores.list(page="page_forged"))
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(stores.list(limit=101))


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "x" * 256},
        {"name": "a\tb"},
        {"name": "a", "description": "x" * 1_025},
        {"name": "a", "metadata": {f"k{n}": "" for n in range(17)}},
        {"name": "a", "metadata": {"k" * 65: ""}},
        {"name": "a", "metadata": {"k": "v" * 513}},
    ],
    ids=lambda bad: "-".join(bad),
)
def test_malformed_stores_are_refused(sdk: Sdk, bad: dict[str, Any]):
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(sdk.beta.memory_stores.create(**bad))


# Memories ---------------------------------------------------------------------------------------


def test_memories_are_made_read_changed_renamed_and_deleted(sdk: Sdk, api: Api):
    memories, store = sdk.beta.memory_stores.memories, {"memory_store_id": api.store_id}
    made = sdk.do(memories.create(api.store_id, path="/p/ä b.md", content="one\r\n€"))
    assert (made.type, made.path, made.content) == ("memory", "/p/ä b.md", None)
    assert (made.content_sha256, made.content_size_bytes) == (sha("one\r\n€"), 8)
    read = sdk.do(memories.retrieve(made.id, **store))
    assert read == made.model_copy(update={"content": "one\r\n€"})
    assert sdk.do(memories.retrieve(made.id, view="basic", **store)) == made

    changed = sdk.do(memories.update(made.id, content="two", path="/q.md", view="full", **store))
    assert (changed.id, changed.path, changed.content) == (made.id, "/q.md", "two")
    assert changed.memory_version_id != made.memory_version_id
    assert sdk.do(memories.update(made.id, content="two", path=None, **store)).content is None
    assert api.history(made.id) == [("created", "one\r\n€"), ("modified", "two")]
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(memories.update(made.id, content=None, **store))
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(memories.create(api.store_id, path="/n", content=None))

    empty = sdk.do(memories.create(api.store_id, path="/empty", content="", view="full"))
    assert (empty.content, empty.content_size_bytes) == ("", 0)
    full = "x" * 102_400
    assert sdk.do(memories.update(empty.id, content=full, view="full", **store)).content == full
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(memories.update(empty.id, content=full + "x", **store))

    gone = sdk.do(memories.delete(made.id, **store))
    assert (gone.id, gone.type) == (made.id, "memory_deleted")
    for call in (memories.retrieve, memories.delete):
        with refused(anthropic.NotFoundError, "not_found_error"):
            sdk.do(call(made.id, **store))
    again = sdk.do(memories.create(api.store_id, path="/q.md", content="two"))
    assert again.id != made.id


def test_what_is_as_asked_already_is_no_new_version_even_with_a_stale_precondition(
    sdk: Sdk, api: Api
):
    memories, store = sdk.beta.memory_stores.memories, {"memory_store_id": api.store_id}
    made = sdk.do(memories.create(api.store_id, path="/a", content="one"))
    asked: dict[str, Any] = {"content": "two", "path": "/b", "precondition": precondition("one")}
    changed = sdk.do(memories.update(made.id, **asked, **store))
    assert sdk.do(memories.update(made.id, **asked, **store)) == changed
    assert len(api.versions(made.id)) == 2


def test_every_conflict_is_a_409_that_is_not_retried(sdk: Sdk, api: Api):
    memories, store = sdk.beta.memory_stores.memories, {"memory_store_id": api.store_id}
    made = sdk.do(memories.create(api.store_id, path="/notes/todo", content="one"))
    other = sdk.do(memories.create(api.store_id, path="/other", content="two"))
    for path in ("/notes/todo", "/notes", "/notes/todo/deeper"):
        for call in (
            lambda path=path: memories.create(api.store_id, path=path, content=""),
            lambda path=path: memories.update(other.id, path=path, **store),
        ):
            with refused(anthropic.ConflictError, "memory_path_conflict_error") as info:
                sdk.do(call())
            said = info.value.body["error"]
            assert said["conflicting_memory_id"] == made.id
            assert said["conflicting_path"] == "/notes/todo"
    for changes in ({"content": "3"}, {"path": "/free"}):
        with refused(anthropic.ConflictError, "memory_precondition_failed_error"):
            stale = precondition("never")
            sdk.do(memories.update(made.id, precondition=stale, **changes, **store))
    with refused(anthropic.ConflictError, "memory_precondition_failed_error"):
        sdk.do(memories.delete(made.id, expected_content_sha256=sha("never"), **store))
    with refused(anthropic.ConflictError, "conflict_error"):
        versions = sdk.beta.memory_stores.memory_versions
        sdk.do(versions.redact(made.memory_version_id, **store))
    own = api.client.get("/v1/workers/wren")
    if own.status_code == 404:
        sdk.do(sdk.beta.sessions.create(agent="wren", environment_id="env_1"))
        own = api.client.get("/v1/workers/wren")
    for call in (sdk.beta.memory_stores.delete, sdk.beta.memory_stores.archive):
        with refused(anthropic.ConflictError, "conflict_error"):
            sdk.do(call(own.json()["memory_store_id"]))
    assert len(api.all_versions()) == 2


BAD_PATHS = [
    "",
    "/",
    "a",
    "/a/",
    "//a",
    "/a//b",
    "/./a",
    "/a/..",
    "/a\u0000",
    "/a\u0007",
    "/a\u2028",
    "/a\u200b",
    "/a\u0301",  # not NFC
    "/" + "/".join("a" * 21),
    "/" + "/".join(["x" * 200] * 6),
    "/.memfs/a",
]


def test_bad_paths_are_refused_at_create_rename_and_listing(sdk: Sdk, api: Api):
    memories, store = sdk.beta.memory_stores.memories, {"memory_store_id": api.store_id}
    made = sdk.do(memories.create(api.store_id, path="/" + "/".join("a" * 20), content=""))
    for path in BAD_PATHS:
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(memories.create(api.store_id, path=path, content=""))
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(memories.update(made.id, path=path, **store))
    for query in ({"path_prefix": "/a"}, {"depth": 2}, {"limit": 0}, {"view": "half"}):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(memories.list(api.store_id, **query))
    for path in ("/.hidden", "/with space", "/UPPER", "/upper", "/a.tmp"):
        assert sdk.do(memories.create(api.store_id, path=path, content="")).path == path


def test_listings_group_what_is_deeper_and_keep_to_whole_names(sdk: Sdk, api: Api):
    memories = sdk.beta.memory_stores.memories
    for path in ("/a.md", "/notes/1", "/notes/sub/2", "/notes/sub/3", "/notes-archive/x"):
        api.put(path, path)

    def listed(**query: Any) -> list[tuple[str, str]]:
        return [(row.type, row.path) for row in sdk.every(memories.list(api.store_id, **query))]

    assert listed(depth=1, limit=1) == [
        ("memory", "/a.md"),
        ("memory_prefix", "/notes/"),
        ("memory_prefix", "/notes-archive/"),
    ]
    below = listed(path_prefix="/notes/", depth=1)
    assert sorted(below) == [("memory", "/notes/1"), ("memory_prefix", "/notes/sub/")]
    deep = [path for _, path in listed(path_prefix="/notes/", depth=0)]
    assert sorted(deep) == ["/notes/1", "/notes/sub/2", "/notes/sub/3"]
    rows = sdk.every(memories.list(api.store_id, view="full"))
    assert all(row.content == row.path for row in rows)


@pytest.fixture
def many(client: httpx.Client) -> Api:
    """The store of 2,500 notes."""
    (found,) = client.get("/v1/memory_stores", params={"name": "many"}).json()["data"]
    return Api(client, found["id"])


def test_auto_pagination_meets_each_of_2500_notes_once_in_order(sdk: Sdk, many: Api):
    memories = sdk.beta.memory_stores.memories
    expected = [f"/{n // 100:02}/{n:04}.md" for n in range(MANY)]
    for limit in (100, 1_000):
        rows = sdk.every(memories.list(many.store_id, limit=limit))
        assert [row.path for row in rows] == expected
    assert all(row.content is None for row in rows)
    assert len(sdk.do(memories.list(many.store_id)).data) == 20
    first = sdk.do(memories.list(many.store_id, view="full", limit=100))
    assert [row.content for row in first.data] == [f"note {n}" for n in range(20)]
    part = sdk.every(memories.list(many.store_id, view="full", path_prefix="/07/"))
    assert [row.content for row in part] == [f"note {n}" for n in range(700, 800)]
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(memories.list(many.store_id, limit=1_001))


# Versions ---------------------------------------------------------------------------------------


def test_versions_are_listed_filtered_read_and_redacted(sdk: Sdk, api: Api):
    memories, versions = sdk.beta.memory_stores.memories, sdk.beta.memory_stores.memory_versions
    store = {"memory_store_id": api.store_id}
    note = sdk.do(memories.create(api.store_id, path="/a", content="one"))
    sdk.do(memories.create(api.store_id, path="/b", content="other"))
    for content in ("two", "three"):
        sdk.do(memories.update(note.id, content=content, **store))
    sdk.do(memories.delete(note.id, **store))

    def listed(**query: Any) -> list[Any]:
        return sdk.every(versions.list(api.store_id, limit=2, **query))

    rows = listed(memory_id=note.id)
    assert [row.operation for row in rows] == ["deleted", "modified", "modified", "created"]
    deleted, third, second, first = rows
    assert (deleted.path, deleted.content_sha256) == ("/a", None)
    assert [row.content for row in listed(memory_id=note.id, view="full")] == [
        None, "three", "two", "one",
    ]  # fmt: skip
    assert len(listed()) == 5
    assert [row.path for row in listed(operation="created")] == ["/b", "/a"]
    window = listed(created_at_gte=second.created_at, created_at_lte=third.created_at)
    assert [row.id for row in window] == [third.id, second.id]
    who = first.created_by
    if who.type == "api_actor":
        assert len(listed(api_key_id=who.api_key_id)) == 5
    else:
        assert who.type == "user_actor"
    for nobody in ({"api_key_id": "apikey_0"}, {"session_id": "t0"}, {"service_account_id": "s"}):
        assert listed(**nobody) == []
    for empty in ({"session_id": ""}, {"memory_id": ""}):  # a filter that is given counts
        assert listed(**empty) == []

    read = sdk.do(versions.retrieve(second.id, **store))
    assert (read.content, read.memory_id, read.content_size_bytes) == ("two", note.id, 3)
    assert sdk.do(versions.retrieve(second.id, view="basic", **store)).content is None
    emptied = sdk.do(versions.redact(second.id, **store))
    assert (emptied.path, emptied.content, emptied.content_sha256) == (None, None, None)
    assert (emptied.content_size_bytes, emptied.created_by) == (None, who)
    assert (emptied.redacted_by, emptied.operation) == (who, "modified")
    assert sdk.do(versions.redact(second.id, **store)) == emptied
    assert sdk.do(versions.retrieve(second.id, **store)) == emptied
    assert sdk.do(versions.redact(deleted.id, **store)).path is None
    with refused(anthropic.NotFoundError, "not_found_error"):
        sdk.do(versions.retrieve("memver_x", **store))


def test_a_version_page_holds_20_and_at_most_100(sdk: Sdk, api: Api):
    versions = sdk.beta.memory_stores.memory_versions
    for n in range(25):
        api.put("/a", str(n))
    assert len(sdk.do(versions.list(api.store_id)).data) == 20
    assert len(sdk.do(versions.list(api.store_id, limit=100)).data) == 25
    assert len(sdk.do(versions.list(api.store_id, limit=100, view="full")).data) == 20
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(versions.list(api.store_id, limit=101))


def test_an_archived_store_is_read_emptied_and_redacted_and_nothing_else(sdk: Sdk, api: Api):
    stores, store = sdk.beta.memory_stores, {"memory_store_id": api.store_id}
    note = sdk.do(stores.memories.create(api.store_id, path="/a", content="one"))
    sdk.do(stores.memories.update(note.id, content="two", **store))
    sdk.do(stores.archive(api.store_id))
    for call in (
        lambda: stores.memories.create(api.store_id, path="/b", content=""),
        lambda: stores.memories.update(note.id, content="3", **store),
        lambda: sdk.beta.sessions.create(
            agent="wren", environment_id="e", resources=attach(api.store_id)
        ),
    ):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(call())
    assert sdk.do(stores.memories.retrieve(note.id, **store)).content == "two"
    old = sdk.every(stores.memory_versions.list(api.store_id))[-1]
    assert sdk.do(stores.memory_versions.redact(old.id, **store)).path is None
    sdk.do(stores.memories.delete(note.id, **store))
    sdk.do(stores.delete(api.store_id))


# Sessions ---------------------------------------------------------------------------------------


def test_a_session_is_a_task_with_its_folders(sdk: Sdk, api: Api):
    sessions = sdk.beta.sessions
    resources = attach(api.store_id, access="read_only", instructions="look only")
    made = sdk.do(
        sessions.create(
            agent="wren",
            environment_id="env_7",
            resources=resources,
            title="Fix it",
            metadata={"a": "1"},
        )
    )
    assert made.id.startswith("task_")
    assert (made.type, made.status, made.archived_at) == ("session", "idle", None)
    assert (made.environment_id, made.title, made.metadata) == ("env_7", "Fix it", {"a": "1"})
    assert (made.agent.type, made.agent.name, made.agent.version) == ("agent", "wren", 1)
    assert (made.vault_ids, made.outcome_evaluations) == ([], [])
    assert (made.usage.input_tokens, made.usage.output_tokens) == (0, 0)
    own, shared = made.resources
    assert (own.name, own.access, own.instructions) == ("wren", "read_write", None)
    assert (shared.memory_store_id, shared.access) == (api.store_id, "read_only")
    assert (shared.instructions, shared.description) == ("look only", "")
    for one in made.resources:
        assert os.path.ismount(one.mount_path)

    read = sdk.do(sessions.retrieve(made.id))
    assert read.model_dump(exclude={"stats"}) == made.model_dump(exclude={"stats"})
    assert read.stats.duration_seconds > made.stats.duration_seconds >= 0
    task = api.client.get(f"/v1/tasks/{made.id}").json()
    assert (task["id"], task["worker_id"]) == (made.id, made.agent.id)
    Path(own.mount_path, f"{made.id}.md").write_text("mine")
    versions = sdk.beta.memory_stores.memory_versions
    (version,) = sdk.every(versions.list(own.memory_store_id, session_id=made.id))
    assert version.created_by.session_id == made.id

    archived = sdk.do(sessions.archive(made.id))
    assert (archived.status, archived.archived_at) == ("terminated", archived.updated_at)
    assert not os.path.exists(own.mount_path)
    assert sdk.do(sessions.archive(made.id)) == archived
    gone = sdk.do(sessions.delete(made.id))
    assert (gone.id, gone.type) == (made.id, "session_deleted")
    for call in (sessions.retrieve, sessions.delete, sessions.archive, sessions.update):
        with refused(anthropic.NotFoundError, "not_found_error"):
            sdk.do(call(made.id))
    assert api.client.get(f"/v1/tasks/{made.id}").status_code == 404
    (again,) = sdk.every(versions.list(own.memory_store_id, session_id=made.id))
    assert again == version


def test_a_live_session_that_is_deleted_loses_its_folders(sdk: Sdk, api: Api):
    made = sdk.do(
        sdk.beta.sessions.create(agent="wren", environment_id="e", resources=attach(api.store_id))
    )
    folder = Path(made.resources[1].mount_path)
    (folder / "a.md").write_text("kept")
    sdk.do(sdk.beta.sessions.delete(made.id))
    assert not folder.exists()
    assert api.get("/a.md") == "kept"
    with refused(anthropic.ConflictError, "conflict_error"):
        body = {"id": made.id}
        sdk.do(sdk.beta.sessions.create(agent="wren", environment_id="e", extra_body=body))


def test_a_session_changes_its_title_and_metadata_only(sdk: Sdk, api: Api):
    sessions = sdk.beta.sessions
    made = sdk.do(sessions.create(agent="wren", environment_id="e", metadata={"a": "1"}))
    assert made.title is None
    changed = sdk.do(sessions.update(made.id, title="T", metadata={"a": None, "b": "2"}))
    assert (changed.title, changed.metadata) == ("T", {"b": "2"})
    assert changed.updated_at > made.updated_at
    same = sdk.do(sessions.update(made.id, title=None, metadata=None))
    assert (same.title, same.updated_at) == ("T", changed.updated_at)
    assert sdk.do(sessions.update(made.id, title="")).title is None
    for asked in (
        {"title": "x" * 1_025},
        {"metadata": {"k": "x" * 513}},
        {"vault_ids": ["vlt_1"]},
        {"agent": {"tools": [{"type": "agent_toolset_20260401"}]}},
        {"budget": {"max_list_cost": {"amount": "1", "currency": "USD"}}},
    ):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(sessions.update(made.id, **asked))
    sdk.do(sessions.delete(made.id))


def test_agents_are_workers_by_id_name_or_object(sdk: Sdk, api: Api):
    sessions = sdk.beta.sessions
    worker = sdk.do(sessions.create(agent="rook", environment_id="e")).agent
    for agent in (worker.id, {"type": "agent", "id": "rook", "version": 1}):
        assert sdk.do(sessions.create(agent=agent, environment_id="e")).agent == worker
    for agent in (
        {"type": "agent", "id": "rook", "version": 2},
        {"type": "agent_with_overrides", "id": "rook", "system": "be kind"},
        "",
    ):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(sessions.create(agent=agent, environment_id="e"))
    unknown = worker.id[:-1] + ("0" if worker.id[-1] != "0" else "1")
    with refused(anthropic.NotFoundError, "not_found_error"):
        sdk.do(sessions.create(agent=unknown, environment_id="e"))


def test_what_a_session_cannot_have_is_refused(sdk: Sdk, api: Api):
    nine = [make_store(api.client).store_id for _ in range(9)]
    for asked in (
        {"resources": attach(*nine)},
        {"resources": attach(nine[0], nine[0])},
        {"resources": attach(nine[0], instructions="x" * 4_097)},
        {"resources": [{"type": "file", "file_id": "file_1"}]},
        {"initial_events": [{"type": "user.message", "content": []}]},
        {"vault_ids": ["vlt_1"]},
        {"budget": {"max_list_cost": {"amount": "1", "currency": "USD"}}},
        {"environment_id": ""},
        {"extra_body": {"id": "a/b"}},
    ):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(sdk.beta.sessions.create(**{"agent": "wren", "environment_id": "e"} | asked))
    with refused(anthropic.NotFoundError, "not_found_error"):
        resources = attach("memstore_x")
        sdk.do(sdk.beta.sessions.create(agent="wren", environment_id="e", resources=resources))


def test_sessions_are_listed_by_store_agent_time_status_and_order(sdk: Sdk, api: Api):
    sessions = sdk.beta.sessions
    made = [
        sdk.do(
            sessions.create(
                agent=agent,
                environment_id="e",
                resources=attach(api.store_id),
                title=str(n),
            )
        )
        for n, agent in enumerate(["wren", "robin", "wren", "wren", "robin"])
    ]
    sdk.do(sessions.archive(made[3].id))

    def listed(**query: Any) -> str:
        query = {"memory_store_id": api.store_id, "limit": 2} | query
        return "".join(row.title for row in sdk.every(sessions.list(**query)))

    assert listed() == "4210"
    assert listed(order="asc") == "0124"
    assert listed(include_archived=True) == "43210"
    assert listed(agent_id=made[0].agent.id) == "20"
    assert listed(agent_id=made[0].agent.id, agent_version=2) == ""
    assert listed(agent_id="agent_elsewhere") == ""
    assert listed(deployment_id="dep_1") == ""
    assert listed(statuses=["terminated"]) == "3"
    assert listed(statuses=["idle", "terminated"]) == "43210"
    assert listed(statuses=["running"]) == ""
    at = made[1].created_at
    assert listed(created_at_gt=at) == "42"
    assert listed(created_at_gte=at) == "421"
    assert listed(created_at_lt=at) == "0"
    assert listed(created_at_lte=at) == "10"
    assert listed(created_at_gt=at - timedelta(microseconds=1), created_at_lte=at) == "1"
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        sdk.do(sessions.list(statuses=["asleep"]))
    sdk.do(sessions.delete(made[2].id))
    assert listed(include_archived=True) == "4310"


def test_resources_are_addressed_by_their_store_and_never_change(sdk: Sdk, api: Api):
    made = sdk.do(
        sdk.beta.sessions.create(agent="wren", environment_id="e", resources=attach(api.store_id))
    )
    resources = sdk.beta.sessions.resources
    assert sdk.every(resources.list(made.id)) == made.resources
    assert sdk.every(resources.list(made.id, limit=1)) == made.resources
    shared = {"session_id": made.id}
    assert sdk.do(resources.retrieve(api.store_id, **shared)) == made.resources[1]
    for call in (
        lambda: resources.add(made.id, type="file", file_id="file_1"),
        lambda: resources.update(api.store_id, authorization_token="t", **shared),
        lambda: resources.delete(api.store_id, **shared),
    ):
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            sdk.do(call())
    for call in (
        lambda: resources.retrieve("memstore_x", **shared),
        lambda: resources.delete("memstore_x", **shared),
        lambda: resources.list("task_x"),
        lambda: resources.add("task_x", type="file", file_id="file_1"),
    ):
        with refused(anthropic.NotFoundError, "not_found_error"):
            sdk.do(call())
    assert sdk.every(resources.list(made.id)) == made.resources


def test_a_session_has_no_events_and_threads(sdk: Sdk, api: Api):
    made = sdk.do(sdk.beta.sessions.create(agent="wren", environment_id="e"))
    for part in (sdk.beta.sessions.events, sdk.beta.sessions.threads):
        with refused(anthropic.NotFoundError, "not_found_error"):
            sdk.do(part.list(made.id))


def test_an_agents_key_sees_its_own_workers_sessions_and_makes_none(
    client: httpx.Client, api: Api, connect: Callable[..., Sdk]
):
    person = connect(make_key(client)["secret"]).beta.sessions
    wrens = person.create(agent="wren", environment_id="e", resources=attach(api.store_id))
    robins = person.create(agent="robin", environment_id="e", resources=attach(api.store_id))
    agent = connect(make_key(client, "agent", worker="wren")["secret"]).beta.sessions
    assert agent.retrieve(wrens.id).resources == wrens.resources
    seen = {row.agent.name for row in agent.list(include_archived=True, limit=100)}
    assert seen == {"wren"}
    assert list(agent.list(agent_id=robins.agent.id)) == []
    assert len(list(agent.resources.list(wrens.id))) == 2
    for call in (
        lambda: agent.retrieve(robins.id),
        lambda: agent.resources.list(robins.id),
        lambda: agent.resources.retrieve(api.store_id, session_id=robins.id),
    ):
        with refused(anthropic.NotFoundError, "not_found_error"):
            call()
    for call in (
        lambda: agent.create(agent="wren", environment_id="e"),
        lambda: agent.update(wrens.id, title="x"),
        lambda: agent.archive(wrens.id),
        lambda: agent.delete(wrens.id),
        lambda: agent.delete(robins.id),
        lambda: agent.resources.delete(api.store_id, session_id=wrens.id),
    ):
        with refused(anthropic.PermissionDeniedError, "permission_error"):
            call()
    reader = connect(make_key(client, "readonly")["secret"]).beta.sessions
    assert reader.retrieve(robins.id).id == robins.id
    with refused(anthropic.PermissionDeniedError, "permission_error"):
        reader.delete(robins.id)
    scoped = connect(make_key(client, scopes=["stores"])["secret"]).beta.sessions
    with refused(anthropic.PermissionDeniedError, "permission_error"):
        scoped.list()


# Transport --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_retry_after_a_cut_connection_changes_nothing_twice(
    kind: str, client: httpx.Client, api: Api, cutter: Cutter, connect: Callable[..., Sdk]
):
    sdk = connect(make_key(client)["secret"], kind, cutter.port)
    memories, store = sdk.beta.memory_stores.memories, {"memory_store_id": api.store_id}
    made = sdk.do(memories.create(api.store_id, path="/a", content="one"))

    cutter.cuts = 2
    asked: Any = {"content": "two", "path": "/b", "precondition": precondition("one")}
    changed = sdk.do(memories.update(made.id, view="full", **asked, **store))
    assert (changed.content, changed.path) == ("two", "/b")
    assert api.history(made.id) == [("created", "one"), ("modified", "two")]
    assert len([line for line in cutter.requests if line.startswith("POST")]) == 4

    cutter.cuts = 1  # it was made: the retry finds its own note in the way
    with pytest.raises(anthropic.ConflictError) as info:
        sdk.do(memories.create(api.store_id, path="/new", content="mine"))
    assert info.value.type == "memory_path_conflict_error"
    found = sdk.do(memories.retrieve(info.value.body["error"]["conflicting_memory_id"], **store))
    assert (found.path, found.content) == ("/new", "mine")
    assert len(api.versions("/new")) == 1

    cutter.cuts = 1
    with pytest.raises(anthropic.NotFoundError):
        sdk.do(memories.delete(made.id, **store))
    assert [operation for operation, _ in api.history(made.id)][2:] == ["deleted"]

    redacted = api.versions(made.id)[0]["id"]
    cutter.cuts = 1
    versions = sdk.beta.memory_stores.memory_versions
    assert sdk.do(versions.redact(redacted, **store)).redacted_at is not None
    cutter.cuts = 1
    session, body = sdk.beta.sessions, {"id": f"cut-{kind}"}
    with pytest.raises(anthropic.ConflictError):
        sdk.do(session.create(agent="wren", environment_id="e", extra_body=body))
    cutter.cuts = 1
    assert sdk.do(session.update(f"cut-{kind}", title="T")).title == "T"
    cutter.cuts = 1
    assert sdk.do(session.archive(f"cut-{kind}")).status == "terminated"
    cutter.cuts = 1
    assert sdk.do(sdk.beta.memory_stores.archive(api.store_id)).archived_at is not None


def test_answers_carry_a_request_id_and_unknown_queries_are_ignored(sdk: Sdk, api: Api):
    raw = sdk.beta.memory_stores.with_raw_response
    answer = sdk.do(raw.retrieve(api.store_id, extra_query={"beta": "true", "odd": "1"}))
    assert answer.headers["request-id"].startswith("req_")
    assert answer.retries_taken == 0
    store = (
        answer.parse() if isinstance(sdk.client, anthropic.Anthropic) else sdk.do(answer.parse())
    )
    assert store._request_id == answer.headers["request-id"]
    with refused(anthropic.BadRequestError, "invalid_request_error"):
        both = ["managed-agents-2026-04-01"]
        sdk.do(sdk.beta.memory_stores.retrieve(api.store_id, betas=both))


def test_tcp_takes_either_header_and_both_spellings_of_an_array(daemon: Daemon, client, api: Api):
    key = make_key(client)["secret"]
    body = {"agent": "wren", "environment_id": "e", "resources": attach(api.store_id)}
    made = client.post("/v1/sessions?beta=true", json=body).raise_for_status().json()
    with httpx.Client(base_url=f"http://127.0.0.1:{tcp_port(daemon)}") as tcp:
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            for name in ("statuses", "statuses[]"):
                query = [(name, "terminated"), (name, "running"), ("memory_store_id", api.store_id)]
                answer = tcp.get("/v1/sessions", params=query, headers=headers)
                assert answer.raise_for_status().json()["data"] == []
                query.append((name, "idle"))
                answer = tcp.get("/v1/sessions", params=query, headers=headers)
                assert [row["id"] for row in answer.json()["data"]] == [made["id"]]
        for empty in (b"", b"{}"):
            url = f"/v1/sessions/{made['id']}/archive"
            assert tcp.post(url, content=empty, headers=headers).status_code == 200
        for headers in ({}, {"x-api-key": "memfs_wrong"}):
            for url in ("/v1/sessions", f"/v1/sessions/{made['id']}", "/v1/memory_stores"):
                assert tcp.get(url, headers=headers).status_code == 401


def test_a_key_that_is_wrong_is_an_authentication_error(connect: Callable[..., Sdk]):
    with refused(anthropic.AuthenticationError, "authentication_error"):
        connect("memfs_wrong").beta.sessions.list()


def test_versions_by_a_session_are_found_by_both_of_its_names(api: Api):
    body = {"agent": "wren", "resources": attach(api.store_id)}
    made = api.client.post("/v1/sessions", json=body).raise_for_status().json()
    assert made["environment_id"] == "env_local"
    Path(made["resources"][1]["mount_path"], "a").write_text("x")
    api.put("/b", "y")
    for query in ({"task_id": made["id"]}, {"session_id": made["id"]},
                  {"task_id": made["id"], "session_id": made["id"]}):  # fmt: skip
        answer = api.request("GET", "/memory_versions", params=query).json()
        assert [row["path"] for row in answer["data"]] == ["/a"]
    query = {"task_id": made["id"], "session_id": "another"}
    assert api.request("GET", "/memory_versions", params=query).json()["data"] == []


def test_the_1001st_live_shared_store_is_refused_and_archiving_one_makes_room(tmp_path: Path):
    with (
        served(fill(tmp_path / "ws", stores_up_to_the_limit)) as daemon,
        connected("sync", "http://memfs", "unused", str(daemon.config.socket_path)) as sdk,
    ):
        api = sdk.client.beta.memory_stores
        sdk.client.beta.sessions.create(agent="wren", environment_id="e")  # its own does not count
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            api.create(name="one more")
        (newest,) = api.list(limit=2).data[1:]
        api.archive(newest.id)
        api.create(name="one more")
        with refused(anthropic.BadRequestError, "invalid_request_error"):
            api.create(name="and another")
        assert len(list(api.list(limit=100))) == 1_001  # with the worker's own
