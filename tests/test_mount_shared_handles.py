"""Several handles on one file: what one of them is refused costs the others nothing in silence."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.mount import Daemon

pytestmark = pytest.mark.fuse
pytest_plugins = ("tests.mount",)

APPEND = os.O_WRONLY | os.O_APPEND


def refused(call, *args) -> int:
    with pytest.raises(OSError, match=r"\w") as caught:
        call(*args)
    assert caught.value.errno is not None
    return caught.value.errno


@pytest.mark.parametrize(
    ("bad", "code"), [(b"\xff", errno.EILSEQ), (b"pass" + b"word=hunter2Xy9zQ\n", errno.EACCES)]
)
def test_an_append_after_a_refused_write_leaves_no_gap(S: Path, bad: bytes, code: int):
    note = S / "note.md"
    note.write_text("head\n")
    for _ in range(10):
        fd = os.open(note, APPEND)
        os.write(fd, b"abcdefgh\n")
        assert refused(os.write, fd, bad) == code
        assert refused(os.close, fd) == code
        with note.open("ab") as file:
            file.write(b"more\n")
        text = note.read_bytes()
        assert b"\0" not in text
        assert text == b"head\n" + b"more\n" * text.count(b"more\n")
    assert note.read_text() == "head\n" + "more\n" * 10


def test_a_close_in_the_middle_of_a_character_takes_nothing_from_others(S: Path):
    note = S / "note.md"
    note.write_text("head\n")
    b = os.open(note, APPEND)
    os.write(b, b"B precious \xc3")
    a = os.open(note, os.O_WRONLY)
    os.pwrite(a, b"HEAD\n", 0)
    assert refused(os.close, a) == errno.EILSEQ
    os.write(b, b"\xa9\n")
    os.close(b)
    assert note.read_text() == "HEAD\nB precious é\n"


def test_a_childs_close_in_the_middle_of_a_character_does_not_end_the_file(S: Path):
    fd = os.open(S / "new.md", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x\xc3")
    subprocess.run(["true"], check=True, pass_fds=(fd,))
    os.write(fd, b"\xa9\n")
    os.close(fd)
    assert (S / "new.md").read_text() == "xé\n"


def test_a_refused_credential_is_not_readable_and_costs_others_nothing(S: Path):
    note = S / "note.md"
    note.write_text("head\n")
    b = os.open(note, APPEND)
    os.write(b, b"b1\n")
    a = os.open(note, os.O_RDWR | os.O_APPEND)
    assert refused(os.write, a, b"pass" + b"word=hunter2Xy9zQ\n") == errno.EACCES
    assert os.pread(a, 100, 0) == b"head\nb1\n"
    os.write(b, b"b2\n")
    os.close(b)
    assert refused(os.close, a) == errno.EACCES
    assert note.read_text() == "head\nb1\nb2\n"


def test_every_handle_whose_text_lost_is_told(S: Path, T: Path):
    note = S / "note.md"
    note.write_text("head\n")
    a, b = os.open(note, os.O_WRONLY), os.open(note, os.O_WRONLY)
    os.pwrite(a, b"AAAA", 0)
    os.pwrite(b, b"BB", 2)
    (T / "note.md").read_text()
    (T / "note.md").write_text("from T\n")
    assert refused(os.close, a) == errno.ESTALE
    assert refused(os.close, b) == errno.ESTALE
    assert note.read_text() == "from T\n"
    kept = [path.read_text() for path in (S / ".memfs/refused").iterdir() if path.suffix == ".md"]
    assert "AABB\n" in kept


def test_truncating_after_a_refused_write_is_refused(S: Path):
    note = S / "note.md"
    note.write_text("head\n")
    fd = os.open(note, os.O_WRONLY)
    assert refused(os.write, fd, b"\xff") == errno.EILSEQ
    assert refused(os.ftruncate, fd, 0) == errno.EILSEQ
    assert refused(os.close, fd) == errno.EILSEQ
    assert note.read_text() == "head\n"


def test_of_two_tasks_that_make_a_file_one_is_told(S: Path, T: Path, daemon: Daemon):
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    s, t = os.open(S / "lock.md", flags), os.open(T / "lock.md", flags)
    os.write(s, b"S\n")
    os.write(t, b"T\n")
    os.close(s)
    assert refused(os.close, t) == errno.ESTALE
    assert (T / "lock.md").read_text() == "S\n"


def test_a_folder_can_take_the_place_of_a_note_in_waiting(S: Path):
    (S / "a.md").write_text("text")
    os.rename(S / "a.md", S / "a.md~")
    (S / "a.md").mkdir()
    assert (S / "a.md~").read_text() == "text"
    assert sorted(os.listdir(S)) == ["a.md", "a.md~"]


def test_a_folder_whose_only_note_is_in_waiting_elsewhere_can_be_removed(S: Path):
    (S / "d").mkdir()
    (S / "d/a.md").write_text("text")
    os.rename(S / "d/a.md", S / "a.md.tmp")
    (S / "d").rmdir()
    assert os.listdir(S) == ["a.md.tmp"]
