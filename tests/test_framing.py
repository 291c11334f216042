"""Where a request ends must be beyond doubt, for us and for any proxy before us."""

import contextlib
import json
import socket

import pytest

from tests.served import Served
from tests.test_bounds import connected, read, status

pytest_plugins = ("tests.served",)

HOST = b"host: x\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /v1/memory_stores HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
BODY = b'{"name":"s"}'
HIDDEN = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
LONG = b"a" * 20_000

DOUBTFUL = {
    "both lengths": (
        POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN
    ),
    "both lengths, the other way": (
        POST + b"Transfer-ENCODING:chunked\r\nCONTENT-Length:5\r\n\r\n0\r\n\r\n" + HIDDEN
    ),
    "a folded header": GET + b"a: b\r\n c\r\n\r\n" + HIDDEN,
    "a length in a fold": POST + b"a: b\r\n\tcontent-length: 9\r\n\r\n" + HIDDEN,
    "bare line feeds": b"GET /healthz HTTP/1.1\nhost: x\n\n" + HIDDEN,
    "one bare line feed": GET + b"a: b\nc: d\r\n\r\n" + HIDDEN,
    "an end of bare line feeds": GET + b"a: b\r\n\n" + HIDDEN,
    "a long chunk extension": CHUNKED + b"5;" + LONG + b"\r\nhello\r\n0\r\n\r\n" + HIDDEN,
    "a long extension of the last chunk": CHUNKED + b"0;" + LONG + b"\r\n\r\n" + HIDDEN,
    "an extension without an end": CHUNKED + b"5;" + LONG,
    "long trailers": CHUNKED + b"0\r\nx: " + LONG + b"\r\n\r\n" + HIDDEN,
}
UNREADABLE = {  # as h11 finds
    "two lengths": (POST + b"content-length: 4\r\ncontent-length: 5\r\n\r\n{}  ", 400),
    "another coding": (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "no version": (b"GET /healthz\r\n\r\n", 400),
    "a bad chunk": (CHUNKED + b"zz\r\n", 400),
    "a long head": (GET + b"x: " + LONG, 431),
}


def refused(sock: socket.socket) -> int:
    """Return the status of the one answer before the connection's end."""
    got = read(sock)
    assert got.count(b"HTTP/1.1 ") == 1
    head, _, body = got.partition(b"\r\n\r\n")
    found = json.loads(body)
    assert found["type"] == "error"
    assert found["error"]["type"] in ("invalid_request_error", "request_too_large")
    lines = head.lower().split(b"\r\n")
    assert b"request-id: " + found["request_id"].lower().encode() in lines
    assert b"connection: close" in lines
    return status(got)


@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_request_whose_end_is_in_doubt_is_refused(served: Served, case: str) -> None:
    with connected(served) as sock:
        sock.sendall(DOUBTFUL[case])
        assert refused(sock) == 400


@pytest.mark.parametrize("case", [name for name in DOUBTFUL if LONG not in DOUBTFUL[name]])
def test_it_is_refused_too_when_it_comes_byte_by_byte(served: Served, case: str) -> None:
    with connected(served) as sock:
        with contextlib.suppress(OSError):  # of what follows the refusal
            for byte in DOUBTFUL[case]:
                sock.sendall(bytes([byte]))
        got = read(sock)
        assert not got or status(got) == 400  # a reset may take the answer
        assert got.count(b"HTTP/1.1 ") < 2


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_in_the_envelope(served: Served, case: str) -> None:
    sent, expected = UNREADABLE[case]
    with connected(served) as sock:
        sock.sendall(sent)
        assert refused(sock) == expected


def test_what_was_asked_before_is_answered(served: Served) -> None:
    with connected(served) as sock:
        sock.sendall(HIDDEN + DOUBTFUL["a folded header"])
        got = read(sock)
        assert [int(one[:3]) for one in got.split(b"HTTP/1.1 ")[1:]] == [200, 400]


def test_short_chunk_extensions_and_trailers_are_allowed(served: Served) -> None:
    chunk = b"%x;name=value\r\n%s\r\n" % (len(BODY), BODY)
    many = b"1;%s\r\n \r\n" % (b"e" * 5_000) * 20  # each alone counts
    with connected(served) as sock:
        head = CHUNKED.replace(HOST, HOST + b"connection: close\r\n")
        sock.sendall(head + chunk + many + b"0\r\nx: y\r\n\r\n")
        assert status(read(sock)) == 200


def test_a_body_may_hold_what_a_head_may_not(served: Served) -> None:
    body = b'{"name":\n "s",\n\n\t"description": "transfer-encoding: chunked"}'
    head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with connected(served) as sock:
        sock.sendall(head + body)
        assert status(read(sock)) == 200
