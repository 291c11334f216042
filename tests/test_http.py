"""The HTTP door over a real unix socket, by plain requests and by the official SDK."""

import hashlib
import json
import logging
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
import trio

from daemon.http.wire import parse_time, stamp
from memfs.engine import notes, refused, stores
from memfs.engine import path as paths
from memfs.errors import Invalid
from memfs.types import Actor, Caller, Time
from tests.conftest import text
from tests.served import AStore, Served, serving

pytest_plugins = ("tests.served",)

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Stores -----------------------------------------------------------------------------------------


def test_a_store_has_every_field_of_the_spec(served: Served) -> None:
    made = served.call(
        "POST", "memory_stores", {"name": "Läger", "description": None, "metadata": {"a": "1"}}
    )
    assert made["id"].startswith("memstore_")
    assert STAMP.fullmatch(made["created_at"])
    assert made["updated_at"] == made["created_at"]
    fixed = {k: made[k] for k in ("type", "name", "description", "metadata", "archived_at")}
    assert fixed == {
        "type": "memory_store",
        "name": "Läger",
        "description": "",
        "metadata": {"a": "1"},
        "archived_at": None,
    }
    assert served.call("GET", f"memory_stores/{made['id']}") == made


def test_null_in_an_update_means_not_supplied_and_metadata_is_a_patch(store: AStore) -> None:
    store.call("POST", "", {"description": "d", "metadata": {"a": "1", "b": "2"}})
    changed = store.call("POST", "", {"name": None, "description": None, "metadata": {"a": None}})
    assert (changed["name"], changed["description"]) == ("notes", "d")
    assert changed["metadata"] == {"b": "2"}
    assert store.call("POST", "", {"description": ""})["description"] == ""


def test_an_archived_store_can_be_read_and_emptied_but_not_written(store: AStore) -> None:
    note = store.write("/a.md", "one")
    store.call("POST", f"/memories/{note['id']}", {"content": "two"})
    archived = store.call("POST", "/archive")
    assert STAMP.fullmatch(archived["archived_at"])
    assert store.call("POST", "/archive") == archived

    # also before the body is looked at: archived comes before shape
    for path in ("", "/memories", f"/memories/{note['id']}", f"/memories/{note['id']}/archive"):
        assert "archived" in store.call("POST", path, b"{nonsense", status=400)["message"]
    assert store.call("GET", f"/memories/{note['id']}")["content"] == "two"
    oldest = store.versions()[-1]
    assert store.call("POST", f"/memory_versions/{oldest['id']}/redact")["path"] is None
    assert store.call("POST", f"/memory_versions/{oldest['id']}/restore", status=400)
    store.call("DELETE", f"/memories/{note['id']}")
    store.call("DELETE", "")
    store.call("GET", "", status=404)


def test_stores_are_listed_newest_first_without_archived_ones(served: Served) -> None:
    one, two, three = (served.store("listed") for _ in range(3))
    two.call("POST", "/archive")

    def listed(**query: Any) -> list[str]:
        return [
            row["id"] for row in served.call("GET", "memory_stores", name="listed", **query)["data"]
        ]

    assert listed() == [three.id, one.id]
    assert listed(include_archived="true") == [three.id, two.id, one.id]
    at = two.call("GET", "")["created_at"]  # inclusive, though what is kept is finer than shown
    assert listed(include_archived=True, **{"created_at[gte]": at}) == [three.id, two.id]
    assert listed(include_archived=True, **{"created_at[lte]": at}) == [two.id, one.id]
    window = {"created_at[gte]": at.replace("Z", "+00:00"), "created_at[lte]": at}
    assert listed(include_archived=True, **window) == [two.id]
    page = served.call("GET", "memory_stores", name="listed", limit=1)
    assert page["next_page"].startswith("page_")
    rest = served.call("GET", "memory_stores", name="listed", limit=1, page=page["next_page"])
    assert ([row["id"] for row in rest["data"]], rest["next_page"]) == ([one.id], None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "x" * 256},
        {"name": "a\u0007"},
        {"name": 1},
        {"name": "a", "description": "x" * 1025},
        {"name": "a", "metadata": {"k": None}},
        {"name": "a", "metadata": {str(n): "" for n in range(17)}},
        [],
        None,
    ],
)
def test_a_malformed_store_is_refused(served: Served, body: Any) -> None:
    assert served.call("POST", "memory_stores", body, 400)["type"] == "invalid_request_error"


def test_a_workers_own_store_cannot_be_deleted_or_archived(served: Served) -> None:
    task = served.call("POST", "tasks", {"worker": "keeper"})
    own = task["resources"][0]["memory_store_id"]
    assert served.call("DELETE", f"memory_stores/{own}", status=409)["type"] == "conflict_error"
    served.call("POST", f"memory_stores/{own}/archive", status=409)


# Notes ------------------------------------------------------------------------------------------


