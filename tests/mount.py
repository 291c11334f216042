"""A real daemon in a child process, and a fresh store attached to two tasks for each test.

A test module says `pytest_plugins = ("tests.mount",)` and `pytestmark = pytest.mark.fuse`, and
takes: daemon (one a module), api (the test's store over HTTP), S and T (the store as two tasks
see it), R (read-only, a third task), X (an ordinary folder). After each test the mount and the
API must show the same notes, and the daemon's log must hold nothing that the test did not expect.

PYTEST_DONT_REWRITE (it is imported by name before it is a plugin)
"""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

import httpx
import pytest

from daemon.config import Config
from daemon.mount import memfs_mounts_below
from memfs.store.check import check
from memfs.store.env import Env

ROOT = Path(__file__).parents[1]
START_S, STOP_S = 30.0, 20.0
_numbers = count(1)

SERVE = """
import faulthandler, signal, sys
faulthandler.register(signal.SIGUSR1)  # what hangs says where, see Daemon.stop
from pathlib import Path
from daemon.config import Config
{patch}
from daemon.run import serve
serve(Config(Path(sys.argv[1])))
"""


def until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Return once *condition* is true; it has to come true by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


class Daemon:
    """`memfs serve` on a workspace, in a child process; its log goes to a file."""

    def __init__(self, workspace: Path, patch: str = "") -> None:
        """patch: Python that runs in the child before the daemon starts."""
        self.config = Config(workspace)
        self.workspace = self.config.workspace
        self.log_path = workspace.with_suffix(".log")
        self.expected: list[str] = []  # parts of messages that a test provokes
        self._patch = patch
        self._process: subprocess.Popen[bytes] | None = None
        self._read_to = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and return once it answers."""
        self.workspace.mkdir(exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(patch=self._patch), self.workspace],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, "the daemon answers", START_S)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.config.socket_path)) != 0:
                return False
        with self.client() as client:
            return client.get("/healthz").status_code == 200

    def stop(self) -> int:
        """End it as `kill` does and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            said = self.log_path.read_text()[-8000:]
            raise AssertionError(f"SIGTERM did not end it within {STOP_S} s:\n{said}") from None
        self._process = None
        return code

    def kill9(self) -> None:
        """End it as a crash does; the mounts stay, dead."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)
        self._process = None

    def restart(self) -> None:
        """Stop in order and start again."""
        assert self.stop() == 0
        assert self.mounts() == []
        self.start()

    def client(self) -> httpx.Client:
        """Return a client that keeps no connection open between requests."""
        none_kept = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.HTTPTransport(uds=str(self.config.socket_path), limits=none_kept)
        return httpx.Client(transport=transport, base_url="http://memfs", timeout=30)

    def mounts(self) -> list[str]:
        """Return the memfs mounts below the workspace, dead or alive."""
        return [str(mount.path) for mount in memfs_mounts_below(self.workspace)]

    def log_lines(self) -> list[dict[str, object]]:
        """Return what was logged since the last call; what is not JSON is a line on its own."""
        with self.log_path.open(encoding="utf-8") as file:
            file.seek(self._read_to)
            text = file.read()
            self._read_to = file.tell()
        return [_log_line(line) for line in text.splitlines()]

    def check_log(self) -> None:
        """Check that nothing unexpected was logged since the last call."""
        bad = [line for line in self.log_lines() if line["level"] not in ("debug", "info")]
        unexpected = [line for line in bad if not any(part in str(line) for part in self.expected)]
        assert not unexpected, "\n".join(map(str, unexpected))

    def clean_up(self) -> None:
        """End the process and unmount, whatever state they are in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None
        for path in self.mounts():
            subprocess.run(["umount", "-fl", path], check=False, capture_output=True)


def _log_line(line: str) -> dict[str, object]:
    with suppress(ValueError):
        return json.loads(line)
    return {"level": "not JSON", "message": line}


@contextmanager
def served(workspace: Path, patch: str = "") -> Iterator[Daemon]:
    """A daemon that ends in order, with no mount, no complaint and sound data left."""
    daemon = Daemon(workspace, patch)
    try:
        daemon.start()
        yield daemon
        if daemon._process is not None:
            assert daemon.stop() == 0
        daemon.check_log()
        assert daemon.mounts() == []
        with closing(Env(daemon.config.data_dir, daemon.config.map_size_bytes)) as env:
            assert check(env) == []
    finally:
        daemon.clean_up()


