"""Random operations: a mounted store and a folder on ext4 agree after each (DESIGN 3)."""

import errno
import mmap
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest

from tests.fsx import ASCII, UNITS, Fsx
from tests.mount import Api, opened, refused

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NAMES = tuple(f"n{number}.md" for number in range(5))
API = "the API"
NAMES_S = 2.0  # how long another task may still see a name as it was


def heads_of(api: Api) -> Callable[[], dict[str, str]]:
    return lambda: {path[1:]: digest for path, digest in api.tree().items()}


# ------------------------------------------------------------------------------ one attachment


@pytest.mark.parametrize(
    ("characters", "seed"), [(ASCII, 1), (UNITS, 2)], ids=["ascii", "wide characters"]
)
def test_2500_random_operations_agree_with_a_plain_folder(
    S: Path, X: Path, api: Api, characters: tuple[str, ...], seed: int
):
    Fsx(S, X, seed, characters, heads_of(api)).run(2_500, settle_every=500)


@pytest.mark.slow
@pytest.mark.parametrize("characters", [ASCII, UNITS], ids=["ascii", "wide characters"])
@pytest.mark.parametrize("seed", [20261, 20262])
def test_25000_random_operations_agree_with_a_plain_folder(
    S: Path, X: Path, api: Api, characters: tuple[str, ...], seed: int
):
    """100,000 in all; one test must not take longer than the fault handler waits."""
    Fsx(S, X, seed, characters, heads_of(api)).run(25_000, settle_every=2_500)


def test_random_operations_agree_while_a_second_task_watches(S: Path, T: Path, X: Path, api: Api):
    """With another attachment there is invalidation and waiting for it."""
    Fsx(S, X, 3, ASCII, heads_of(api)).run(1_000, settle_every=250)
    assert not refused(S)


# ------------------------------------------------------------------------------ two attachments


@dataclass
class Note:
    """What the lost-update guard knows of a note."""

    author: object
    seen: dict[object, str] = field(default_factory=dict)  # digest that a task last opened