def test_views_default_to_full_for_one_and_basic_elsewhere(store: AStore) -> None:
    text = "cafe\u0301\r\n"  # not NFC, not touched
    made = store.write("/a/b.md", text)
    assert set(made) == {
        *("type", "id", "memory_store_id", "memory_version_id", "path", "content"),
        *("content_sha256", "content_size_bytes", "created_at", "updated_at"),
    }
    assert (made["type"], made["memory_store_id"], made["content"]) == ("memory", store.id, None)
    assert made["content_sha256"] == sha(text)
    assert made["content_size_bytes"] == len(text.encode())
    where = f"/memories/{made['id']}"
    assert store.call("GET", where) == made | {"content": text}
    assert store.call("GET", where, view="basic") == made
    assert store.call("GET", "/memories")["data"] == [made]
    assert store.call("GET", "/memories", view="full")["data"][0]["content"] == text
    assert store.call("POST", where, {"content": "2"})["content"] is None
    assert store.call("POST", where, {"content": "3"}, view="full")["content"] == "3"
    assert store.write("/empty", "", view="full")["content"] == ""


@pytest.mark.parametrize(
    "path",
    ["", "/", "a", "/a/", "//a", "/a//b", "/.", "/a/..", "/a\u0000", "/a\u200e", "/\u2028",
     "/e\u0301", "/" + "x" * 256, "/a" * 21, "/.memfs/x", "/" + "/".join(["é" * 100] * 6), None, 7],
)  # fmt: skip
def test_a_bad_path_is_refused_at_create_and_rename(store: AStore, path: Any) -> None:
    body = {"path": path, "content": "x"}
    assert store.call("POST", "/memories", body, 400)["type"] == "invalid_request_error"
    note = store.write("/fine")
    if path is not None:  # there null is "not supplied"
        store.call("POST", f"/memories/{note['id']}", {"path": path}, 400)
    assert len(store.versions()) == 1


@pytest.mark.parametrize(
    "content", [None, 1, "x" * 102_401, "é" * 51_201, "password = hunter2hunter2!"]
)
def test_bad_content_is_refused_and_not_repeated(store: AStore, content: Any) -> None:
    error = store.call("POST", "/memories", {"path": "/a", "content": content}, 400)
    assert error["type"] == "invalid_request_error"
    assert "hunter2" not in error["message"]
    assert len(error["message"]) < 400
    assert store.call("GET", "/memories")["data"] == []
    store.write("/a", "x" * 102_400)


@pytest.mark.parametrize(
    ("taken", "wanted"), [("/n", "/n"), ("/n", "/n/todo.md"), ("/n/todo.md", "/n")]
)
def test_a_path_conflict_names_the_note_in_the_way(store: AStore, taken: str, wanted: str) -> None:
    there, other = store.write(taken), store.write("/other")
    want = {
        "type": "memory_path_conflict_error",
        "conflicting_memory_id": there["id"],
        "conflicting_path": taken,
    }
    for error in (
        store.write(wanted, "x", status=409),
        store.call("POST", f"/memories/{other['id']}", {"path": wanted}, 409),
    ):
        assert error.items() >= want.items()


def test_an_update_is_one_version_and_a_retry_none(store: AStore) -> None:
    note = store.write("/a", "one")
    where = f"/memories/{note['id']}"
    stale = {"type": "content_sha256", "content_sha256": note["content_sha256"]}
    body = {"content": "two", "path": "/b/c", "precondition": stale}
    changed = store.call("POST", where, body)
    assert (changed["id"], changed["path"]) == (note["id"], "/b/c")
    assert changed["content_sha256"] == sha("two")
    assert [row["operation"] for row in store.versions()] == ["modified", "created"]
    assert store.call("POST", where, body) == changed
    assert store.call("POST", where, {"content": "two", "path": None}) == changed
    assert len(store.versions()) == 2

    error = store.call("POST", where, {"content": "three", "precondition": stale}, 409)
    assert error["type"] == "memory_precondition_failed_error"
    # against the text, also for a rename
    store.call("POST", where, {"path": "/d", "precondition": stale}, 409)
    assert store.call("GET", where, view="basic") == changed


@pytest.mark.parametrize(
    "wrong", ["", "0000", sha("one")[1:], sha("one") + "\n", "g" * 64, "٣" * 64]
)
def test_a_precondition_that_is_no_sha256_is_refused(store: AStore, wrong: str) -> None:
    note = store.write("/a", "one")
    body = {"content": "two", "precondition": {"type": "content_sha256", "content_sha256": wrong}}
    for id_, status in ((note["id"], 400), ("mem_unknown", 404)):
        error = store.call("POST", f"/memories/{id_}", body, status)
        assert status == 404 or "precondition.content_sha256" in error["message"]
        error = store.call(
            "DELETE", f"/memories/{id_}", status=status, expected_content_sha256=wrong
        )
        assert status == 404 or "expected_content_sha256" in error["message"]
    assert len(store.versions()) == 1


