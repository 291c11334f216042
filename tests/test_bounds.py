"""What one client can cost: sizes, times and numbers of connections, over real sockets."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from daemon.http.bounds import Bounds
from memfs.engine import stores
from memfs.engine.service import Txn
from memfs.types import Actor, Caller, Store, Time
from tests.served import Served, serving

LONG = 1_000.0
HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/memory_stores HTTP/1.1\r\nhost: x\r\n"


def _send_until_cut_off(sock: socket.socket, part: bytes) -> None:
    """The other side's end shows in what we send, though there is still something to read."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            sock.send(part)
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("still held")


@contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    with served.other_clients(), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(served.config.socket_path))
        yield sock


def read(sock: socket.socket) -> bytes:
    """Return all that comes until the other side closes."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def answer(sock: socket.socket) -> tuple[int, Any]:
    """Return status and JSON body of an answer that ends its connection."""
    got = read(sock)
    return status(got), json.loads(got.partition(b"\r\n\r\n")[2])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    bounds = Bounds(body_s=1.0, answer_s=1.0, stall_s=1.0, grace_s=LONG)
    with serving(tmp_path_factory.mktemp("ws"), bounds=bounds) as one:
        yield one


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, bounds=Bounds(idle_s=0.5)) as one:
        yield one


@pytest.mark.parametrize("last", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [17_000, 200_000])
def test_a_head_over_16_kib_is_431(served: Served, size: int, last: bytes) -> None:
    with connected(served) as sock:
        with contextlib.suppress(OSError):  # it may have been cut off before all was sent
            sock.sendall(HEAD + b"connection: close\r\nx-long: " + b"a" * size + last)
        assert status(read(sock)) == 431


def test_a_head_that_does_not_come_ends_the_connection(hasty: Served) -> None:
    for start in (b"", b"G", HEAD):
        with connected(hasty) as sock:
            sock.sendall(start)
            assert read(sock) == b""


def test_trickling_does_not_extend_the_time_for_a_head(hasty: Served) -> None:
    with connected(hasty) as sock:
        sock.sendall(HEAD)
        _send_until_cut_off(sock, b"x: y\r\n")


def test_an_idle_connection_is_closed(hasty: Served) -> None:
    with connected(hasty) as sock:
        sock.sendall(HEAD + b"\r\n")
        assert status(read(sock)) == 200


@pytest.mark.parametrize("framing", [b"content-length: 9", b"transfer-encoding: chunked"])
def test_a_body_that_does_not_come_is_408(served: Served, framing: bytes) -> None:
    with connected(served) as sock:
        sock.sendall(POST + framing + b"\r\n\r\n")
        found, body = answer(sock)
        assert (found, body["error"]["type"]) == (408, "timeout_error")


@pytest.mark.parametrize("key", ["", "authorization: Bearer memfs_wrong\r\n"])
def test_a_body_without_an_end_gets_an_answer_and_an_end(served: Served, key: str) -> None:
    with connected(served) as sock:
        head = f"{key}transfer-encoding: chunked\r\n\r\n"
        chunk = b"20000\r\n" + b"x" * 0x20000 + b"\r\n"

        def pump() -> None:
            with contextlib.suppress(OSError):
                sock.sendall(POST + head.encode())
                while True:
                    sock.sendall(chunk)

        sender = threading.Thread(target=pump)
        sender.start()
        got = read(sock)
        sender.join(20)
        assert not sender.is_alive()
        assert not got or status(got) == (401 if key else 413)  # a reset may take the answer


def test_a_body_that_is_too_large_is_413_and_the_answer_can_be_read(served: Served) -> None:
    with connected(served) as sock:
        size = 5 * 2**20
        sock.sendall(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % size)
        sock.sendall(b" " * size)
        assert answer(sock)[0] == 413


def test_what_takes_too_long_is_504_and_not_applied(served: Served) -> None:
    begun, gate = threading.Event(), threading.Event()

    def wait(txn: Txn, caller: Caller, now: Time) -> None:
        begun.set()
        gate.wait(20)

    writer = threading.Thread(target=served.commit, args=(wait, Caller(Actor("user_actor", "u"))))
    writer.start()
    try:
        assert begun.wait(20)
        error = served.call("POST", "memory_stores", {"name": "late"}, 504)
    finally:
        gate.set()
        writer.join(20)
    assert error["type"] == "timeout_error"
    assert served.call("GET", "memory_stores", name="late")["data"] == []


def test_what_was_begun_in_time_and_ends_late_is_told_as_it_is(served: Served) -> None:
    rule, slow = stores.create, threading.Event()

    def slowly(txn: Txn, caller: Caller, now: Time, *args: Any) -> Store:
        slow.wait(1.5)  # longer than an answer may take
        return rule(txn, caller, now, *args)

    with mock.patch.object(stores, "create", slowly):
        made = served.call("POST", "memory_stores", {"name": "slow"})
    assert served.call("GET", "memory_stores", name="slow")["data"] == [made]


def test_one_connection_too_many_is_503_and_room_comes_back(tmp_path: Path) -> None:
    bounds = Bounds(connections=3, idle_s=LONG)
    with serving(tmp_path, bounds=bounds) as served:  # which has one itself
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                sock = stack.enter_context(connected(served))
                sock.sendall(HEAD + b"\r\n")
                assert status(sock.recv(65_536)) == 200
            for _ in range(5):
                with connected(served) as late:
                    late.sendall(HEAD + b"\r\n")
                    found, body = answer(late)
                    assert (found, body["error"]["type"]) == (503, "overloaded_error")
        with connected(served) as sock:
            sock.sendall(HEAD + b"\r\n")
            assert status(sock.recv(65_536)) == 200


def test_who_fills_tcp_does_not_keep_the_owner_out(tmp_path: Path) -> None:
    bounds = Bounds(connections=2, idle_s=LONG)
    with (
        serving(tmp_path, bounds=bounds, listen=("127.0.0.1", 0)) as served,
        served.other_clients(),
        contextlib.ExitStack() as stack,
    ):
        address = served.addresses[0]
        socks = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(3)]
        assert status(read(socks[2])) == 503
        with connected(served) as sock:
            sock.sendall(HEAD + b"\r\n")
            assert status(sock.recv(65_536)) == 200


def test_a_reader_that_takes_nothing_is_cut_off(served: Served) -> None:
    store = served.store()
    for n in range(20):
        store.write(f"/{n}", "x" * 100_000)
    with connected(served) as sock:
        route = f"/v1/memory_stores/{store.id}/memories?view=full&limit=20"
        sock.sendall(f"GET {route} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        _send_until_cut_off(sock, b"x")
        assert len(read(sock)) < 2_000_000


def test_a_reader_that_takes_nothing_does_not_keep_the_daemon_from_stopping(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, bounds=Bounds(stall_s=LONG, grace_s=0.5)) as served:
        store = served.store()
        for n in range(20):
            store.write(f"/{n}", "x" * 100_000)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(served.config.socket_path))
        route = f"/v1/memory_stores/{store.id}/memories?view=full&limit=20"
        sock.sendall(f"GET {route} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert sock.recv(1)
    sock.close()


def test_a_request_under_way_is_answered_when_the_daemon_stops(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(grace_s=LONG)) as served, connected(served) as sock:
        head = b"GET /v1/memory_stores HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        sock.sendall(head + b"content-length: 2\r\n\r\n{")
        assert status(sock.recv(65_536)) == 100  # it is under way
        served.stop()
        end = time.monotonic() + 20
        while _accepts(served):
            assert time.monotonic() < end
            time.sleep(0.001)
        sock.sendall(b"}")
        found, page = answer(sock)
        assert (found, page["data"]) == (200, [])


def _accepts(served: Served) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(served.config.socket_path)) == 0


def test_no_other_protocol_is_taken_up(served: Served) -> None:
    preface = b"PRI * HTTP/2.0\r\nconnection: close\r\n\r\nSM\r\n\r\n"
    with connected(served) as sock:
        sock.sendall(preface)
        assert status(read(sock)) in (400, 404, 405)
    for upgrade in (b"h2c", b"websocket"):
        with connected(served) as sock:
            extra = b"connection: upgrade, http2-settings, close\r\nhttp2-settings: AAMAAABk\r\n"
            key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
            sock.sendall(HEAD + extra + key + b"upgrade: " + upgrade + b"\r\n\r\n")
            assert status(read(sock)) == 200  # as if it had not been asked


def test_other_sites_pages_are_told_nothing(served: Served) -> None:
    origin = {"origin": "https://example.org"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    for route in ("/healthz", "/v1/memory_stores", "/v1/events", "/openapi.json"):
        answers = [
            served.http.options(route, headers=origin | asked),
            served.http.request("HEAD", route, headers=origin),
        ]
        if route != "/v1/events":
            answers.append(served.http.get(route, headers=origin))
        for one in answers:
            assert not [name for name in one.headers if name.startswith("access-control-")]
        assert answers[0].status_code == 405
