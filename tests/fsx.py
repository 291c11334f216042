"""Random file operations on a mounted folder and on a plain one; after each, both must agree.

`python tests/fsx.py MOUNTED PLAIN --operations N --seed S` runs it alone. The plain folder is the
whole truth: there is no model of what a file system does, only two of them side by side.
"""

import argparse
import errno
import itertools
import mmap
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

NAMES = ("a.md", "b.md", "c.md", "d.md", "sub/e.md", "sub/f.md")
SCRATCH = ("g.tmp", "sub/h.tmp", ".i.md.swp")  # names that live in memory only
BIG_BYTES = 102_400  # the largest note
USUAL_BYTES = 30_000
OPEN_FILES = 6
DEADLINE_S = 5.0  # for what the kernel does after the last close (RELEASE is asynchronous)

# Text of one character a byte, and of characters that all fill units of three bytes: whole units
# are written, so every state is UTF-8, while pages of a memory map cut through the characters.
ASCII = tuple("abcdefghij klmnopqr\nstuvwxyz")
UNITS = ("€", "語", "éa", "aé", "abc", "\n--", "✓", "x y")

Heads = Callable[[], dict[str, str]]  # sha256 by name
Result = int | bytes | str | list[str] | None


class Disagreement(AssertionError):
    """The mounted folder is not what the plain one is."""