def test_a_sha256_may_be_written_in_upper_case(store: AStore) -> None:
    note = store.write("/a", "one")
    where = f"/memories/{note['id']}"
    upper = {"type": "content_sha256", "content_sha256": sha("one").upper()}
    store.call("POST", where, {"content": "two", "precondition": upper})
    store.call("DELETE", where, expected_content_sha256=sha("two").upper())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"content": None, "path": None},
        {"precondition": {"type": "content_sha256", "content_sha256": "0" * 64}},
        {"content": "x", "precondition": {"type": "etag", "content_sha256": "0" * 64}},
        {"content": "x", "precondition": {"type": "content_sha256"}},
        {"content": ["x"]},
    ],
)
def test_a_malformed_update_is_refused(store: AStore, body: Any) -> None:
    note = store.write("/a")
    store.call("POST", f"/memories/{note['id']}", body, 400)
    store.call("POST", "/memories/mem_unknown", body, 404)


def test_delete_takes_a_precondition_and_happens_once(store: AStore) -> None:
    note = store.write("/a", "one")
    where = f"/memories/{note['id']}"
    error = store.call("DELETE", where, status=409, expected_content_sha256=sha("two"))
    assert error["type"] == "memory_precondition_failed_error"
    gone = store.call("DELETE", where, expected_content_sha256=sha("one"))
    assert gone == {"type": "memory_deleted", "id": note["id"]}
    store.call("DELETE", where, status=404)
    store.call("GET", where, status=404)
    assert store.write("/a")["id"] != note["id"]
    last = store.versions(memory_id=note["id"])[0]
    assert (last["operation"], last["path"], last["content_sha256"]) == ("deleted", "/a", None)


def test_foreign_and_odd_ids_are_not_found(served: Served, store: AStore) -> None:
    note, other = store.write("/a"), served.store()
    other.call("GET", f"/memories/{note['id']}", status=404)
    other.call("GET", f"/memory_versions/{note['memory_version_id']}", status=404)
    for odd in ("mem_%00", "x" * 2000, "%F0%9F%92%A9", "mem_%FF", store.id, note["id"] + "%20"):
        store.call("GET", f"/memories/{odd}", status=404)
    assert store.call("GET", f"/memories/%6D{note['id'][1:]}")["id"] == note["id"]
    for path in ("/memories", "/memories/x", "/memory_versions/x/redact", ""):
        method = "POST"  # unknown comes before any look at the body
        served.call(method, f"memory_stores/memstore_no{path}", b"\xff", 404)


def test_depth_one_groups_what_is_deeper(store: AStore) -> None:
    for path in ("/a", "/b/c", "/b/d/e", "/b-x", "/z"):
        store.write(path)

    def listed(**query: Any) -> list[Any]:
        found = store.call("GET", "/memories", **query)["data"]
        assert all(set(row) == {"type", "path"} for row in found if row["type"] != "memory")
        return [row["path"] for row in found]

    assert listed(depth=1) == ["/a", "/b/", "/b-x", "/z"]  # byte order of names
    assert listed(depth=1, path_prefix="/b/") == ["/b/c", "/b/d/"]
    assert listed(depth=0, path_prefix="/b/") == ["/b/c", "/b/d/e"]
    assert sorted(listed(path_prefix="/")) == ["/a", "/b-x", "/b/c", "/b/d/e", "/z"]
    assert listed(path_prefix="/nowhere/") == []
    assert listed(path="/b/c") == ["/b/c"]
    assert listed(path="/b") == []
    for wrong in (
        {"path_prefix": "/b"},
        {"path_prefix": "b/"},
        {"path_prefix": ""},
        {"path": "/b/"},
        {"depth": 2},
        {"depth": "x"},
        {"limit": 0},
        {"limit": 1001},
        {"view": "all"},
        {"page": ""},
    ):
        store.call("GET", "/memories", status=400, **wrong)
    store.call("GET", "/memories", beta="true", order_by="path", unknown="1")


def test_pages_hold_up_to_a_thousand_notes_and_twenty_with_text(
    served: Served, store: AStore
) -> None:
    count = 1005
    for n in range(count):
        text = trio.from_thread.run(served.service.screen, b"x", trio_token=served._token)
        path = paths.parse(f"/n/{n:04}")
        served.commit(notes.create, Caller(Actor("user_actor", "u")), store.id, path, text)
    first = store.call("GET", "/memories", limit=1000)
    rest = store.call("GET", "/memories", limit=1000, page=first["next_page"])
    names = [row["path"] for row in first["data"] + rest["data"]]
    assert names == [f"/n/{n:04}" for n in range(count)]
    assert rest["next_page"] is None
    assert len(store.call("GET", "/memories")["data"]) == 20
    assert len(store.call("GET", "/memories", view="full", limit=1000)["data"]) == 20


def test_a_walk_meets_each_lasting_note_once_while_others_come_and_go(store: AStore) -> None:
    for n in range(9):
        store.write(f"/{n}/a")
    page = store.call("GET", "/memories", limit=3)
    seen = [row["path"] for row in page["data"]]
    store.call("DELETE", f"/memories/{page['data'][-1]['id']}")  # where the cursor stands
    store.write("/2/b")
    store.write("/0/b")
    while page["next_page"]:
        page = store.call("GET", "/memories", limit=2, page=page["next_page"])
        seen += [row["path"] for row in page["data"]]
    assert seen == [*(f"/{n}/a" for n in range(3)), "/2/b", *(f"/{n}/a" for n in range(3, 9))]


