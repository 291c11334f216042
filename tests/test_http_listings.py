"""Listings over HTTP: walked under writers, over a restart, with cursors that are not theirs."""

import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.config import Config
from memfs.engine import refused, stores
from tests.conftest import USER, text
from tests.served import AStore, Served, serving

pytest_plugins = ("tests.served",)

LASTING = [f"/{top}/{n:02}/note.md" for top in "adgz" for n in range(25)]
PASSING = [f"/{top}/{n:02}/{name}" for top in "adgz" for n in range(0, 25, 3) for name in "aoz"]


class Writers:
    """Four clients that create, rename and delete notes until told to stop."""

    def __init__(self, config: Config, store: AStore) -> None:
        self.done, self.began = threading.Event(), threading.Event()
        self.writes = 0
        self._config, self._memories = config, f"/v1/memory_stores/{store.id}/memories"
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(4)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        assert self.began.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join(20)

    def _write(self, seed: int) -> None:
        some = random.Random(seed)
        transport = httpx.HTTPTransport(uds=str(self._config.socket_path))
        with httpx.Client(transport=transport, base_url="http://memfs", timeout=20) as http:
            mine: list[str] = []
            while not self.done.is_set():
                path = some.choice(PASSING)
                note = mine.pop(some.randrange(len(mine))) if mine and some.random() < 0.6 else None
                if note is None:
                    answer = http.post(self._memories, json={"path": path, "content": ""})
                elif some.random() < 0.5:
                    answer = http.delete(f"{self._memories}/{note}")
                else:
                    answer = http.post(f"{self._memories}/{note}", json={"path": path})
                assert answer.status_code in (200, 409), answer.text
                self.writes += answer.status_code == 200
                self.began.set()
                if answer.status_code == 200 and answer.request.method == "POST":
                    mine.append(answer.json()["id"])
                elif answer.status_code == 409 and note is not None:
                    mine.append(note)


def pages(store: AStore, **query: Any) -> Iterator[list[Any]]:
    page = store.call("GET", "/memories", **query)
    yield page["data"]
    while page["next_page"]:
        page = store.call("GET", "/memories", page=page["next_page"], **query)
        yield page["data"]


def test_each_lasting_note_comes_once_while_four_writers_write(served: Served) -> None:
    store = served.store()
    ids = {store.write(path)["id"] for path in LASTING}
    with served.other_clients(), Writers(served.config, store) as writers:
        before = writers.writes
        for limit, view in ((7, "basic"), (1, "basic"), (5, "full"), (1000, "basic")):
            rows = [row for page in pages(store, limit=limit, view=view) for row in page]
            times = Counter(row["id"] for row in rows)
            assert {times[note_id] for note_id in ids} == {1}
            places = Counter((row["id"], row["path"]) for row in rows)
            assert set(places.values()) == {1}
        for prefix, want in (("/", {"/a/", "/d/", "/g/", "/z/"}), ("/d/", None)):
            want = want or {f"/d/{n:02}/" for n in range(25)}
            rows = [
                row for page in pages(store, limit=3, depth=1, path_prefix=prefix) for row in page
            ]
            assert sorted(row["path"] for row in rows) == sorted(want)
        assert writers.writes > before, "nothing went on meanwhile"


@pytest.mark.parametrize("change", ["rename", "delete", "archive", "purge", "replace"])
def test_the_place_of_a_cursor_may_go(served: Served, change: str) -> None:
    """The note, or all of its folder's, on which the cursor stands."""
    store = served.store()
    for path in LASTING[:60]:
        store.write(path)
    page = store.call("GET", "/memories", limit=40)
    seen = [row["path"] for row in page["data"]]
    folder = seen[-1].rpartition("/")[0]
    for row in page["data"][25:]:  # all of /d that was seen, the cursor's among them
        where = f"/memories/{row['id']}"
        match change:
            case "rename":
                store.call("POST", where, {"path": f"/0{row['path']}"})
            case "delete" | "replace":
                store.call("DELETE", where)
            case "archive":
                store.call("POST", f"{where}/archive", {"reason": "x"})
            case _:
                store.call("POST", f"{where}/purge")
    if change == "replace":
        store.write(folder)  # a note now stands where a folder was
    while page["next_page"]:
        page = store.call("GET", "/memories", limit=40, page=page["next_page"])
        seen += [row["path"] for row in page["data"]]
    assert seen == LASTING[:60]