@dataclass
class Both:
    """One file that is open in both folders."""

    mounted: int
    plain: int
    flags: int

    @property
    def reads(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


@dataclass
class Fsx:
    """Runs operations drawn from a seed. Raises Disagreement with the last operations."""

    mounted: Path
    plain: Path
    seed: int
    characters: tuple[str, ...] = ASCII
    heads: Heads | None = None  # the texts that another door shows
    opened: list[Both] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.unit = max(len(character.encode()) for character in self.characters)
        self.trace: deque[str] = deque(maxlen=40)
        for root in (self.mounted, self.plain):
            (root / "sub").mkdir(exist_ok=True)
        self._operations = {
            self.write: 22,
            self.append: 12,
            self.cut: 8,
            self.cut_by_name: 4,
            self.read: 8,
            self.rewrite: 8,
            self.fsync: 5,
            self.open: 10,
            self.close: 9,
            self.rename: 6,
            self.unlink: 2,
            self.map_read: 3,
            self.map_write: 5,
            self.map_write_late: 2,
            self.stat: 4,
            self.drop_pages: 4,
            self.list: 1,
        }

    def run(self, operations: int, settle_every: int = 1_000) -> None:
        """Do so many operations, with everything closed and compared now and then."""
        kinds = list(self._operations)
        cumulative = list(itertools.accumulate(self._operations.values()))
        for number in range(1, operations + 1):
            kind = self.random.choices(kinds, cum_weights=cumulative)[0]
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            try:
                kind()
            except Disagreement as error:
                self.close_all()
                story = "\n  ".join(self.trace)
                raise Disagreement(
                    f"seed {self.seed}, operation {number}: {error}\n  {story}"
                ) from (None)
            if number % settle_every == 0 or number == operations:
                self.settle()

    # ---- operations

    def write(self) -> None:
        both = self._pick(writes=True)
        if both is None:
            return self.open()
        size = os.fstat(both.plain).st_size
        data = self._text()
        most = min(size + (self.random.random() < 0.1) * 5_000, BIG_BYTES - len(data))
        at = self._offset(most)
        self._do(
            f"pwrite {at}+{len(data)}",
            both,
            lambda fd: os.pwrite(fd, data, at),
            room=len(data) if both.flags & os.O_APPEND else 0,
        )
        return self._compare(both)

    def append(self) -> None:
        both = self._pick(writes=True, flag=os.O_APPEND)
        if both is None:
            return self.open(os.O_RDWR | os.O_APPEND)
        data = self._text()
        self._do(f"append {len(data)}", both, lambda fd: os.write(fd, data), room=len(data))
        return self._compare(both)

    def cut(self) -> None:
        both = self._pick(writes=True)
        if both is None:
            return self.open()
        size = self._new_size(os.fstat(both.plain).st_size)
        self._do(f"ftruncate {size}", both, lambda fd: os.ftruncate(fd, size))
        return self._compare(both)

    def cut_by_name(self) -> None:
        name = self._name()
        size = self._new_size(self._size(name))
        self._both(f"truncate {name} {size}", lambda root: os.truncate(root / name, size))
        self._compare_name(name)

    def read(self) -> None:
        both = self._pick(reads=True)
        if both is None:
            return self.open()
        size = os.fstat(both.plain).st_size
        at, length = self.random.randint(0, size + 100), self.random.randint(0, size + 100)
        return self._do(f"pread {at}+{length}", both, lambda fd: os.pread(fd, length, at))

    def rewrite(self) -> None:
        """As `echo > file` and Python's open(…, "w") do."""
        name, data = self._name(), self._text() * self.random.choice((0, 1, 1, 3))

        def save(root: Path) -> int:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            fd = os.open(root / name, flags, 0o644)
            try:
                return os.write(fd, data) if data else 0
            finally:
                os.close(fd)

        self._both(f"rewrite {name} {len(data)}", save)
        self._compare_name(name)

    def fsync(self) -> None:
        both = self._pick()
        if both is not None:
            self._do("fsync", both, os.fsync)

    def open(self, flags: int | None = None) -> None:
        if len(self.opened) >= OPEN_FILES:
            return self.close()
        if flags is None:
            flags = self.random.choice(
                (os.O_RDWR, os.O_RDWR, os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND)
            )
        if flags & os.O_ACCMODE != os.O_RDONLY:
            flags |= self.random.choice((0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL))
            flags |= self.random.choice((0, 0, 0, os.O_TRUNC))
        name = self._name()
        fds: list[int] = []

        def open_it(root: Path) -> None:
            fds.append(os.open(root / name, flags, 0o644))

        self._both(f"open {name} {flags:#o}", open_it)
        if not fds:
            return None
        both = Both(fds[1], fds[0], flags)
        self.opened.append(both)
        return self._compare(both)

    def close(self) -> None:
        if not self.opened:
            return
        both = self.opened.pop(self.random.randrange(len(self.opened)))
        self._do("close", both, os.close)

    def rename(self) -> None:
        old, new = self._name(), self._name()
        self._both(f"rename {old} {new}", lambda root: os.rename(root / old, root / new))
        for name in (old, new):
            self._compare_name(name)

    def unlink(self) -> None:
        name = self._name()
        self._both(f"unlink {name}", lambda root: os.unlink(root / name))
        self._compare_name(name)

    def map_read(self) -> None:
        both = self._pick(reads=True)
        size = 0 if both is None else os.fstat(both.plain).st_size
        if both is None or size == 0:
            return
        at = self.random.randrange(size)

        def look(fd: int) -> bytes:
            with mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as memory:
                return memory[at : at + 9_000]

        self._do(f"map and read {at}", both, look)

    def map_write(self) -> None:
        both = self._pick(reads=True, writes=True)
        size = 0 if both is None else os.fstat(both.plain).st_size
        data = self._text()
        if both is None or size < len(data):
            return
        at, flush = self._offset(size - len(data)), self.random.random() < 0.5

        def change(fd: int) -> None:
            with mmap.mmap(fd, size, mmap.MAP_SHARED) as memory:
                memory[at : at + len(data)] = data
                if flush:
                    memory.flush()

        self._do(f"map and write {at}+{len(data)} msync={flush}", both, change)
        self._compare(both)

    def map_write_late(self) -> None:
        """Write into a map after the file was closed; there is no close left to report to."""
        name, data = self._name(), self._text()
        size = self._size(name)
        if size < len(data):
            return
        at = self._offset(size - len(data))

        def change(root: Path) -> None:
            fd = os.open(root / name, os.O_RDWR)
            try:
                memory = mmap.mmap(fd, size, mmap.MAP_SHARED)
            finally:
                os.close(fd)
            with memory:
                memory[at : at + len(data)] = data

        self._both(f"map {name}, close, write {at}+{len(data)}", change)
        self._compare_name(name)

    def stat(self) -> None:
        name = self._name()
        self._both(f"stat {name}", lambda root: os.stat(root / name).st_size)

    def drop_pages(self) -> None:
        """Have the kernel forget clean pages, so that the next read asks the daemon."""
        both = self._pick()
        if both is not None:
            os.posix_fadvise(both.mounted, 0, 0, os.POSIX_FADV_DONTNEED)
            self._note("drop pages")
            self._compare(both)

    def list(self) -> None:
        for folder in (".", "sub"):
            self._both(f"list {folder}", lambda root, at=folder: sorted(os.listdir(root / at)))

    def settle(self) -> None:
        """Close everything; then names, texts, and what the other door shows must agree."""
        self.close_all()
        self.list()
        for name in (*NAMES, *SCRATCH):
            self._compare_name(name)
        for name in SCRATCH:  # a note that went to such a name is deleted with it
            if self._size(name) >= 0:
                self._both(f"unlink {name}", lambda root, at=name: os.unlink(root / at))
        if self.heads is None:
            return
        wanted = {
            name: sha256((self.plain / name).read_bytes()).hexdigest()
            for name in NAMES
            if self._size(name) >= 0
        }
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.heads()) != wanted:
            if time.monotonic() > deadline:
                different = sorted(
                    name for name in {*wanted, *found} if wanted.get(name) != found.get(name)
                )
                raise Disagreement(f"the other door shows something else at {different}")
            time.sleep(0.05)

    def close_all(self) -> None:
        for both in self.opened:
            os.close(both.plain)
            os.close(both.mounted)
        self.opened.clear()

    # ---- choosing

    def _name(self) -> str:
        return self.random.choice(SCRATCH if self.random.random() < 0.12 else NAMES)

    def _pick(self, *, reads: bool = False, writes: bool = False, flag: int = 0) -> Both | None:
        fitting = [
            both
            for both in self.opened
            if both.reads >= reads and both.writes >= writes and both.flags & flag == flag
        ]
        return self.random.choice(fitting) if fitting else None

    def _text(self) -> bytes:
        length = self.random.choice((1, 10, 100, 1_000, 5_000))
        pattern = self.random.choices(self.characters, k=self.random.randint(1, min(length, 97)))
        times = self.random.randint(1, length) // len(pattern) + 1
        return "".join(pattern * times).encode()

    def _offset(self, most: int) -> int:
        return self.random.randint(0, max(0, most) // self.unit) * self.unit

    def _new_size(self, size: int) -> int:
        most = BIG_BYTES if self.random.random() < 0.02 else USUAL_BYTES
        near = size + self.random.randint(-300, 300)
        return self._offset(self.random.choice((0, min(max(0, near), most), most)))

    def _size(self, name: str) -> int:
        try:
            return os.stat(self.plain / name).st_size
        except FileNotFoundError:
            return -1

    # ---- doing and comparing

    def _do(self, what: str, both: Both, operation: Callable[[int], Result], room: int = 0) -> None:
        if os.fstat(both.plain).st_size + room > BIG_BYTES:  # no longer a note: begin again
            for fd in (both.plain, both.mounted):
                os.ftruncate(fd, 0)
        self._agree(
            f"{what} on open file {both.mounted}",
            lambda: operation(both.plain),
            lambda: operation(both.mounted),
        )

    def _both(self, what: str, operation: Callable[[Path], Result]) -> None:
        self._agree(what, lambda: operation(self.plain), lambda: operation(self.mounted))

    def _agree(self, what: str, plain: Callable[[], Result], mounted: Callable[[], Result]) -> None:
        self._note(what)
        wanted, found = _outcome(plain), _outcome(mounted)
        if found != wanted:
            raise Disagreement(f"{what}: {_short(found)} instead of {_short(wanted)}")

    def _compare(self, both: Both) -> None:
        wanted, found = os.fstat(both.plain).st_size, os.fstat(both.mounted).st_size
        if found != wanted:
            raise Disagreement(f"an open file has size {found} instead of {wanted}")
        if both.reads:
            _same_text(os.pread(both.plain, wanted + 1, 0), os.pread(both.mounted, wanted + 1, 0))

    def _compare_name(self, name: str) -> None:
        wanted, found = (
            _outcome((self.plain / name).read_bytes),
            _outcome((self.mounted / name).read_bytes),
        )
        if isinstance(wanted, bytes) and isinstance(found, bytes):
            _same_text(wanted, found)
        elif wanted != found:
            raise Disagreement(f"{name}: {_short(found)} instead of {_short(wanted)}")
        sizes = [_outcome(lambda at=root: os.stat(at / name).st_size) for root in self._roots()]
        if sizes[0] != sizes[1]:
            raise Disagreement(f"{name} has size {sizes[1]} instead of {sizes[0]}")

    def _roots(self) -> Iterator[Path]:
        yield self.plain
        yield self.mounted

    def _note(self, what: str) -> None:
        self.trace.append(what)


def _outcome(operation: Callable[[], Result]) -> Result:
    try:
        return operation()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def _short(result: Result) -> str:
    shown = repr(result)
    return shown if len(shown) < 200 else f"{shown[:200]}… ({len(shown)})"


def _same_text(wanted: bytes, found: bytes) -> None:
    if wanted == found:
        return
    at = next(
        (n for n, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]),
        min(len(wanted), len(found)),
    )
    raise Disagreement(
        f"the text differs from byte {at} of {len(wanted)} (found {len(found)}): "
        f"{found[at : at + 20]!r} instead of {wanted[at : at + 20]!r}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mounted", type=Path)
    parser.add_argument("plain", type=Path)
    parser.add_argument("--operations", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wide", action="store_true", help="characters of two and three bytes")
    asked = parser.parse_args()
    characters = UNITS if asked.wide else ASCII
    fsx = Fsx(asked.mounted, asked.plain, asked.seed, characters)
    started = time.monotonic()
    fsx.run(asked.operations)
    print(f"{asked.operations} operations agree, {time.monotonic() - started:.1f} s: {fsx.counts}")


if __name__ == "__main__":
    main()