def test_a_note_can_be_put_away_brought_back_and_purged(store: AStore) -> None:
    notes_ = [store.write(f"/{n}", str(n)) for n in range(3)]
    for note in notes_:
        store.call("POST", f"/memories/{note['id']}/archive", {}, 400)
        away = store.call("POST", f"/memories/{note['id']}/archive", {"reason": "old"})
        assert (away["path"], away["archive_reason"]) == (note["path"], "old")
        assert STAMP.fullmatch(away["archived_at"])
    assert store.call("GET", "/memories")["data"] == []
    page = store.call("GET", "/memories", archived="true", limit=2)
    rest = store.call("GET", "/memories", archived="true", limit=2, page=page["next_page"])
    found = [row["id"] for row in page["data"] + rest["data"]]
    assert (found, rest["next_page"]) == ([note["id"] for note in notes_], None)
    assert store.call("GET", f"/memories/{notes_[0]['id']}")["content"] == "0"

    assert store.call("POST", f"/memories/{notes_[0]['id']}/unarchive")["path"] == "/0"
    store.write("/1", "taken")
    error = store.call("POST", f"/memories/{notes_[1]['id']}/unarchive", status=409)
    assert error["type"] == "memory_path_conflict_error"
    gone = store.call("POST", f"/memories/{notes_[2]['id']}/purge")
    assert gone == {"type": "memory_purged", "id": notes_[2]["id"]}
    assert store.versions(memory_id=notes_[2]["id"]) == []
    store.call("POST", f"/memories/{notes_[2]['id']}/purge", status=404)


# Cursors ----------------------------------------------------------------------------------------


def test_a_cursor_serves_its_own_listing_only(served: Served, store: AStore) -> None:
    other = served.store()
    for n in range(3):
        store.write(f"/a/{n}")
        other.write(f"/a/{n}")
    cursor = store.call("GET", "/memories", limit=1)["next_page"]
    assert store.call("GET", "/memories", page=cursor, limit=2, view="full")["data"]
    forged = [cursor[:-1] + ("A" if cursor[-1] != "A" else "B"), cursor[5:], "page_", "x", "page_é"]
    forged += [cursor + "=", cursor + "A", "page_" + "A" * 40, "page_%%%", cursor.lower()]
    for wrong in forged:
        assert "page" in store.call("GET", "/memories", status=400, page=wrong)["message"]
    store.call("GET", "/memories", status=400, page=cursor, path_prefix="/a/")
    store.call("GET", "/memories", status=400, page=cursor, depth=1)
    store.call("GET", "/memory_versions", status=400, page=cursor)
    other.call("GET", "/memories", status=400, page=cursor)


def test_cursors_outlive_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        store = served.store()
        for n in range(3):
            store.write(f"/{n}")
        cursors = {
            route: store.call("GET", route, limit=1)["next_page"]
            for route in ("/memories", "/memory_versions")
        }
        key = served.config.data_dir / "cursor.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with serving(tmp_path) as served:
        store = AStore(served, store.id)
        rows = store.call("GET", "/memories", page=cursors["/memories"])["data"]
        assert [row["path"] for row in rows] == ["/1", "/2"]
        rows = store.call("GET", "/memory_versions", page=cursors["/memory_versions"])["data"]
        assert [row["path"] for row in rows] == ["/1", "/0"]


# Refused texts ----------------------------------------------------------------------------------


def refuse(served: Served, store: AStore, *texts: str) -> None:
    no = served.service.view(stores.get, store.id).no
    for data in texts:
        caller = Caller(Actor("session_actor", "t-1"))
        served.commit(refused.keep, caller, no, "/a", text(data), "changed", None)


def test_refused_texts_are_listed_read_kept_and_discarded(served: Served, store: AStore) -> None:
    refuse(served, store, "one", "two", "three")
    page = store.call("GET", "/refused_texts", limit=2)
    rest = store.call("GET", "/refused_texts", limit=2, page=page["next_page"], view="full")
    assert [row["number"] for row in page["data"]] == [3, 2]
    assert [(row["number"], row["content"]) for row in rest["data"]] == [(1, "one")]
    found = store.call("GET", "/refused_texts/2")
    assert STAMP.fullmatch(found.pop("created_at"))
    assert found == {
        "type": "refused_text",
        "number": 2,
        "memory_store_id": store.id,
        "path": "/a",
        "reason": "changed",
        "content": "two",
        "content_sha256": sha("two"),
        "content_size_bytes": 3,
        "base_sha256": None,
        "head_sha256": None,
        "created_by": {"type": "session_actor", "session_id": "t-1", "task_id": "t-1"},
    }
    store.write("/taken", "x")
    error = store.call("POST", "/refused_texts/2/keep", {"path": "/taken"}, status=409)
    assert error["conflicting_path"] == "/taken"
    store.call("POST", "/refused_texts/2/keep", {"path": "no slash"}, status=400)
    store.call("POST", "/refused_texts/2/keep", {}, status=400)
    made = store.call("POST", "/refused_texts/2/keep", {"path": "/two"}, view="full")
    assert (made["path"], made["content"]) == ("/two", "two")
    assert store.call("DELETE", "/refused_texts/3") == {"type": "refused_text_deleted", "id": "3"}
    for number in (2, 3, 2**70, -1):
        store.call("GET", f"/refused_texts/{number}", status=404)
        store.call("DELETE", f"/refused_texts/{number}", status=404)
        store.call("POST", f"/refused_texts/{number}/keep", {"path": "/z"}, status=404)
    store.call("GET", "/refused_texts/x", status=400)
    assert [row["number"] for row in store.call("GET", "/refused_texts")["data"]] == [1]


