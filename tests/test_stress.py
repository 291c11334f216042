"""Many at once on one store: nobody reads a torn text, nobody hangs, nothing grows.

`python -m tests.test_stress ROLE SEED SECONDS FOLDER …` is one worker; it prints what it did.
"""

import errno
import faulthandler
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.mount import ROOT, Api, Daemon, opened, refused, until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NOTES = 200
REPLACED = range(100)  # saved by rename
IN_PLACE = (range(100, 150), range(150, 200))  # rewritten in place through the first, second task
LARGEST_BYTES = 100_000
SLOWEST_S = 10.0  # for one operation; a request may take 30 s before the daemon gives up
HUNG_S = 5.0  # in state D without running in between
ANON_GROWTH_KB = 24 * 1024  # of the daemon's own memory in the second half of a run
START_S = 30.0  # for all workers to be running

READ = os.O_RDONLY


# ------------------------------------------------------------------------------ texts


def make_text(chance: random.Random) -> bytes:
    """Return a text that says how long it is and what its checksum is."""
    size = int(10 * (LARGEST_BYTES / 10) ** chance.random())
    words = "".join(chance.choices("abcdefgh \n", k=97)).encode()
    body = (f"{chance.random()} ".encode() + words * (size // 97 + 1))[:size]
    return f"{len(body):06d} {sha256(body).hexdigest()}\n".encode() + body


def is_whole(text: bytes) -> bool:
    """Return whether *text* is one that make_text made, whole and alone."""
    head, _, body = text.partition(b"\n")
    return head == f"{len(body):06d} {sha256(body).hexdigest()}".encode()


def name_of(number: int) -> str:
    return f"{number % 10}/note-{number}.md"


def make_notes(api: Api, chance: random.Random) -> dict[str, str]:
    """Make all notes through the API and return their ids by path."""
    ids: dict[str, str] = {}
    for number in range(NOTES):
        body = {"path": f"/{name_of(number)}", "content": make_text(chance).decode()}
        made = api.request("POST", "/memories", json=body).raise_for_status().json()
        ids[body["path"]] = made["id"]
    return ids


# ------------------------------------------------------------------------------ workers


class Worker:
    """Does one thing again and again until the time is over; counts what happened."""

    def __init__(self, seed: int, folder: Path, strict: range | None = None) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.torn_allowed = strict  # rewritten in place through this very mount: one inode
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.slowest = 0.0

    def run(self, step: Callable[[], None], seconds: float) -> None:
        end = time.monotonic() + seconds
        while (started := time.monotonic()) < end:
            step()
            self.slowest = max(self.slowest, time.monotonic() - started)

    def report(self) -> None:
        said = {"counts": self.counts, "problems": self.problems[:20], "slowest": self.slowest}
        print(json.dumps(said))

    # ---- reading

    def read(self) -> None:
        number = self.chance.randrange(NOTES)
        path = self.folder / name_of(number)
        torn_allowed = self.torn_allowed is not None and number in self.torn_allowed
        how = self.chance.choice((self.at_once, self.in_pieces, self.from_daemon, self.by_map))
        if torn_allowed and how == self.by_map:  # SIGBUS when a file is cut, as anywhere
            how = self.at_once
        try:
            with opened(path, READ) as fd:
                text, size = how(fd), os.fstat(fd).st_size
        except OSError as error:
            self.counts[f"read {errno.errorcode[error.errno or 0]}"] += 1
            self.problems.append(f"{how.__name__} {path}: {error!r}")
            return
        self.counts["reads"] += 1
        if torn_allowed:
            return
        if not is_whole(text):
            self.problems.append(f"torn: {how.__name__} {path}: {len(text)} {text[:80]!r}")
        elif size != len(text):
            self.problems.append(f"{path} has size {size} but {len(text)} bytes")

    def at_once(self, fd: int) -> bytes:
        return os.read(fd, 2 * LARGEST_BYTES)

    def in_pieces(self, fd: int) -> bytes:
        parts: list[bytes] = []
        while part := os.read(fd, 4_099):
            parts.append(part)
            if self.chance.random() < 0.1:
                time.sleep(0.002)
        return b"".join(parts)

    def by_map(self, fd: int) -> bytes:
        size = os.fstat(fd).st_size
        if size == 0:
            return b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as memory:
            time.sleep(self.chance.random() * 0.01)
            return memory[:]

    def from_daemon(self, fd: int) -> bytes:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, 2 * LARGEST_BYTES, 0)

    # ---- writing

    def write(self, numbers: range, save: Callable[[Path, bytes], None]) -> None:
        path = self.folder / name_of(self.chance.choice(numbers))
        try:
            save(path, make_text(self.chance))
        except OSError as error:
            if error.errno != errno.ESTALE:
                self.problems.append(f"{save.__name__} {path}: {error!r}")
            self.counts[f"{save.__name__} {errno.errorcode[error.errno or 0]}"] += 1
            with suppress(OSError), opened(path, READ):
                pass  # as one is told to: read it again, then write
        else:
            self.counts["saves"] += 1

    def replace(self, path: Path, text: bytes) -> None:
        temporary = path.with_name(f".tmp-{os.getpid()}")
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            os.write(fd, text)
        temporary.replace(path)

    def in_place(self, path: Path, text: bytes) -> None:
        with opened(path, os.O_WRONLY | os.O_TRUNC) as fd:
            half = len(text) // 2
            for part in (text[:half], text[half:]):
                os.write(fd, part)

    def put(self, client: httpx.Client, store_id: str, ids: dict[str, str]) -> None:
        path, note = self.chance.choice(list(ids.items()))
        url = f"/v1/memory_stores/{store_id}/memories/{note}"
        answer = client.post(url, json={"content": make_text(self.chance).decode()})
        self.counts["puts"] += 1
        if answer.status_code != 200:
            self.problems.append(f"put {path}: {answer.status_code} {answer.text}")

    # ---- names

    def churn(self) -> None:
        """Make, move and remove what others make, move and remove, all in one folder."""
        names = [self.folder / "churn" / f"{n}" for n in range(6)]
        path, other = self.chance.choice(names), self.chance.choice(names)
        steps: dict[str, Callable[[], object]] = {
            "mkdir": path.mkdir,
            "rmdir": path.rmdir,
            "create": lambda: path.write_bytes(make_text(self.chance)[:200]),
            "within": lambda: (path / "below.md").write_bytes(b"below"),
            "unlink": path.unlink,
            "clear": (path / "below.md").unlink,
            "rename": lambda: path.rename(other),
            "stat": path.stat,
            "list": lambda: [entry.stat() for entry in os.scandir(self.folder / "churn")],
        }
        step = self.chance.choice(list(steps))
        try:
            steps[step]()
        except OSError as error:
            code = errno.errorcode[error.errno or 0]
            if code not in {
                "ENOENT", "EEXIST", "ENOTEMPTY", "ENOTDIR", "EISDIR", "ESTALE", "EINVAL",
            }:  # fmt: skip
                self.problems.append(f"{step} {path}: {error!r}")
            self.counts[f"{step} {code}"] += 1
        else:
            self.counts["names"] += 1


def work(role: str, seed: str, seconds: str, folder: str, *more: str) -> None:
    worker = Worker(int(seed), Path(folder))
    print("ready", flush=True)
    sys.stdin.readline()  # all start together
    if role == "read":
        worker.torn_allowed = IN_PLACE[int(more[0])]
        worker.run(worker.read, float(seconds))
    elif role == "replace":
        worker.run(lambda: worker.write(REPLACED, worker.replace), float(seconds))
    elif role == "in_place":
        mine = IN_PLACE[int(more[0])]
        worker.run(lambda: worker.write(mine, worker.in_place), float(seconds))
    elif role == "churn":
        worker.run(worker.churn, float(seconds))
    elif role == "put":
        store_id, socket, ids = more[0], more[1], json.loads(more[2])
        transport = httpx.HTTPTransport(uds=socket)
        with httpx.Client(transport=transport, base_url="http://memfs", timeout=30) as client:
            worker.run(lambda: worker.put(client, store_id, ids), float(seconds))
    worker.report()


# ------------------------------------------------------------------------------ watching


def stuck_threads(pids: list[int], seen: dict[str, tuple[str, float]]) -> list[str]:
    """Return the threads that have been in state D for long without ever running.

    seen: what the last call saw; a short D is how the kernel waits for any answer of ours.
    """
    stuck: list[str] = []
    now = time.monotonic()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):
                status = (task / "status").read_text()
                lines = [line for line in status.splitlines() if "ctxt_switches" in line]
                if "\nState:\tD" not in status:
                    seen.pop(str(task), None)
                    continue
                state, since = seen.get(str(task), ("", now))
                if state != str(lines):
                    seen[str(task)] = (str(lines), now)
                elif now - since > HUNG_S:
                    stack = (task / "stack").read_text()
                    stuck.append(f"{task} {(task / 'comm').read_text()}{stack}")
    return stuck


