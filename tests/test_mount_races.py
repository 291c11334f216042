"""What one handle writes while another's close is being committed is committed, kept or told."""

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.mount import Api, Daemon, errno_is, refused, sh_ok

pytestmark = pytest.mark.fuse
pytest_plugins = ("tests.mount",)

# In the child: a text is screened, and a refused one kept, so slowly that others come between.
PATCH = """
import trio
from memfs.engine import refused
from memfs.engine.service import Service
screen, commit = Service.screen, Service.commit

async def slow_screen(self, data):
    await trio.sleep(0 if data == b"other" else 0.2)  # the API is quick
    return await screen(self, data)

async def slow_commit(self, rule, *args, **kwargs):
    if rule is refused.keep:
        await trio.sleep(0.2)
    return await commit(self, rule, *args, **kwargs)

Service.screen, Service.commit = slow_screen, slow_commit
"""
SOON = 0.07  # a third of the window


class Doing(threading.Thread):
    """A call in a thread, and the errno that it ended with."""

    def __init__(self, call: Callable[..., None], *args: object) -> None:
        super().__init__()
        self.call = partial(call, *args)
        self.code: int | None = None
        self.start()
        time.sleep(SOON)

    def run(self) -> None:
        try:
            self.call()
        except OSError as error:
            self.code = error.errno

    def end(self) -> int | None:
        self.join(20)
        return self.code


def test_an_append_while_another_handle_closes_is_kept(S: Path):
    note = S / "n.md"
    note.write_text("head\n")
    one, two = (os.open(note, os.O_WRONLY | os.O_APPEND) for _ in range(2))
    os.write(one, b"one\n")
    closing = Doing(os.close, one)
    os.write(two, b"two\n")
    os.close(two)
    assert closing.end() is None
    assert note.read_text() == "head\none\ntwo\n"


def test_a_write_while_a_childs_copy_is_closed_is_kept(S: Path):
    note = S / "n.md"
    fd = os.open(note, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"one\n")
    closing = Doing(os.close, os.dup(fd))
    os.write(fd, b"two\n")
    os.close(fd)
    assert closing.end() is None
    assert note.read_text() == "one\ntwo\n"


def test_an_emptying_while_another_handle_closes_is_not_undone(S: Path):
    note = S / "n.md"
    note.write_text("head\n")
    one, two = (os.open(note, os.O_WRONLY) for _ in range(2))
    os.pwrite(one, b"HEAD\n", 0)
    closing = Doing(os.close, one)
    os.ftruncate(two, 0)
    os.close(two)
    assert closing.end() is None
    assert note.read_text() == ""


def test_a_time_and_mode_set_while_another_handle_closes_are_kept(S: Path):
    note = S / "n.md"
    one = os.open(note, os.O_WRONLY | os.O_CREAT)
    two = os.open(note, os.O_WRONLY)
    os.write(one, b"one\n")
    closing = Doing(os.close, one)
    os.utime(two, (1_000_000_000, 1_000_000_000))
    os.fchmod(two, 0o600)
    os.close(two)
    assert closing.end() is None
    assert (note.stat().st_mtime, note.stat().st_mode & 0o777) == (1_000_000_000, 0o600)


def test_what_is_written_while_anothers_close_is_refused_is_told_or_kept(
    S: Path, api: Api, daemon: Daemon
):
    daemon.expected = ["could not be committed"]
    note = S / "n.md"
    note.write_text("0" * 100)
    one, two = (os.open(note, os.O_RDWR) for _ in range(2))
    os.pwrite(one, b"ONE", 0)
    api.put("/n.md", "other")
    closing = Doing(os.close, one)
    time.sleep(0.2)  # its text is being kept now
    os.pwrite(two, b"TWO", 10)
    assert closing.end() == errno.ESTALE
    with errno_is(errno.ESTALE):
        os.close(two)
    assert note.read_text() == "other"
    kept = "".join(path.read_text() for path in refused(S))
    assert "ONE" in kept
    assert "TWO" in kept


def test_a_new_file_whose_close_lost_takes_no_more_in_silence(S: Path, api: Api, daemon: Daemon):
    daemon.expected = ["could not be committed"]
    note = S / "n.md"
    one = os.open(note, os.O_WRONLY | os.O_CREAT)
    two = os.open(note, os.O_WRONLY)
    os.write(one, b"one")
    os.pwrite(one, b"ONE", 0)
    closing = Doing(os.close, one)
    api.put("/n.md", "other")
    time.sleep(0.1)
    told = False
    try:
        os.pwrite(two, b"TWO", 10)
    except OSError:
        told = True
    assert closing.end() == errno.ESTALE
    try:
        os.close(two)
    except OSError:
        told = True
    assert note.read_text() == "other"
    kept = "".join(path.read_text() for path in refused(S))
    assert "ONE" in kept
    assert told or "TWO" in kept


def test_who_emptied_and_wrote_is_never_put_behind_another_text(S: Path, api: Api):
    note = S / "n.md"
    note.write_text("head")
    emptying = Doing(os.truncate, note, 0)
    fd = os.open(note, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"overwriter")
    assert emptying.end() is None
    api.put("/n.md", "other")
    with errno_is(errno.ESTALE):
        os.close(fd)
    assert note.read_text() == "other"


def test_many_shells_append_to_a_long_note_and_nothing_is_lost(S: Path):
    sh_ok("head -c 20000 /dev/zero | tr '\\0' b > n.md; echo >> n.md", S)
    loop = 'for i in $(seq 6); do echo "{0} $i" >> n.md || exit 1; done'
    sh_ok(" & ".join(f"({loop.format(name)})" for name in "ABCD") + " & wait", S)
    lines = (S / "n.md").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(f"{name} {i}" for name in "ABCD" for i in range(1, 7))