def test_a_refused_text_is_no_note_once_it_counts_as_a_credential(
    served: Served, store: AStore
) -> None:
    refuse(served, store, "the word is correct horse battery")
    version = store.write("/b", "correct horse battery too")["memory_version_id"]
    note = store.call("GET", "/memories", path="/b")["data"][0]["id"]
    store.call("POST", f"/memories/{note}", {"content": "harmless"})
    secret = {"name": "refused", "secret": "correct horse battery"}
    served.call("POST", "secrets", secret)
    try:
        for where, body in (
            ("/refused_texts/1/keep", {"path": "/x"}),
            (f"/memory_versions/{version}/restore", None),
        ):
            assert "horse" not in store.call("POST", where, body, status=400)["message"]
    finally:
        served.call("DELETE", "secrets/refused")
    store.call("POST", "/refused_texts/1/keep", {"path": "/x"})


def test_an_archived_stores_refused_texts_can_only_be_read_and_discarded(
    served: Served, store: AStore
) -> None:
    refuse(served, store, "one")
    store.call("POST", "/archive")
    error = store.call("POST", "/refused_texts/1/keep", {"path": "/x"}, status=400)
    assert "archived" in error["message"]
    assert store.call("GET", "/refused_texts/1")["content"] == "one"
    store.call("DELETE", "/refused_texts/1")


# Versions ---------------------------------------------------------------------------------------


def test_versions_of_a_path_are_of_every_note_that_was_there(store: AStore) -> None:
    first = store.write("/a", "1")["id"]
    store.call("DELETE", f"/memories/{first}")
    second = store.write("/a", "2")["id"]
    store.write("/b", "3")
    found = store.call("GET", "/memory_versions", path="/a")["data"]
    assert [row["memory_id"] for row in found] == [second, first, first]
    assert [row["ordinal"] for row in found] == [1, 2, 1]
    store.call("GET", "/memory_versions", path="a//b", status=400)


def test_a_version_has_every_field_and_redaction_empties_it(store: AStore) -> None:
    note = store.write("/a", "one")
    where = f"/memory_versions/{note['memory_version_id']}"
    version = store.call("GET", where)
    fixed = {k: v for k, v in version.items() if not k.endswith("_at")}
    assert fixed == {
        "type": "memory_version",
        "id": note["memory_version_id"],
        "memory_store_id": store.id,
        "memory_id": note["id"],
        "operation": "created",
        "ordinal": 1,
        "path": "/a",
        "content": "one",
        "content_sha256": sha("one"),
        "content_size_bytes": 3,
        "created_by": {"type": "user_actor", "user_id": "user_7"},
        "redacted_by": None,
    }
    assert store.versions() == [version | {"content": None}]
    assert store.call("GET", where, view="basic")["content"] is None

    error = store.call("POST", f"{where}/redact", status=409)
    assert error["type"] == "conflict_error"
    store.call("POST", f"/memories/{note['id']}", {"content": "two"})
    emptied = store.call("POST", f"{where}/redact")
    empty = dict.fromkeys(("path", "content", "content_sha256", "content_size_bytes"))
    assert emptied.items() >= empty.items()
    assert emptied["created_by"] == emptied["redacted_by"] == version["created_by"]
    assert STAMP.fullmatch(emptied["redacted_at"])
    assert store.call("POST", f"{where}/redact") == emptied == store.call("GET", where)
    store.call("POST", f"{where}/restore", status=400)

    store.call("DELETE", f"/memories/{note['id']}")
    last = store.versions()[0]
    assert store.call("POST", f"/memory_versions/{last['id']}/redact")["path"] is None
    store.call("POST", "/memory_versions/memver_no/redact", status=404)