def listings(served: Served) -> dict[str, dict[str, Any]]:
    """Return a query for each listing that has pages; there are rows for two pages of each."""
    store = served.store("paged")
    for n in range(3):
        note = store.write(f"/{n}")
        store.call("POST", f"/memories/{store.write(f'/x{n}')['id']}/archive", {"reason": "x"})
        served.call("POST", "tasks", {"worker": "w", "resources": [resource(store)]})
        served.store("other")
    store.call("POST", f"/memories/{note['id']}", {"content": "again"})
    many = [resource(served.store()) for _ in range(2)]
    session = served.call("POST", "sessions", {"agent": "w", "resources": many})["id"]
    no = served.service.view(stores.get, store.id).no
    for n in range(3):
        served.commit(refused.keep, USER, no, f"/{n}", text(f"{n}"), "changed", None)
    at = f"memory_stores/{store.id}"
    return {
        "memory_stores": {"name": "other"},
        f"{at}/memories": {"path_prefix": "/"},
        f"{at}/memories?": {"archived": True},
        f"{at}/memory_versions": {"operation": "created"},
        "tasks": {"memory_store_id": store.id},
        f"{at}/refused_texts": {},
        "sessions": {"memory_store_id": store.id},
        "sessions?": {"memory_store_id": store.id, "order": "asc"},
        f"sessions/{session}/resources": {},
        "tasks?": {"memory_store_id": store.id, "include_ended": False},
    }


def resource(store: AStore) -> dict[str, str]:
    return {"type": "memory_store", "memory_store_id": store.id}


def test_the_listings_tested_here_are_all_that_have_pages(served: Served) -> None:
    """A listing that gets pages must come into `listings`."""
    paged = {
        path
        for path, route in served.http.get("/openapi.json").json()["paths"].items()
        if "page" in [one["name"] for one in route.get("get", {}).get("parameters", ())]
    }
    found = {f"/v1/{route.rstrip('?')}" for route in listings(served)}
    named = (("memstore_", "{memory_store_id}"), ("task_", "{session_id}"))
    for prefix, name in named:
        found = {re.sub(f"{prefix}[^/]+", name, path) for path in found}
    assert found == paged


def known(rows: list[Any]) -> list[Any]:
    """Return what tells rows apart; ages are not the same a moment later."""
    names = ("id", "number", "memory_store_id")
    return [next(row[name] for name in names if name in row) for row in rows]


def test_a_cursor_goes_on_after_a_restart_in_every_listing(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        walks = listings(served)
        whole = {r: served.call("GET", r.rstrip("?"), **q)["data"] for r, q in walks.items()}
        cursors = {
            route: served.call("GET", route.rstrip("?"), limit=2, **query)["next_page"]
            for route, query in walks.items()
        }
    with serving(tmp_path) as served:
        for route, query in walks.items():
            rest = served.call("GET", route.rstrip("?"), page=cursors[route], **query)
            assert rest["next_page"] is None
            assert known(rest["data"]) == known(whole[route][2:]) != []


def test_forged_and_foreign_cursors_are_400_in_every_listing(served: Served) -> None:
    walks = listings(served)
    cursors = {
        route: served.call("GET", route.rstrip("?"), limit=2, **query)["next_page"]
        for route, query in walks.items()
    }
    assert None not in cursors.values()
    for route, query in walks.items():
        own = cursors[route]
        forged = [own[:-1] + ("A" if own[-1] != "A" else "B"), own[5:], own + "A", own + "=", ""]
        forged += [
            "page_",
            "page_é",
            "page_" + "A" * 40,
            "page_" + "A" * 8_000,
            "\0",
            own.upper(),
        ]
        foreign = [cursor for other, cursor in cursors.items() if other != route]
        for wrong in forged + foreign:
            error = served.call("GET", route.rstrip("?"), status=400, page=wrong, **query)
            assert error["type"] == "invalid_request_error"
            assert "page" in error["message"]
