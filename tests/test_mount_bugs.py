"""A mount that meets bugs and limits: EIO, EDQUOT, and life goes on (DESIGN 3)."""

import errno
import os
from pathlib import Path

import pytest

from tests.mount import Api, Daemon, errno_is, names, refused, sh, sh_ok, until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT

# In the child: every handler fails for names that ask for it, and a store holds 12 notes.
PATCH = """
from memfs import limits
limits.NOTES_PER_STORE = 12
from memfs.fs import names, texts
from memfs.engine import files

def broken(cls, method, wanted):
    real = getattr(cls, method)
    def fn(self, *args, **kwargs):
        if wanted(*args):
            raise ZeroDivisionError("injected")
        return real(self, *args, **kwargs)
    setattr(cls, method, fn)

broken(names.Names, "lookup", lambda parent, raw: raw == b"bug-lookup")
broken(names.Names, "create", lambda parent, raw, *_: raw == b"bug-create")
broken(names.Names, "mkdir", lambda parent, raw, *_: raw == b"bug-mkdir")
broken(names.Names, "unlink", lambda parent, raw: raw == b"bug-unlink")
broken(texts.Texts, "write", lambda fh, handle, offset, data: b"bug-write" in data)
broken(texts.Texts, "release", lambda fh, handle: handle.inode.sha256 == RELEASE)
from hashlib import sha256
RELEASE = sha256(b"bug-release").hexdigest()

save = files.save
def bad_save(txn, caller, now, node, save_, *rest):
    if b"bug-save" in save_.text.data:
        raise ZeroDivisionError("injected")
    return save(txn, caller, now, node, save_, *rest)
files.save = bad_save
"""


@pytest.fixture
def bugs(daemon: Daemon, client) -> Daemon:
    """The injected bug's traceback is expected, and has to be there."""
    daemon.expected = ["ZeroDivisionError: injected"]
    return daemon


def logged(daemon: Daemon, what: str) -> bool:
    return any(
        "ZeroDivisionError" in str(line) and what in str(line) for line in daemon.log_lines()
    )


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("lookup", lambda S: os.stat(S / "bug-lookup")),
        ("create", lambda S: os.open(S / "bug-create", NEW)),
        ("mkdir", lambda S: os.mkdir(S / "bug-mkdir")),
        ("unlink", lambda S: os.unlink(S / "bug-unlink")),
    ],
    ids=["lookup", "create", "mkdir", "unlink"],
)
def test_a_bug_in_a_handler_is_eio_a_logged_traceback_and_a_live_mount(S, T, api, bugs, what, call):
    (S / "good").write_text("x")
    if what == "unlink":
        (S / "bug-unlink").write_text("x")
    with errno_is(errno.EIO):
        call(S)
    assert logged(bugs, what)
    assert (S / "good").read_text() == (T / "good").read_text() == "x"
    (S / "good").write_text("y")
    assert api.get("/good") == "y"
    if what == "unlink":
        api.rm("/bug-unlink")


def test_a_bug_in_a_write_is_eio_and_the_head_stays(S: Path, api: Api, bugs: Daemon):
    (S / "n").write_text("head")
    with open(S / "n", "r+b", buffering=0) as file, errno_is(errno.EIO):
        file.write(b"bug-write")
    assert logged(bugs, "write")
    assert api.get("/n") == (S / "n").read_text() == "head"


def test_a_bug_in_a_rule_is_eio_at_close_and_harms_no_other_commit(S, T, api, bugs: Daemon):
    (S / "n").write_text("head")
    fd = os.open(S / "n", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"bug-save")
    (T / "other").write_text("fine")
    with errno_is(errno.EIO):
        os.close(fd)
    bugs.log_lines()
    assert api.get("/n") == "head"
    assert api.get("/other") == "fine"
    until(lambda: (S / "n").read_text() == "head", "the note shows its head again")
    assert (T / "n").read_text() == "head"


def test_a_bug_in_release_reaches_nobody_and_ends_nothing(S: Path, api: Api, bugs: Daemon):
    (S / "n").write_text("bug-release")
    until(lambda: logged(bugs, "release"), "it is logged")
    assert (S / "n").read_text() == "bug-release"
    assert api.get("/n") == "bug-release"
    api.rm("/n")


# ------------------------------------------------------------------------------ limits


def fill(S: Path) -> None:
    for number in range(12):
        (S / f"{number}").write_text(f"{number}")


def test_one_note_too_many_is_edquot_at_create_and_all_else_goes_on(S: Path, T: Path, api: Api):
    fill(S)
    with errno_is(errno.EDQUOT):
        os.open(S / "more", NEW)
    done = sh('echo x > "$T/more"', T=T)
    assert "quota" in done.stderr
    assert "more" not in names(S)
    assert not (S / "more").exists()
    (S / "0").write_text("edited")
    (T / "1").rename(T / "one")
    (S / ".tmp-1").write_text("scratch is no note")
    (S / ".tmp-1").replace(S / "2")
    (S / "d").mkdir()
    (S / "3").unlink()
    (S / "more").write_text("fits again")
    assert len(api.ls()) == 12
    assert (
        "12" in (S / ".memfs" / "log").read_text() or "limit" in (S / ".memfs" / "log").read_text()
    )


def test_scratch_cannot_become_a_note_too_many(S: Path, api: Api):
    fill(S)
    (S / "n.tmp").write_text("text")
    with errno_is(errno.EDQUOT):
        os.rename(S / "n.tmp", S / "n")
    assert (S / "n.tmp").read_text() == "text"
    assert len(api.ls()) == 12


def test_a_new_file_that_meets_the_limit_at_close_is_told_and_its_text_kept(S, T, api):
    fill(S)
    (S / "0").unlink()
    one, two = os.open(S / "one", NEW), os.open(T / "two", NEW)
    os.write(one, b"one")
    os.write(two, b"two")
    os.close(one)
    with errno_is(errno.EDQUOT):
        os.fsync(two)
    with errno_is(errno.EDQUOT):
        os.close(two)
    until(lambda: not (T / "two").exists(), "the refused file is gone")
    assert len(api.ls()) == 12
    assert [path.read_text() for path in refused(T)] == ["two"]


def test_vims_way_of_saving_works_in_a_full_store(S: Path, api: Api):
    fill(S)
    os.rename(S / "0", S / "0~")
    (S / "0").write_text("edited")
    (S / "0~").unlink()
    sh_ok('sed -i s/1/one/ "$S/1"', S=S)
    assert api.get("/0") == "edited"
    assert api.get("/1") == "one"
    assert len(api.ls()) == 12
