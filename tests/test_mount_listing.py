"""What readdir gives programs that look closely: dots, inode numbers, positions (SEMANTICS: Mount).

Python's own listing leaves out the dots and has no positions, so libc is called as C programs do.
"""

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.mount import Api, end_task, names, sh_ok, task_of, until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("ino", ctypes.c_uint64),
        ("off", ctypes.c_int64),
        ("reclen", ctypes.c_ushort),
        ("type", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.argtypes = (ctypes.c_char_p,)
_libc.opendir.restype = ctypes.c_void_p
_libc.readdir64.argtypes = (ctypes.c_void_p,)
_libc.readdir64.restype = ctypes.POINTER(_Dirent)
_libc.telldir.argtypes = (ctypes.c_void_p,)
_libc.telldir.restype = ctypes.c_long
_libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
_libc.rewinddir.argtypes = _libc.closedir.argtypes = (ctypes.c_void_p,)


class Dir:
    """An open folder as C has it."""

    def __init__(self, dir_: int) -> None:
        self._dir = dir_

    def read(self) -> Iterator[tuple[str, int]]:
        """Yield name and inode number from here to the end."""
        while entry := _libc.readdir64(self._dir):
            yield entry.contents.name.decode(), entry.contents.ino

    def names(self, most: int = 10**6) -> list[str]:
        """Return up to *most* names from here, without the dots."""
        found: list[str] = []
        while len(found) < most and (entry := _libc.readdir64(self._dir)):
            name = entry.contents.name.decode()
            if name not in (".", ".."):
                found.append(name)
        return found

    def tell(self) -> int:
        return _libc.telldir(self._dir)

    def seek(self, position: int) -> None:
        _libc.seekdir(self._dir, position)

    def rewind(self) -> None:
        _libc.rewinddir(self._dir)


@contextmanager
def opendir(path: Path) -> Iterator[Dir]:
    found = _libc.opendir(os.fsencode(path))
    assert found, os.strerror(ctypes.get_errno())
    try:
        yield Dir(found)
    finally:
        _libc.closedir(found)


def fill(folder: Path, number: int = 300) -> list[str]:
    """Make notes whose names are so long that the kernel asks for them in several portions."""
    made = [f"n{one:04}-{'x' * 200}" for one in range(number)]
    for name in made:
        (folder / name).touch()
    return made


# ------------------------------------------------------------------------------ dots


def test_a_listing_begins_with_the_dots_and_their_inode_numbers(S: Path):
    (S / "d" / "e").mkdir(parents=True)
    (S / "d" / "n").write_text("x")
    with opendir(S / "d") as found:
        rows = list(found.read())
    assert [name for name, _ in rows] == [".", "..", "e", "n"]
    assert dict(rows) == {
        ".": (S / "d").stat().st_ino,
        "..": S.stat().st_ino,
        "e": (S / "d" / "e").stat().st_ino,
        "n": (S / "d" / "n").stat().st_ino,
    }
    with opendir(S / "d" / "e") as found:
        assert dict(found.read()) == {
            ".": (S / "d" / "e").stat().st_ino,
            "..": (S / "d").stat().st_ino,
        }


def test_the_top_folder_and_memfs_have_dots_too(S: Path, R: Path):
    for root in (S, R):
        with opendir(root) as found:
            rows = dict(found.read())
        assert list(rows) == [".", ".."]
        assert rows["."] == root.stat().st_ino
        with opendir(root / ".memfs" / "versions") as found:
            rows = dict(found.read())
        assert rows["."] == (root / ".memfs" / "versions").stat().st_ino
        assert rows[".."] == (root / ".memfs").stat().st_ino
        with opendir(root / ".memfs") as found:
            assert dict(found.read())[".."] == root.stat().st_ino
    assert sh_ok('ls -a "$S"', S=S).split() == [".", ".."]
    assert sh_ok('ls -a "$S/.memfs"', S=S).split()[:2] == [".", ".."]


def test_the_dots_follow_a_folder_that_is_moved(S: Path):
    (S / "a" / "d").mkdir(parents=True)
    (S / "b").mkdir()
    with opendir(S / "a" / "d") as found:
        assert dict(found.read())[".."] == (S / "a").stat().st_ino
        (S / "a" / "d").rename(S / "b" / "d")
        found.rewind()
        assert dict(found.read())[".."] == (S / "b").stat().st_ino


def test_an_open_folder_can_be_read_to_its_end_when_its_task_ends(S, T, api, client, daemon):
    daemon.expected = ["busy, detached lazily"]
    (S / "d").mkdir()
    fill(S)
    with opendir(S) as top, opendir(S / "d") as below, opendir(S / ".memfs") as control:
        end_task(client, task_of(S))
        for found in (top, below, control):
            assert set(dict(found.read())) >= {".", ".."}
            found.rewind()
            found.names()


# ------------------------------------------------------------------------------ positions


def test_a_kept_position_resumes_where_it_was_even_after_a_rewind(S: Path):
    made = fill(S)
    with opendir(S) as found:
        at: dict[int, int] = {}
        for number in range(len(made)):
            at[number] = found.tell()
            assert found.names(1) == [made[number]]
        for number in (250, 10, 299, 0, 128):
            found.seek(at[number])
            assert found.names() == made[number:]
        found.rewind()
        assert found.names(3) == made[:3]
        found.seek(at[200])
        assert found.names() == made[200:]


def test_a_kept_position_holds_while_names_come_and_go(S: Path, T: Path, api: Api):
    made = fill(S)
    until(lambda: len(api.ls()) == len(made), "all are committed")
    with opendir(T) as found:
        first = found.names(200)
        position = found.tell()
        found.names()
        found.rewind()
        for name in (made[199], made[5], made[250]):  # also the one the position is behind
            (S / name).unlink()
        for name in ("a", "n0100-y", "n0250-y", "z"):
            (S / name).write_text("x")
        found.names(7)
        found.seek(position)
        rest = found.names()
    stayed = [name for name in made if name not in (made[199], made[5], made[250])]
    seen = first + rest
    assert len(seen) == len(set(seen))
    assert [name for name in seen if name in stayed] == stayed


def test_a_rewound_listing_shows_what_is_there_now(S: Path):
    made = fill(S, 100)
    with opendir(S) as found:
        assert found.names() == made
        for name in made[::2]:
            (S / name).unlink()
        (S / "a").write_text("x")
        found.rewind()
        assert found.names() == ["a", *made[1::2]]
        found.rewind()
        assert found.names() == ["a", *made[1::2]]


def test_positions_in_memfs_are_kept_too(S: Path):
    for number in range(150):
        (S / "n").write_text(f"{number}")
    with opendir(S / ".memfs" / "versions" / "n") as found:
        everything = found.names()
        found.rewind()
        first = found.names(120)
        position = found.tell()
        found.names()
        found.rewind()
        found.names(2)
        found.seek(position)
        assert first + found.names() == everything
    assert len(everything) == 150


# ------------------------------------------------------------------------------ all together


class Walk:
    """One pass over a folder that changes: what was there throughout, and what it gave out."""

    def __init__(self, there: set[str]) -> None:
        self.always = there.copy()
        self.ever = there.copy()
        self.given: list[str] = []

    def check(self) -> None:
        assert len(self.given) == len(set(self.given)), "once"
        assert self.always <= set(self.given) <= self.ever
        assert self.given == sorted(self.given)


@pytest.mark.parametrize("seed", range(6))
def test_listings_that_begin_anew_and_stop_anywhere_agree_with_what_was_there(
    seed: int, S: Path, T: Path, api: Api
):
    rng = random.Random(seed)
    folder = S / "d"
    folder.mkdir()
    there = set(fill(folder, 400))
    until(lambda: names(T / "d") == sorted(there), "what was touched is committed in release")
    with ExitStack() as stack:
        dirs = [stack.enter_context(opendir(path / "d")) for path in (S, S, T)]
        walks = [Walk(there) for _ in dirs]
        for _ in range(250):
            what, number = rng.random(), rng.randrange(3)
            if what < 0.5:
                most = rng.choice((1, 40, 150, 1000))
                found = dirs[number].names(most)
                walks[number].given += found
                if len(found) < most:
                    walks[number].check()
                    dirs[number].rewind()
                    walks[number] = Walk(there)
            elif what < 0.65:
                dirs[number].rewind()
                walks[number] = Walk(there)
            elif what < 0.8 and there:
                name = rng.choice(sorted(there))
                (rng.choice((S, T)) / "d" / name).unlink()
                there.discard(name)
                for walk in walks:
                    walk.always.discard(name)
            else:
                name = f"n{rng.randrange(10_000):05}-{'y' * 180}"
                if rng.random() < 0.5:
                    (rng.choice((S, T)) / "d" / name).write_text(name)
                else:
                    api.put(f"/d/{name}", name)
                there.add(name)
                for walk in walks:
                    walk.ever.add(name)
        assert names(S / "d") == names(T / "d") == sorted(there)
