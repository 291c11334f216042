"""The official anthropic SDK, unmodified and strict, sync and async, against a real daemon.

A test module says `pytest_plugins = ("tests.mount", "tests.sdk")`, starts its daemon with LISTENS
as its patch, and takes `sdk`: one client after the other, over the socket and over TCP with a
person's key. Tests are written once: `sdk.do(call)` is a call's result, `sdk.every(listing)` all of
its rows.

PYTEST_DONT_REWRITE (it is imported by name before it is a plugin)
"""

import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.mount import Daemon

LISTENS = """
from functools import partial
Config = partial(Config, listen=("127.0.0.1", 0))
"""
CLIENTS = [(kind, door) for kind in ("sync", "async") for door in ("unix", "tcp")]


class Sdk:
    """One client of the SDK and how its calls are waited for."""

    def __init__(self, client: Any, portal: BlockingPortal | None = None) -> None:
        self.client = client
        self.beta = client.beta
        self._portal = portal

    def do(self, call: Any) -> Any:
        """Return the result of a call; of a listing, its first page."""
        return call if self._portal is None else self._portal.call(_wait, call)

    def every(self, listing: Any) -> list[Any]:
        """Return all rows of a listing, by the SDK's own paging."""
        return list(listing) if self._portal is None else self._portal.call(_collect, listing)


async def _wait(call: Awaitable[Any]) -> Any:
    return await call


async def _collect(listing: Any) -> list[Any]:
    return [row async for row in listing]


@contextmanager
def connected(kind: str, base_url: str, key: str, uds: str | None = None) -> Iterator[Sdk]:
    """A client with a key; uds: the unix socket it goes through."""
    common: dict[str, Any] = {
        "api_key": key,
        "base_url": base_url,
        "_strict_response_validation": True,
    }
    with ExitStack() as stack:
        if kind == "sync":
            http = httpx2.Client(transport=httpx2.HTTPTransport(uds=uds), timeout=30)
            yield Sdk(stack.enter_context(anthropic.Anthropic(http_client=http, **common)))
        else:
            portal = stack.enter_context(start_blocking_portal())
            http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=uds), timeout=30)
            client = anthropic.AsyncAnthropic(http_client=http, **common)
            stack.callback(portal.call, client.close)
            yield Sdk(client, portal)


def tcp_port(daemon: Daemon) -> int:
    """Return the port of a daemon that was started with LISTENS."""
    found = re.findall(r"listening on 127\.0\.0\.1 port (\d+)", daemon.log_path.read_text())
    return int(found[-1])


def make_key(client: httpx.Client, power: str = "person", **rest: object) -> dict[str, str]:
    """Make a key and return its id and secret."""
    body = {"power": power, **rest}
    return client.post("/v1/keys", json=body).raise_for_status().json()


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., Sdk]]:
    """Makes clients over TCP with a key; port: that of a proxy before the daemon."""
    with ExitStack() as stack:

        def make(key: str, kind: str = "sync", port: int | None = None) -> Sdk:
            url = f"http://127.0.0.1:{port or tcp_port(daemon)}"
            return stack.enter_context(connected(kind, url, key))

        yield make


@pytest.fixture(params=CLIENTS, ids="-".join)
def sdk(
    request: pytest.FixtureRequest,
    daemon: Daemon,
    client: httpx.Client,
    connect: Callable[..., Sdk],
) -> Iterator[Sdk]:
    kind, door = request.param
    if door == "tcp":
        yield connect(make_key(client)["secret"], kind)
    else:
        with connected(kind, "http://memfs", "unused", str(daemon.config.socket_path)) as one:
            yield one


class Cutter:
    """A proxy that can drop a connection after its request was answered, and before it is told."""

    def __init__(self, port: int) -> None:
        self.cuts = 0  # how many of the next answers get lost
        self.requests: list[str] = []  # the first line of each that came through
        self._to = port
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, name="cutter")]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            thread = threading.Thread(target=self._pass_on, args=(client,), name="cutter's")
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as daemon, suppress(OSError):
            while request := _message(client):
                self.requests.append(request.partition(b" HTTP")[0].decode())
                daemon.sendall(request)
                answer = _message(daemon)
                if self.cuts:
                    self.cuts -= 1
                    return
                client.sendall(answer)


def _message(sock: socket.socket) -> bytes:
    """Return one HTTP/1.1 message with its body, b"" at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    while len(body) < (int(length[1]) if length else 0):
        part = sock.recv(65_536)
        data, body = data + part, body + part
    return data


@pytest.fixture
def cutter(daemon: Daemon) -> Iterator[Cutter]:
    one = Cutter(tcp_port(daemon))
    yield one
    one.close()
