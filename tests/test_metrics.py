"""/metrics: what is counted, for whom, and that it tells no secrets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.served import Served, serving
from tests.test_events import streaming


class Numbers:
    """A scrape."""

    def __init__(self, served: Served) -> None:
        answer = served.http.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float:
        return self.samples.get((f"memfs_{name}", frozenset(labels.items())), 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as one:
        yield one


def test_requests_are_counted_by_template_method_and_class(served: Served) -> None:
    store = served.store()
    note = store.write("/a")
    for _ in range(3):
        store.call("GET", f"/memories/{note['id']}")
    store.call("GET", "/memories/mem_no", status=404)
    served.call("GET", "nowhere/at/all", status=404)
    served.http.request("BREW", "/v1/memory_stores")
    found = Numbers(served)
    route = "/v1/memory_stores/{memory_store_id}/memories/{memory_id}"
    total = "http_requests_total"
    assert found.get(total, route=route, method="GET", status="2xx") == 3
    assert found.get(total, route=route, method="GET", status="4xx") == 1
    assert found.get("http_request_seconds_count", route=route, method="GET") == 4
    assert found.get(total, route="none", method="GET", status="4xx") == 1
    labels = [dict(pairs) for _, pairs in found.samples]
    assert {one["method"] for one in labels if "method" in one} == {"GET", "POST", "other"}


def test_what_there_is_is_counted(served: Served) -> None:
    served.status = lambda: {
        "mounts": [{"alive": True}, {"alive": False}, {"alive": True}],
        "problems": [],
        "open_files": 4,
        "data_bytes": 5,
        "free_bytes": 6,
    }
    store = served.store()
    store.write("/a")
    store.write("/b")
    served.call("POST", "tasks", {"id": "t1", "worker": "w"})
    served.call("POST", "tasks", {"id": "t2", "worker": "w"})
    served.call("POST", "tasks/t1/end")
    served.store().call("POST", "/archive")
    found = Numbers(served)
    assert found.get("notes") == 2
    assert found.get("workers") == 1
    assert [found.get("stores", state=one) for one in ("live", "archived")] == [2, 1]
    assert [found.get("tasks", state=one) for one in ("live", "ended")] == [1, 1]
    assert [found.get("mounts", state=one) for one in ("alive", "dead")] == [2, 1]
    assert found.get("open_handles") == 4
    assert (found.get("data_bytes"), found.get("free_bytes")) == (5, 6)
    assert found.get("log_seq") == served.service.feed.seq
    assert found.get("commit_rules_sum") == 8  # as many as requests that wrote
    assert found.get("commit_seconds_count") == found.get("commit_rules_count") > 0


def test_streams_and_wrong_keys_are_counted(served: Served) -> None:
    with streaming(served) as stream:
        stream.block()
        assert Numbers(served).get("http_event_streams") == 1
    assert Numbers(served).get("http_event_streams") == 0
    wrong = {"x-api-key": "memfs_wrong"}
    assert served.http.get("/v1/status", headers=wrong).status_code == 401
    assert Numbers(served).get("http_auth_failures_total") == 1


def test_no_name_id_path_or_text_is_told(served: Served) -> None:
    store = served.store("hush-store")
    note = store.write("/hush-path", "hush-text")
    served.call("POST", "tasks", {"id": "hush-task", "worker": "hush-worker"})
    served.http.get("/hush-route", params={"hush": "hush"})
    store.call("GET", f"/memories/{note['id']}")
    text = served.http.get("/metrics").text
    for word in ("hush", store.id, note["id"]):
        assert word not in text


def test_only_those_who_see_everything_see_the_numbers(served: Served) -> None:
    served.call("POST", "tasks", {"id": "t", "worker": "w"})
    for body, status in (
        ({"power": "person"}, 200),
        ({"power": "readonly"}, 200),
        ({"power": "agent", "worker": "w"}, 403),
        ({"power": "person", "scopes": ["stores", "events"]}, 403),
    ):
        key = served.call("POST", "keys", body)["secret"]
        assert served.http.get("/metrics", headers={"x-api-key": key}).status_code == status


def test_two_daemons_in_a_process_count_apart(tmp_path: Path, served: Served) -> None:
    served.store().write("/a")
    with serving(tmp_path / "other") as other:
        assert Numbers(other).get("notes") == 0
        assert Numbers(other).get("commit_rules_count") == 0
        assert Numbers(served).get("notes") == 1