def test_versions_are_filtered_by_note_operation_author_and_time(
    served: Served, store: AStore
) -> None:
    one, two = store.write("/1"), store.write("/2")
    store.call("POST", f"/memories/{one['id']}", {"content": "b"})
    store.call("DELETE", f"/memories/{one['id']}")
    by_task = Caller(Actor("session_actor", "task-9"))
    text = trio.from_thread.run(served.service.screen, b"x", trio_token=served._token)
    served.commit(notes.create, by_task, store.id, paths.parse("/3"), text)
    everything = store.versions()
    assert [row["path"] for row in everything] == ["/3", "/1", "/1", "/2", "/1"]
    assert everything[0]["created_by"] == {
        "type": "session_actor",
        "session_id": "task-9",
        "task_id": "task-9",
    }

    def found(**query: Any) -> list[int]:
        ids = [row["id"] for row in everything]
        return [ids.index(row["id"]) for row in store.versions(**query)]

    assert found(memory_id=one["id"]) == [1, 2, 4]
    assert found(memory_id=two["id"], operation="modified") == []
    assert found(memory_id="mem_no") == []
    assert found(operation="created") == [0, 3, 4]
    assert found(session_id="task-9") == found(task_id="task-9") == [0]
    assert found(session_id="task-9", task_id="task-9", operation="created") == [0]
    assert found(session_id="task-9", task_id="task-8") == []
    assert found(session_id="task-9", api_key_id="apikey_1") == []
    assert found(api_key_id="apikey_1") == found(service_account_id="svac_1") == []
    at = everything[2]["created_at"]
    assert found(**{"created_at[gte]": at, "created_at[lte]": at}) == [2]
    assert found(**{"created_at[gte]": "2999-01-01T00:00:00Z"}) == []
    assert found(**{"created_at[lte]": "9999-12-31T23:59:59.9999999-00:00"}) == [0, 1, 2, 3, 4]
    assert store.call("GET", "/memory_versions", limit=1)["next_page"]
    for wrong in (
        {"operation": "renamed"},
        {"created_at[gte]": "yesterday"},
        {"created_at[gte]": ""},
        {"limit": 101},
    ):
        error = store.call("GET", "/memory_versions", status=400, **wrong)
        assert next(iter(wrong)) in error["message"]


def test_restore_writes_the_old_text_as_a_new_version(store: AStore) -> None:
    note = store.write("/a", "one")
    store.call("POST", f"/memories/{note['id']}", {"content": "two"})
    restore = f"/memory_versions/{note['memory_version_id']}/restore"
    back = store.call("POST", restore, view="full")
    assert (back["id"], back["content"]) == (note["id"], "one")
    assert len(store.versions()) == 3
    assert store.call("POST", restore)["memory_version_id"] == back["memory_version_id"]
    store.call("DELETE", f"/memories/{note['id']}")
    again = store.call("POST", restore)
    assert again["id"] != note["id"]
    assert again["path"] == "/a"


# Tasks, workers, secrets, the daemon ------------------------------------------------------------


def test_a_task_freezes_its_stores(served: Served, store: AStore) -> None:
    resource = {
        "type": "memory_store",
        "memory_store_id": store.id,
        "access": "read_only",
        "instructions": "look only",
        "guard": False,
    }
    owner = {"uid": 1000, "gid": 1001}
    body = {"id": "t.1", "worker": "Ada", "resources": [resource], "owner": owner}
    made = served.call("POST", "tasks", body)
    own, attached = made["resources"]
    assert attached == resource | {
        "name": "notes",
        "description": "",
        "mount_path": "/mnt/t.1/notes",
    }
    assert own["name"] == "Ada"
    assert own["access"] == "read_write"
    assert own["instructions"] is None
    assert own["guard"] is True
    assert (made["type"], made["owner"], made["ended_at"]) == ("task", owner, None)

    store.call("POST", "", {"name": "renamed"})
    assert served.call("GET", "tasks/t.1") == made
    assert served.call("POST", "tasks", body, 409)["type"] == "conflict_error"
    ended = served.call("POST", "tasks/t.1/end")
    assert STAMP.fullmatch(ended["ended_at"])
    assert served.call("POST", "tasks/t.1/end") == ended
    served.call("GET", "tasks/none", status=404)
    worker = served.call("GET", "workers/Ada")
    assert worker == served.call("GET", f"workers/{made['worker_id']}")
    assert worker["memory_store_id"] == own["memory_store_id"]
    assert worker in served.call("GET", "workers")["data"]
    served.call("GET", "workers/Nobody", status=404)


def test_tasks_are_listed_newest_first(served: Served, store: AStore) -> None:
    resources = [{"type": "memory_store", "memory_store_id": store.id, "access": None}]
    for name in ("l1", "l2", "l3"):
        served.call("POST", "tasks", {"task_id": name, "worker": "L", "resources": resources})
    served.call("POST", "tasks/l2/end")
    page = served.call("GET", "tasks", memory_store_id=store.id, limit=2)
    rest = served.call("GET", "tasks", memory_store_id=store.id, page=page["next_page"])
    assert [row["id"] for row in page["data"] + rest["data"]] == ["l3", "l2", "l1"]
    live = served.call("GET", "tasks", memory_store_id=store.id, include_ended="false")
    assert [row["id"] for row in live["data"]] == ["l3", "l1"]


@pytest.mark.parametrize(
    "body",
    [
        {"id": ".."},
        {"id": "a/b"},
        {"id": "a", "task_id": "b"},
        {"worker": ""},
        {"owner": {"uid": -1, "gid": 0}},
        {"owner": {"uid": 1}},
        {"resources": [{"type": "file", "memory_store_id": "x"}]},
        {"resources": [{"type": "memory_store", "memory_store_id": "x", "access": "all"}]},
    ],
)
def test_a_malformed_task_is_refused(served: Served, body: Any) -> None:
    served.call("POST", "tasks", body, 400)