def anon_kb(pid: int) -> int:
    """Return the daemon's own memory; the database that is mapped is not."""
    return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])


class Run:
    """Workers at work, and what their processes and the daemon's looked like meanwhile."""

    def __init__(self, daemon: Daemon, seconds: float) -> None:
        self.daemon, self.seconds = daemon, seconds
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0
        self.anon: list[int] = []
        self.open_files: list[int] = []
        self._workers: list[subprocess.Popen[str]] = []

    def add(self, role: str, folder: Path, *more: str) -> None:
        seed = str(len(self._workers) + 1)
        command = [sys.executable, "-m", "tests.test_stress", role, seed, str(self.seconds)]
        worker = subprocess.Popen(
            [*command, str(folder), *more],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._workers.append(worker)

    def go(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run all to their end. Raises AssertionError with what any of them found wrong."""
        with ExitStack() as stack:
            for worker in self._workers:
                stack.enter_context(worker)
            stack.callback(lambda: [worker.kill() for worker in self._workers])
            for worker in self._workers:
                assert worker.stdout
                assert worker.stdout.readline() == "ready\n"
            for worker in self._workers:
                assert worker.stdin
                worker.stdin.write("go\n")
                worker.stdin.flush()
            try:
                self._watch(meanwhile)
            except BaseException:
                # whoever hangs in the kernel is freed by ending the connection
                subprocess.run(["umount", "-f", self.daemon.config.mount_dir], check=False)
                raise
            problems = self._listen()
        assert not problems, "\n".join(problems)
        assert self.slowest < SLOWEST_S

    def _watch(self, meanwhile: Callable[[], None]) -> None:
        seen: dict[str, tuple[str, float]] = {}
        pids = [self.daemon.pid, *(worker.pid for worker in self._workers)]
        deadline = time.monotonic() + self.seconds + SLOWEST_S
        while any(worker.poll() is None for worker in self._workers):
            assert time.monotonic() < deadline, "a worker does not come to its end"
            stuck = stuck_threads(pids, seen)
            assert not stuck, "\n".join(stuck)
            meanwhile()
            self.anon.append(anon_kb(self.daemon.pid))
            self.open_files.append(len(os.listdir(f"/proc/{self.daemon.pid}/fd")))
            time.sleep(0.2)

    def _listen(self) -> list[str]:
        problems: list[str] = []
        for worker in self._workers:
            assert worker.stdout
            assert worker.wait() == 0, "a worker broke"
            said = json.loads(worker.stdout.read())
            self.counts.update(said["counts"])
            self.slowest = max(self.slowest, said["slowest"])
            problems += said["problems"]
        return problems

    def check_growth(self) -> None:
        """The second half of the run took neither memory nor descriptors."""
        half = len(self.anon) // 2
        grown = max(self.anon[-half // 2 :]) - max(self.anon[half : half + half // 2 + 1])
        assert grown < ANON_GROWTH_KB, f"{grown} KiB more in the last quarter"
        early, late = max(self.open_files[: half + 1]), max(self.open_files[half:])
        assert late <= early + 2, f"{early} open files became {late}"


def open_files(client: httpx.Client) -> int:
    return client.get("/v1/status").raise_for_status().json()["open_files"]


@contextmanager
def all_closed(client: httpx.Client) -> Iterator[None]:
    """After the block the daemon has no more files open than before."""
    before = open_files(client)
    yield
    until(lambda: open_files(client) <= before, "the daemon's files are closed")


# ------------------------------------------------------------------------------ tests


@pytest.mark.parametrize("seconds", [20.0, pytest.param(120.0, marks=pytest.mark.slow)])
def test_readers_writers_and_the_api_on_the_same_notes(
    S: Path, T: Path, api: Api, daemon: Daemon, client: httpx.Client, seconds: float
):
    faulthandler.cancel_dump_traceback_later()  # two minutes are meant
    ids = make_notes(api, random.Random(1))
    daemon.expected = ["a close could not be committed"]
    run = Run(daemon, seconds)
    for reader in range(8):
        run.add("read", (S, T)[reader % 2], str(reader % 2))
    for writer, mount in enumerate((S, T)):
        run.add("replace", mount)
        run.add("in_place", mount, str(writer))
    run.add("put", S, api.store_id, str(daemon.config.socket_path), json.dumps(ids))
    with all_closed(client):
        run.go()
    print(run.counts, f"slowest {run.slowest:.2f} s, {run.anon[-1]} KiB, {run.open_files[-1]} fds")
    assert run.counts["reads"] > 50 * seconds
    assert run.counts["saves"] > 5 * seconds
    assert run.counts["puts"] > seconds
    run.check_growth()
    kept = len(refused(S))
    assert kept <= run.counts["in_place ESTALE"], "more was refused than writers were told"
    for path in ids:
        assert is_whole((S / path[1:]).read_bytes())


@pytest.mark.parametrize("seconds", [6.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_folders_that_two_tasks_turn_over_never_deadlock(
    S: Path, T: Path, daemon: Daemon, client: httpx.Client, seconds: float
):
    """A rename holds the kernel's lock of a folder that an invalidation needs."""
    (S / "churn").mkdir()
    until((T / "churn").is_dir, "the folder is seen")
    daemon.expected = ["a close could not be committed"]  # a folder came where a file was made
    run = Run(daemon, seconds)
    for mount in (S, T) * 4:
        run.add("churn", mount)
    with all_closed(client):
        run.go()
    print(run.counts, f"slowest {run.slowest:.2f} s")
    assert run.counts["names"] > 20 * seconds


@pytest.mark.parametrize("puts", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_a_held_map_keeps_its_text_while_the_api_rewrites_the_note(
    S: Path, T: Path, api: Api, daemon: Daemon, puts: int
):
    chance = random.Random(2)

    def text() -> str:
        body = "".join(chance.choices("abcdefgh \n", k=90_000)).encode()
        return f"{len(body):06d} {sha256(body).hexdigest()}\n{body.decode()}"

    api.put("/n.md", text())
    problems: list[str] = []
    over = threading.Event()
    seen: dict[str, tuple[str, float]] = {}

    def hold(path: Path) -> None:
        while not over.is_set():
            with (
                opened(path, READ) as fd,
                mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory,
            ):
                first = memory[:]
                for _ in range(5):
                    time.sleep(0.01)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    if memory[:] != first or not is_whole(first):
                        problems.append("a mapped text changed or is torn")

    holders = [threading.Thread(target=hold, args=(path / "n.md",)) for path in (S, T, S, T)]
    for holder in holders:
        holder.start()
    try:
        for _ in range(puts):
            new = text()
            api.put("/n.md", new)
            assert (S / "n.md").read_text() == (T / "n.md").read_text() == new
            assert not stuck_threads([daemon.pid, os.getpid()], seen)
    finally:
        over.set()
        for holder in holders:
            holder.join()
    assert not problems


def test_reads_survive_the_kernels_dropping_of_caches(
    S: Path, T: Path, api: Api, daemon: Daemon, client: httpx.Client
):
    chance = random.Random(3)
    make_notes(api, chance)
    run = Run(daemon, 4.0)
    for number, mount in enumerate((S, T, S, T)):
        run.add("read", mount, str(number % 2))
        run.add("replace", mount)
    drop = Path("/proc/sys/vm/drop_caches")
    with all_closed(client):
        run.go(lambda: drop.write_text(chance.choice("23")) and None)
    print(run.counts)
    assert run.counts["reads"] > 100


def test_100_closes_at_once_all_commit(S: Path, T: Path, api: Api, client: httpx.Client):
    barrier = threading.Barrier(100)
    failed: list[str] = []

    def save(number: int) -> None:
        path = (S, T)[number % 2] / f"{number}.md"
        try:
            with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                os.write(fd, f"text {number}\n".encode())
                barrier.wait(10)
        except (OSError, threading.BrokenBarrierError) as error:
            failed.append(f"{number}: {error!r}")

    with all_closed(client):
        threads = [threading.Thread(target=save, args=(number,)) for number in range(100)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started < SLOWEST_S
    assert not failed
    assert api.tree() == {
        f"/{n}.md": sha256(f"text {n}\n".encode()).hexdigest() for n in range(100)
    }


WRITE_ON = """
import os, random, sys
print("ready", flush=True)
number = 0
while True:
    number += 1
    temporary = sys.argv[1] + ".tmp"
    with open(temporary, "w") as file:
        for part in range(20):
            file.write(f"{number} {part}\\n" * 300)
            file.flush()
        file.write(f"end {number}\\n")
    os.replace(temporary, sys.argv[1])
    with open(sys.argv[2], "a") as file:
        file.write("line\\n" * 1000)
        file.flush()
"""


@contextmanager
def writing(*paths: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_ON, *map(str, paths)], stdout=subprocess.PIPE
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            until(paths[0].exists, "it has written")
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def check_saved(path: Path) -> None:
    """The note is one whole text of WRITE_ON."""
    lines = path.read_text().splitlines()
    number = lines[0].split()[0]
    assert len(lines) == 20 * 300 + 1
    assert lines[-1] == f"end {number}"


def test_a_stopped_client_stops_nobody_else(S: Path, T: Path, api: Api, client: httpx.Client):
    chance = random.Random(4)
    with all_closed(client), writing(S / "n.md", S / "log.md") as process:
        for number in range(10):
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            for mount in (S, T):
                check_saved(mount / "n.md")
                os.listdir(mount)
                (mount / f"other-{number}.md").write_text(f"{mount}")
                (mount / f"other-{number}.md").unlink()
            api.put("/third.md", f"{number}")
            assert (S / "third.md").read_text() == (T / "third.md").read_text() == f"{number}"
            assert time.monotonic() - started < SLOWEST_S / 2
            process.send_signal(signal.SIGCONT)


def test_a_client_killed_in_the_middle_of_writes_leaves_whole_notes_and_no_open_file(
    S: Path, T: Path, api: Api, client: httpx.Client
):
    chance = random.Random(5)
    with all_closed(client):
        for number in range(15):
            log = S / f"log{number}.md"
            with writing(S / "n.md", log) as process:
                time.sleep(chance.uniform(0, 0.1))
                process.kill()
                process.wait(SLOWEST_S)
            for mount in (S, T):
                check_saved(mount / "n.md")
            (S / "n.md.tmp").unlink(missing_ok=True)
    for version in api.versions("/n.md"):
        assert str(version["content"]).count("\n") == 20 * 300 + 1, "half a text became a version"
    assert set(os.listdir(S)) == set(os.listdir(T))


if __name__ == "__main__":
    work(*sys.argv[1:])
