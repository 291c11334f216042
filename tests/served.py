"""The HTTP door on a workspace of its own, in a thread of the test's process.

`pytest_plugins = ("tests.served",)` in a test module brings `served`, one door for the module, and
`store`, a new store in it.

PYTEST_DONT_REWRITE (it is imported by name before it is a plugin)
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from daemon.config import Config, check_socket_folder
from daemon.http.app import make_app
from daemon.http.cursor import Cursors, load_key
from daemon.http.door import Door
from daemon.http.serve import serve_http
from memfs.engine.service import Service
from memfs.store.env import Env
from memfs.types import Actor, Caller, Seq

MAP_SIZE_BYTES = 2**26


class Served:
    """A service and its HTTP door on a workspace, in a thread of this process."""

    def __init__(self, workspace: Path, **options: Any) -> None:
        """options: of serve_http."""
        self.config = Config(workspace, MAP_SIZE_BYTES)
        self._options = options
        self.addresses: list[tuple[str, int]] = []
        self.settled: list[Seq] = []
        self.status: Callable[[], dict[str, object]] = lambda: {"mounts": [], "problems": []}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), name="served")
        self._thread.start()
        assert self._ready.wait(20)
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(
                uds=str(self.config.socket_path), limits=httpx.Limits(keepalive_expiry=None)
            ),
            base_url="http://memfs",
            timeout=20,
        )
        self.http.get("/healthz")  # the connection that all tests use

    def stop(self) -> None:
        """Ask the daemon to stop; `close` waits."""
        with suppress(trio.RunFinishedError):  # it has stopped before
            self._token.run_sync_soon(self._shutdown.set)

    def close(self) -> None:
        self.http.close()
        self.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        env = Env(self.config.data_dir, MAP_SIZE_BYTES)
        self.service = Service(env)
        self._token, self._shutdown = trio.lowlevel.current_trio_token(), trio.Event()
        check_socket_folder(self.config, make=True)
        door = Door(
            service=self.service,
            cursors=Cursors(load_key(self.config.data_dir)),
            caller=Caller(Actor("user_actor", "user_7")),
            settle=self._settle,
            mount_path=lambda task, attached: f"/mnt/{task.id}/{attached.name}",
            status=self._status,
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.service.run)
                serve = partial(serve_http, shutdown=self._shutdown, **self._options)
                self.addresses = await nursery.start(
                    serve, make_app(door), self.config.socket_path, door.caller
                )
                self._ready.set()
                await self._shutdown.wait()
                self.service.close()
        finally:
            env.close()

    @contextmanager
    def other_clients(self) -> Iterator[None]:
        """Clients in this block close their connections; afterwards our side has closed, too."""
        before = len(os.listdir("/proc/self/fd"))
        yield
        end = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < end:
            time.sleep(0.001)

    async def _status(self) -> dict[str, object]:
        return self.status()

    async def _settle(self, seq: Seq) -> None:
        self.settled.append(seq)

    def commit(self, rule: Callable[..., Any], caller: Caller, *args: object) -> Any:
        """Run a rule as another door would."""
        return trio.from_thread.run(
            partial(self.service.commit, rule, caller, *args), trio_token=self._token
        )

    def call(
        self, method: str, route: str, body: Any = None, status: int = 200, **query: Any
    ) -> Any:
        """Return an answer that must have *status*; an error must be a proper envelope."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.request(
            method, f"/v1/{route}", content=None if body is None else raw, params=query
        )
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["request-id"].startswith("req_")
        found = answer.json()
        if status >= 400:
            assert set(found) == {"type", "error", "request_id"}
            assert found["type"] == "error"
            assert found["request_id"] == answer.headers["request-id"]
            assert (answer.headers.get("x-should-retry") == "false") == (status == 409)
            return found["error"]
        return found

    def store(self, name: str = "notes") -> "AStore":
        return AStore(self, self.call("POST", "memory_stores", {"name": name})["id"])


class AStore:
    """One store's routes."""

    def __init__(self, served: Served, store_id: str) -> None:
        self.id = store_id
        self.call = partial(self._call, served)

    def _call(
        self, served: Served, method: str, route: str, body: Any = None, status: int = 200, **q: Any
    ) -> Any:
        return served.call(method, f"memory_stores/{self.id}{route}", body, status, **q)

    def write(self, path: str, content: str = "text", **rest: Any) -> Any:
        return self.call("POST", "/memories", {"path": path, "content": content}, **rest)

    def versions(self, **query: Any) -> list[Any]:
        return self.call("GET", "/memory_versions", limit=100, **query)["data"]


@contextmanager
def serving(workspace: Path, **options: Any) -> Iterator[Served]:
    served = Served(workspace, **options)
    try:
        yield served
    finally:
        served.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws")) as one:
        yield one


@pytest.fixture
def store(served: Served) -> AStore:
    return served.store()