class Api:
    """One store over HTTP, by path."""

    def __init__(self, client: httpx.Client, store_id: str) -> None:
        self.client = client
        self.store_id = store_id
        self._url = f"/v1/memory_stores/{store_id}"

    def request(self, method: str, url: str, **kwargs: object) -> httpx.Response:
        return self.client.request(method, f"{self._url}{url}", **kwargs)  # type: ignore[arg-type]

    def memory(self, path: str) -> dict[str, object] | None:
        """Return the note at *path*, without its text."""
        answer = self.request("GET", "/memories", params={"path": path})
        rows = answer.raise_for_status().json()["data"]
        return rows[0] if rows else None

    def note_id(self, path: str) -> str:
        found = self.memory(path)
        assert found is not None, f"no note at {path}"
        return str(found["id"])

    def get(self, path: str) -> str | None:
        """Return the text at *path*, None if there is no note."""
        found = self.memory(path)
        if found is None:
            return None
        return self.request("GET", f"/memories/{found['id']}").raise_for_status().json()["content"]

    def put(self, path: str, text: str) -> None:
        """Create or update."""
        found = self.memory(path)
        if found is None:
            body = {"path": path, "content": text}
            self.request("POST", "/memories", json=body).raise_for_status()
        else:
            url = f"/memories/{found['id']}"
            self.request("POST", url, json={"content": text}).raise_for_status()

    def mv(self, path: str, new: str) -> None:
        url = f"/memories/{self.note_id(path)}"
        self.request("POST", url, json={"path": new}).raise_for_status()

    def rm(self, path: str) -> None:
        self.request("DELETE", f"/memories/{self.note_id(path)}").raise_for_status()

    def ls(self) -> list[str]:
        """Return the paths of all notes."""
        return [str(row["path"]) for row in self._pages("/memories", {"limit": 1000})]

    def tree(self) -> dict[str, str]:
        """Return each note's sha256 by path."""
        rows = self._pages("/memories", {"limit": 1000})
        return {str(row["path"]): str(row["content_sha256"]) for row in rows}

    def versions(self, path_or_id: str) -> list[dict[str, object]]:
        """Return a note's versions with their texts, oldest first."""
        note = path_or_id if path_or_id.startswith("mem_") else self.note_id(path_or_id)
        params = {"memory_id": note, "view": "full"}
        return self._pages("/memory_versions", params)[::-1]

    def history(self, path_or_id: str) -> list[tuple[str, str | None]]:
        """Return operation and text of each version, oldest first."""
        return [(str(v["operation"]), v["content"]) for v in self.versions(path_or_id)]  # type: ignore[misc]

    def all_versions(self) -> list[dict[str, object]]:
        """Return all of the store's versions, oldest first."""
        return self._pages("/memory_versions", {"limit": 100})[::-1]

    def _pages(self, url: str, params: dict[str, object]) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        page: str | None = None
        while True:
            asked = params if page is None else {**params, "page": page}
            answer = self.request("GET", url, params=asked).raise_for_status().json()
            rows += answer["data"]
            page = answer["next_page"]
            if page is None:
                return rows


def make_store(client: httpx.Client, name: str = "Shared") -> Api:
    made = client.post("/v1/memory_stores", json={"name": name}).raise_for_status().json()
    return Api(client, made["id"])


def make_task(
    client: httpx.Client,
    api: Api,
    worker: str,
    *,
    owner: dict[str, int] | None = None,
    **how: object,
) -> tuple[str, Path]:
    """Attach a store to a new task; return the task's id and the folder."""
    body = {
        "id": f"t{next(_numbers)}",
        "worker": worker,
        "resources": [{"type": "memory_store", "memory_store_id": api.store_id, **how}],
        "owner": owner,
    }
    made = client.post("/v1/tasks", json=body).raise_for_status().json()
    return made["id"], Path(made["resources"][1]["mount_path"])


def end_task(client: httpx.Client, task_id: str) -> None:
    client.post(f"/v1/tasks/{task_id}/end").raise_for_status()