def test_a_registered_secret_is_refused_in_texts_and_never_shown(
    served: Served, store: AStore
) -> None:
    secret = "correct horse battery staple"
    made = served.call("POST", "secrets", {"name": "a/b c", "secret": secret})
    assert (made.pop("held_by"), made.pop("held_by_count"), made.pop("remedy")) == ([], 0, None)
    assert set(made) == {"type", "name", "created_at"}
    assert served.call("GET", "secrets")["data"] == [made]
    served.call("POST", "secrets", {"name": "a/b c", "secret": secret}, 409)
    error = store.write("/a", f"it is {secret}.", status=400)
    assert secret not in error["message"]
    assert served.call("DELETE", "secrets/a%2Fb%20c") == {"type": "secret_deleted", "id": "a/b c"}
    served.call("DELETE", "secrets/a%2Fb%20c", status=404)
    store.write("/a", f"it is {secret}.")
    for body in ({"name": "x"}, {"name": "x", "secret": "short"}, {"name": "", "secret": secret}):
        error = served.call("POST", "secrets", body, 400)
        assert "short:" not in error["message"]


def test_health_and_status_answer(served: Served) -> None:
    assert served.http.get("/healthz").json() == {"status": "ok"}
    found = served.call("GET", "status")
    assert (found["type"], found["mounts"]) == ("status", [])
    assert found["seq"] == served.service.feed.seq


def test_the_reply_comes_after_the_mounts_have_settled(served: Served, store: AStore) -> None:
    served.settled.clear()
    store.write("/a")
    assert served.settled == [served.service.feed.seq]
    store.write("/a", status=409)
    assert len(served.settled) == 1


# The envelope -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"\xff\xfe{\x00}\x00",
        '{"name":"é"}'.encode("latin-1"),
        '{"name":"é"}'.encode("utf-16"),
        b'{"name":"\\ud800"}',
        b'{"name":"\\udfff\\ud800"}',
        b"[" * 100_000,
        b'{"name":NaN}',
        b"nul",
        b'"name"',
    ],
)
def test_a_body_that_is_not_utf8_json_is_refused(served: Served, raw: bytes) -> None:
    assert served.call("POST", "memory_stores", raw, 400)["type"] == "invalid_request_error"


def test_a_body_over_a_mebibyte_is_413(served: Served) -> None:
    for size in (2**20 + 1, 5 * 2**20):
        error = served.call("POST", "memory_stores", b" " * size, 413)
        assert error["type"] == "request_too_large"
    served.call("POST", "memory_stores", b'{"name":"a"}' + b" " * (2**20 - 12))


def test_the_framework_answers_in_our_envelope(served: Served) -> None:
    assert served.call("GET", "nowhere", status=404)["type"] == "not_found_error"
    assert served.call("GET", "memory_stores/", status=404)["type"] == "not_found_error"
    assert served.call("PUT", "memory_stores", status=405)["type"] == "invalid_request_error"
    error = served.call("GET", "memory_stores", status=400, limit="many<script>")
    assert error["message"].startswith("limit: ")
    assert "script" not in error["message"]


def test_both_betas_at_once_are_refused_for_memory_stores(served: Served) -> None:
    both = "agent-memory-2026-07-22, managed-agents-2026-04-01"
    for betas, status in ((both, 400), (both[:23], 200), (both[25:], 200), ("x,y", 200)):
        answer = served.http.get("/v1/memory_stores", headers={"anthropic-beta": betas})
        assert answer.status_code == status


