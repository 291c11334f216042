"""HEAD is GET without the body, on every route that has a GET."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from daemon.http.bounds import Bounds
from tests.served import Served, serving
from tests.test_bounds import connected, read, status


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws"), listen=("127.0.0.1", 0)) as one:
        yield one


def fields(answer: httpx.Response) -> dict[str, str]:
    return {
        name: value for name, value in answer.headers.items() if name not in ("date", "request-id")
    }


def test_head_answers_as_get_does_without_the_body(served: Served) -> None:
    store = served.store()
    note = store.write("/a")
    base = f"/v1/memory_stores/{store.id}"
    for path, expected in (
        ("/healthz", 200),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/v1/memory_stores", 200),
        (f"{base}/memories/{note['id']}", 200),
        (f"{base}/memories/mem_no", 404),
        (f"{base}/export", 200),
        ("/nowhere", 404),
        ("/v1/memory_stores/import", 404),
    ):
        got, head = served.http.get(path), served.http.head(path)
        assert (got.status_code, head.status_code) == (expected, expected), path
        assert head.content == b""
        if expected == 200:
            assert fields(head) == fields(got)
            assert head.headers["request-id"].startswith("req_")
    numbers = served.http.head("/metrics")
    assert numbers.headers["content-type"].startswith("text/plain")
    assert 'method="HEAD",route="/healthz",status="2xx"' in served.http.get("/metrics").text


def test_head_of_a_stream_ends_and_its_connection_goes_on(served: Served) -> None:
    for _ in range(3):
        head = served.http.head("/v1/events")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
    assert "memfs_http_event_streams 0.0" in served.http.get("/metrics").text


def test_a_connection_whose_stream_was_asked_for_its_head_ends_when_idle(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(idle_s=0.3)) as served, connected(served) as sock:
        sock.sendall(b"HEAD /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
        assert status(read(sock)) == 200


def test_head_needs_what_get_needs_and_is_no_way_around(served: Served) -> None:
    with (
        served.other_clients(),
        httpx.Client(base_url="http://{}:{}".format(*served.addresses[0])) as http,
    ):
        assert http.head("/healthz").status_code == 200
        assert http.head("/v1/memory_stores").status_code == 401
    refused = served.http.head(f"/v1/memory_stores/{served.store().id}/archive")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