# ------------------------------------------------------------------------------------ fixtures


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest):
    """The module's daemon; a module's PATCH runs in it before it starts."""
    workspace = tmp_path_factory.mktemp("mount") / "ws"
    with served(workspace, getattr(request.module, "PATCH", "")) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    daemon.expected = []
    with daemon.client() as client:
        yield client
        daemon.check_log()


@pytest.fixture
def api(client: httpx.Client) -> Api:
    """A fresh store."""
    return make_store(client)


@pytest.fixture
def task(client: httpx.Client, api: Api) -> Iterator[Callable[..., Path]]:
    """Makes tasks with the store; they end with the test."""
    made: list[str] = []

    def make(worker: str = "wren", **how: object) -> Path:
        task_id, path = make_task(client, api, worker, **how)  # type: ignore[arg-type]
        made.append(task_id)
        return path

    yield make
    for task_id in made:
        end_task(client, task_id)


@pytest.fixture
def S(task: Callable[..., Path], api: Api) -> Iterator[Path]:
    """The store as a first task sees it."""
    path = task("wren")
    yield path
    _check_agree(path, api)


@pytest.fixture
def T(task: Callable[..., Path], api: Api) -> Iterator[Path]:
    """The same store as a second task, of another worker, sees it."""
    path = task("robin")
    yield path
    _check_agree(path, api)


def _check_agree(path: Path, api: Api) -> None:
    """Check that a mount shows what the API does, once a close that commits in release has."""
    if os.path.isdir(path):  # the task may have been ended
        until(lambda: notes_on(path) == api.tree(), "the mount and the API agree")


@pytest.fixture
def R(task: Callable[..., Path]) -> Path:
    """The same store, attached read-only to a third task."""
    return task("owl", access="read_only")


@pytest.fixture
def X(tmp_path: Path) -> Path:
    """A folder on an ordinary disk."""
    path = tmp_path / "x"
    path.mkdir()
    return path


def task_of(path: Path) -> str:
    """Return the id of the task whose folder *path* is."""
    return path.parts[-3]


# ------------------------------------------------------------------------------------ asking


def notes_on(root: Path) -> dict[str, str]:
    """Return the sha256 of each file below a mounted folder, without temporary ones."""
    found: dict[str, str] = {}
    for folder, _, names in os.walk(root, onerror=_raise):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):  # ENODATA: a temporary file is no note
                os.getxattr(path, "user.memfs.id")
                digest = sha256(path.read_bytes()).hexdigest()
                found[f"/{path.relative_to(root)}"] = digest
    return found


def _raise(error: OSError) -> None:
    raise error


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def note_id(path: Path) -> str:
    return os.getxattr(path, "user.memfs.id").decode()


@contextmanager
def errno_is(*codes: int) -> Iterator[None]:
    """The block fails with one of these errnos."""
    said: int | None = None
    try:
        yield
    except OSError as error:
        said = error.errno
    wanted = [errno.errorcode[code] for code in codes]
    assert said in codes, f"{said and errno.errorcode[said]}, not {wanted}"


@contextmanager
def opened(path: Path | str, flags: int, mode: int = 0o644) -> Iterator[int]:
    """An open descriptor; what its close says is an error of the block."""
    fd = os.open(path, flags, mode)
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    os.close(fd)


def sh(script: str, cwd: Path | None = None, **env: object) -> subprocess.CompletedProcess[str]:
    """Run a bash script with $NAMEs and return what it said."""
    return subprocess.run(
        ["bash", "-u", "-c", script],
        env=os.environ | {"LC_ALL": "C.UTF-8"} | {name: str(value) for name, value in env.items()},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def sh_ok(script: str, cwd: Path | None = None, **env: object) -> str:
    """Run a bash script that must succeed without a word on stderr; return its output."""
    done = sh(f"set -e\n{script}", cwd, **env)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def python(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a Python script in another process."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def child(script: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A Python child that has said "ready"; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def refused(root: Path) -> list[Path]:
    """Return the texts in .memfs/refused, oldest first, without the reasons beside them."""
    folder = root / ".memfs" / "refused"
    return [folder / name for name in names(folder) if not re.search(r"\.why\.json$", name)]