def test_a_bug_is_a_logged_500_and_the_daemon_lives(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    working, served.status = served.status, lambda: {"broken": 1 // 0}
    try:
        error = served.call("GET", "status", status=500)
    finally:
        served.status = working
    assert error["type"] == "api_error"
    assert "ZeroDivisionError" not in error["message"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info is not None
    assert served.call("GET", "status")["mounts"] == []


def test_the_openapi_document_is_whole(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    for ref in re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert ref in document["components"]["schemas"]
    update = document["paths"]["/v1/memory_stores/{memory_store_id}/memories/{memory_id}"]["post"]
    assert update["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/UpdateMemory"
    )
    assert "422" not in json.dumps(document)


def test_only_the_owner_can_connect_and_the_socket_goes_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        path = served.config.socket_path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_client_that_leaves_frees_its_connection_and_its_write_is_kept(
    served: Served, store: AStore
) -> None:
    body = b'{"path":"/cut","content":"kept"}'
    head = f"POST /v1/memory_stores/{store.id}/memories HTTP/1.1\r\nhost: x\r\n"
    with served.other_clients():
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(served.config.socket_path))
                client.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        for raw in (b"", b"GET", b"\0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(served.config.socket_path))
                client.sendall(raw)
    end = time.monotonic() + 10
    while not (rows := store.versions()) and time.monotonic() < end:
        time.sleep(0.001)
    assert [row["path"] for row in rows] == ["/cut"]


def test_times_are_exact_to_the_microsecond() -> None:
    assert stamp(Time(1_700_000_000_123_456_789)) == "2023-11-14T22:13:20.123456Z"
    assert stamp(Time(-1)) == "1969-12-31T23:59:59.999999Z"
    assert parse_time("t", "2023-11-14T22:13:20.123456Z") == 1_700_000_000_123_456_000
    assert parse_time("t", "2023-11-14T22:13:20.123456Z", end=True) == 1_700_000_000_123_456_999
    assert parse_time("t", "2023-11-14T23:13:20 01:00") == 1_700_000_000_000_000_000
    with pytest.raises(Invalid):
        parse_time("t", "now")


# The official SDK -------------------------------------------------------------------------------


@pytest.fixture
def sdk(served: Served) -> Iterator[anthropic.Anthropic]:
    transport = httpx2.HTTPTransport(uds=str(served.config.socket_path))
    with (
        served.other_clients(),
        anthropic.Anthropic(
            api_key="unused",
            base_url="http://memfs",
            http_client=httpx2.Client(transport=transport),
            _strict_response_validation=True,
        ) as client,
    ):
        yield client


def test_the_sdk_manages_stores(sdk: anthropic.Anthropic) -> None:
    api = sdk.beta.memory_stores
    made = api.create(name="SDK", description="d", metadata={"k": "v"})
    assert api.retrieve(made.id) == made
    assert made.created_at.tzinfo is not None
    assert api.update(made.id, metadata={"k": None}, name=None).metadata == {}
    assert made.id in [store.id for store in api.list(limit=1, created_at_gte=made.created_at)]
    archived = api.archive(made.id)
    assert archived.archived_at is not None
    with pytest.raises(anthropic.BadRequestError):
        api.update(made.id, name="late")
    assert api.delete(made.id).type == "memory_store_deleted"
    with pytest.raises(anthropic.NotFoundError) as info:
        api.retrieve(made.id)
    assert info.value.request_id is not None
    assert info.value.type == "not_found_error"


def test_the_sdk_manages_memories(sdk: anthropic.Anthropic, store: AStore) -> None:
    api = sdk.beta.memory_stores.memories
    made = api.create(store.id, path="/p/a.md", content="one")
    assert api.retrieve(made.id, memory_store_id=store.id).content == "one"
    seen = made.content_sha256
    precondition: Any = {"type": "content_sha256", "content_sha256": seen}
    for _ in range(2):  # the second is a retry of the first
        changed = api.update(
            made.id, memory_store_id=store.id, content="two", precondition=precondition, view="full"
        )
        assert changed.content == "two"
    with pytest.raises(anthropic.ConflictError) as info:
        api.update(made.id, memory_store_id=store.id, content="3", precondition=precondition)
    assert info.value.type == "memory_precondition_failed_error"
    with pytest.raises(anthropic.ConflictError) as info:
        api.create(store.id, path="/p", content="")
    assert info.value.body["error"]["conflicting_memory_id"] == made.id  # pyright: ignore
    with pytest.raises(anthropic.BadRequestError):
        api.create(store.id, path="/q", content=None)
    for n in range(45):
        api.create(store.id, path=f"/many/{n:02}", content="x")
    walked = [row.path for row in api.list(store.id, path_prefix="/many/", limit=20, view="full")]
    assert walked == [f"/many/{n:02}" for n in range(45)]
    kinds = {row.path: row.type for row in api.list(store.id, depth=1)}
    assert kinds == {"/many/": "memory_prefix", "/p/": "memory_prefix"}
    with pytest.raises(anthropic.ConflictError):
        api.delete(made.id, memory_store_id=store.id, expected_content_sha256=seen)
    assert api.delete(made.id, memory_store_id=store.id).id == made.id


def test_the_sdk_reads_and_redacts_versions(sdk: anthropic.Anthropic, store: AStore) -> None:
    note = store.write("/a", "one")
    store.call("POST", f"/memories/{note['id']}", {"content": "two"})
    api = sdk.beta.memory_stores.memory_versions
    rows = list(api.list(store.id, memory_id=note["id"], limit=1))
    assert [row.operation for row in rows] == ["modified", "created"]
    oldest = api.retrieve(rows[1].id, memory_store_id=store.id)
    assert oldest.content == "one"
    assert oldest.created_by is not None
    assert oldest.created_by.type == "user_actor"
    emptied = api.redact(rows[1].id, memory_store_id=store.id)
    assert emptied.content_sha256 is None
    assert emptied.redacted_at is not None
    with pytest.raises(anthropic.ConflictError):
        api.redact(rows[0].id, memory_store_id=store.id)
    window = api.list(store.id, created_at_gte=rows[0].created_at, operation="modified")
    assert [row.id for row in window] == [rows[0].id]


async def test_the_async_sdk_works_too(served: Served, store: AStore) -> None:
    transport = httpx2.AsyncHTTPTransport(uds=str(served.config.socket_path))
    with served.other_clients():
        async with anthropic.AsyncAnthropic(
            api_key="unused",
            base_url="http://memfs",
            http_client=httpx2.AsyncClient(transport=transport),
            _strict_response_validation=True,
        ) as sdk:
            api = sdk.beta.memory_stores.memories
            for n in range(3):
                await api.create(store.id, path=f"/{n}", content="x")
            assert [row.path async for row in api.list(store.id, limit=2)] == ["/0", "/1", "/2"]