class Sessions:
    """Open, change, close: now through one task, now through another, now by the API.

    Every opening must see what the last close left, and the guard must refuse exactly when a task
    that knows a note would overwrite another's change.
    """

    def __init__(self, mounts: tuple[Path, Path], plain: Path, api: Api, seed: int) -> None:
        self.mounts, self.plain, self.api = mounts, plain, api
        self.random = random.Random(seed)
        self.notes: dict[str, Note] = {}
        self.stale = 0
        self.late_names = 0
        self.what = ""

    def run(self, sessions: int) -> None:
        kinds = (
            self.look, self.rewrite, self.rewrite, self.patch, self.patch, self.append,
            self.append, self.replace, self.rename, self.cut, self.cut_to_nothing, self.unlink,
            self.by_api,
        )  # fmt: skip
        for number in range(sessions):
            mount = self.random.choice(self.mounts)
            name = self.random.choice(NAMES)
            kind = self.random.choice(kinds)
            self.what = f"session {number}: {kind.__name__} {name} through {mount.parts[-3]}"
            self.appears(mount, name)
            kind(mount, name)
            self.agree(mount, name)
            other = self.mounts[mount == self.mounts[0]]
            self.appears(other, name)
            if self.random.random() < 0.5:
                self.agree(other, name)
        for name in NAMES:
            for mount in self.mounts:
                self.appears(mount, name)
                self.agree(mount, name)

    # ---- sessions

    def look(self, mount: Path, name: str) -> None:
        self.agree(mount, name)

    def rewrite(self, mount: Path, name: str) -> None:
        data = self.text()
        with self.guarded(mount, name) as allowed:
            (mount / name).write_bytes(data)
        if allowed():
            self.saved(mount, name, data)

    def replace(self, mount: Path, name: str) -> None:
        """As editors save: a temporary file over the note."""
        data = self.text()
        temporary = mount / f".tmp-{self.random.randrange(10**6)}"
        temporary.write_bytes(data)
        with self.guarded(mount, name) as allowed:
            temporary.replace(mount / name)
        if allowed():
            self.saved(mount, name, data)
        else:
            temporary.unlink()

    def patch(self, mount: Path, name: str) -> None:
        if name not in self.notes:
            return self.rewrite(mount, name)
        with opened(mount / name, os.O_RDWR) as fd, opened(self.plain / name, os.O_RDWR) as plain:
            self.opened(mount, name)
            for _ in range(self.random.randint(1, 4)):
                size = os.fstat(plain).st_size
                data, at = self.text(), self.random.randint(min(size, 1), size)
                if self.random.random() < 0.2:
                    for each in (fd, plain):
                        os.ftruncate(each, at)
                elif self.random.random() < 0.2 and size > len(data):
                    at = self.random.randint(0, size - len(data))
                    os.pwrite(plain, data, at)
                    with mmap.mmap(fd, size) as memory:
                        memory[at : at + len(data)] = data
                else:
                    for each in (fd, plain):
                        os.pwrite(each, data, at)
                if self.random.random() < 0.2:
                    os.fsync(fd)
                    self.opened(mount, name, wrote=True)
        return self.opened(mount, name, wrote=True)

    def append(self, mount: Path, name: str) -> None:
        if (self.plain / name).exists() and (self.plain / name).stat().st_size > 60_000:
            return self.cut_to_nothing(mount, name)
        data = self.text()
        with opened(mount / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
            if name in self.notes:
                self.opened(mount, name)
            for part in (data[:7], data[7:]):
                if part:
                    os.write(fd, part)
        old = (self.plain / name).read_bytes() if name in self.notes else b""
        return self.saved(mount, name, old + data)

    def rename(self, mount: Path, name: str) -> None:
        new = self.random.choice(NAMES)
        if name not in self.notes or new == name:
            return
        self.appears(mount, new)
        with self.guarded(mount, new) as allowed:
            (mount / name).rename(mount / new)
        if not allowed():
            return
        data = (self.plain / name).read_bytes()
        moved = self.notes.pop(name)
        (self.plain / name).unlink()
        if new in self.notes:
            self.saved(mount, new, data)
        else:
            self.notes[new] = moved
            moved.author = mount
            (self.plain / new).write_bytes(data)
        self.agree(mount, new)

    def unlink(self, mount: Path, name: str) -> None:
        if name in self.notes:
            (mount / name).unlink()
            del self.notes[name]
            (self.plain / name).unlink()

    def cut(self, mount: Path, name: str) -> None:
        if name in self.notes:
            size = max(1, (self.plain / name).stat().st_size // 2)
            os.truncate(mount / name, size)
            os.truncate(self.plain / name, size)
            self.opened(mount, name, wrote=True)

    def cut_to_nothing(self, mount: Path, name: str) -> None:
        if name in self.notes:
            with self.guarded(mount, name) as allowed:
                os.truncate(mount / name, 0)
            if allowed():
                self.saved(mount, name, b"")

    def by_api(self, _: Path, name: str) -> None:
        data = self.text()
        self.api.put(f"/{name}", data.decode())
        self.saved(API, name, data)

    # ---- what is known

    def guarded(self, mount: Path, name: str) -> "_Guarded":
        note = self.notes.get(name)
        refused = (
            note is not None
            and note.author != mount
            and note.seen.get(mount) not in (None, self.digest(name))
        )
        self.stale += refused
        return _Guarded(refused, self.what)

    def saved(self, author: object, name: str, data: bytes) -> None:
        """A text became, or already was, a note's head."""
        note = self.notes.get(name)
        if note is None:
            note = self.notes[name] = Note(author)
        elif (self.plain / name).read_bytes() != data:
            note.author = author
        (self.plain / name).write_bytes(data)
        if author != API:
            note.seen[author] = self.digest(name)

    def opened(self, mount: Path, name: str, *, wrote: bool = False) -> None:
        note, digest = self.notes[name], self.digest(name)
        if wrote and note.seen.get(mount) != digest:
            note.author = mount
        note.seen[mount] = digest

    def digest(self, name: str) -> str:
        return sha256((self.plain / name).read_bytes()).hexdigest()

    def text(self) -> bytes:
        size = self.random.choice((1, 20, 3_000, 20_000))
        return "".join(self.random.choices(ASCII, k=self.random.randint(1, size))).encode()

    def appears(self, mount: Path, name: str) -> None:
        """Wait until a task sees that a name came or went; texts have to be right at once."""
        deadline = time.monotonic() + NAMES_S
        while (mount / name).exists() != (name in self.notes):
            assert time.monotonic() < deadline, f"{self.what}: the name stays as it was"
            self.late_names += 1
            time.sleep(0.005)

    def agree(self, mount: Path, name: str) -> None:
        if name in self.notes:
            wanted = (self.plain / name).read_bytes()
            assert (mount / name).stat().st_size == len(wanted), self.what
            assert (mount / name).read_bytes() == wanted, self.what
            self.opened(mount, name)
        else:
            assert not (mount / name).exists(), self.what


class _Guarded:
    """The block fails with ESTALE, or it must not fail."""

    def __init__(self, refused: bool, what: str) -> None:
        self.refused, self.what = refused, what

    def __enter__(self) -> Callable[[], bool]:
        return lambda: not self.refused

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not self.refused:
            return False
        assert isinstance(error, OSError), f"{self.what}: the guard let it pass"
        assert error.errno == errno.ESTALE, f"{self.what}: {error}"
        return True


@pytest.mark.parametrize("sessions", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_each_opening_sees_the_other_tasks_last_close(
    S: Path, T: Path, X: Path, api: Api, sessions: int
):
    done = Sessions((S, T), X, api, sessions)
    done.run(sessions)
    assert done.stale > sessions / 100, "the guard was hardly tried"
    assert done.late_names <= sessions / 100, f"{done.late_names} names were seen late"
    assert not refused(S)


@pytest.mark.parametrize("writes", [600, pytest.param(6_000, marks=pytest.mark.slow)])
def test_long_open_appends_of_two_tasks_all_arrive_once_and_in_order(
    S: Path, T: Path, api: Api, writes: int
):
    chance = random.Random(writes)
    files = [mount / f"log{n}.md" for mount in (S, T) for n in range(1 + writes // 1_000)]
    wrote: dict[Path, list[str]] = {path: [] for path in files}

    def open_(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    with ExitStack() as stack:
        fds: dict[Path, int] = {}
        stack.callback(lambda: [os.close(fd) for fd in fds.values()])
        fds.update((path, open_(path)) for path in files)
        for number in range(writes):
            path = chance.choice(files)
            line = f"{path.parts[-4]} {number} {'x' * chance.randint(0, 60)}\n"
            assert os.write(fds[path], line.encode()) == len(line)
            wrote[path].append(line)
            if chance.random() < 0.3:
                os.fsync(fds[path])
            if chance.random() < 0.1:
                os.close(fds.pop(path))
                head = api.get(f"/{path.name}")
                assert head is not None
                assert own(path, head) == wrote[path], "a close left something out"
                fds[path] = open_(path)
            if chance.random() < 0.2:
                seen = os.pread(fds[path], 200_000, 0).decode()
                assert own(path, seen) == wrote[path], "an open file lost what was written"
    for path in files:
        head = api.get(f"/{path.name}")
        assert head == path.read_text()
        lines = head.splitlines(keepends=True)
        both = [wrote[mount / path.name] for mount in (S, T)]
        assert own(path, head) == wrote[path]
        assert len(lines) == sum(map(len, both)), "lines came twice or are torn"
    assert not refused(S)


def own(path: Path, text: str) -> list[str]:
    """Return the lines that the task of *path* wrote."""
    task = path.parts[-4]
    return [line for line in text.splitlines(keepends=True) if line.startswith(f"{task} ")]
