"""No text is lost with its place: folders moved or removed under files being written."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.mount import (
    Api,
    Daemon,
    end_task,
    errno_is,
    names,
    note_id,
    opened,
    refused,
    task_of,
    until,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT
# A rule of the engine's that fails as the test's text asks for.
PATCH = """
from memfs import errors
from memfs.engine import files

def failing(rule, at):
    def fn(txn, caller, now, *args):
        for word in args[at].text.data.decode().split():
            if word.startswith("raise-"):
                raise getattr(errors, word.removeprefix("raise-"))("injected")
        return rule(txn, caller, now, *args)
    return fn

files.save = failing(files.save, 1)
files.save_new = failing(files.save_new, 3)
"""


def why(root: Path) -> dict[str, object]:
    """Return the reason of the last refused text."""
    path = refused(root)[-1]
    return json.loads(path.with_name(path.name + ".why.json").read_text())


def texts(root: Path) -> dict[str, str]:
    """Return the refused texts by the path they carry."""
    found: dict[str, str] = {}
    for path in refused(root):
        reason = json.loads(path.with_name(path.name + ".why.json").read_text())
        found[reason["path"]] = path.read_text()
    return found


# ------------------------------------------------------------------------------ moving deeper


@pytest.mark.parametrize("which", ["too deep", "too long"])
def test_a_folder_is_not_moved_to_where_a_new_file_would_not_fit(S, T, api, which):
    if which == "too deep":
        deep = S.joinpath(*["d"] * 18)
        inside = "f/g/n"
    else:
        deep = S.joinpath(*["d" * 250] * 3)
        inside = f"f/{'g' * 100}/{'n' * 200}"
    deep.mkdir(parents=True)
    (S / inside).parent.mkdir(parents=True)
    for root in (S, T):  # whoever has the new file open
        with opened(root / inside, NEW) as fd:
            os.write(fd, b"text")
            with errno_is(errno.ENAMETOOLONG, errno.EINVAL):
                (S / "f").rename(deep / "f")
        assert (S / inside).read_text() == api.get(f"/{inside}") == "text"
        (S / inside).unlink()
    (S / "f").rename(deep / "f")
    assert refused(S) == []


def test_a_scratch_file_that_would_not_fit_may_move_along_and_its_rename_is_refused(S, api):
    deep = S.joinpath(*["d"] * 18)
    deep.mkdir(parents=True)
    (S / "f" / "g").mkdir(parents=True)
    (S / "f" / "g" / "n.tmp").write_text("text")
    (S / "f").rename(deep / "f")
    scratch = deep / "f" / "g" / "n.tmp"
    with errno_is(errno.EINVAL):
        scratch.rename(scratch.with_name("n"))
    assert scratch.read_text() == "text"
    scratch.rename(deep / "n")
    assert api.ls() == [f"/{'d/' * 18}n"]


# ------------------------------------------------------------------------------ refused at close


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("InvalidPath", errno.EINVAL),
        ("NameTooLong", errno.ENAMETOOLONG),
        ("NotAFolder", errno.ENOTDIR),
        ("LimitReached", errno.EDQUOT),
        ("ReadOnly", errno.EROFS),
        ("Conflict", errno.EBUSY),
        ("Corrupt", errno.EIO),
        ("NoSuchErrorSoABug", errno.EIO),
    ],
)
def test_whatever_refuses_a_text_at_close_it_is_kept(S, api, daemon: Daemon, client, error, code):
    daemon.expected = ["injected", "NoSuchErrorSoABug", "could not be committed"]
    (S / "old").write_text("head")
    for name in ("old", "new"):
        text = f"raise-{error} {name}"
        fd = os.open(S / name, NEW | os.O_TRUNC)
        os.write(fd, text.encode())
        with errno_is(code):
            os.close(fd)
        assert texts(S)[f"/{name}"] == text
    until(lambda: names(S) == ["old"], "the new file is gone")
    until(lambda: (S / "old").read_text() == "head", "the head shows again")
    assert api.history("/old") == [("created", "head")]


# ------------------------------------------------------------------------------ last known path


def test_a_refused_text_carries_the_path_its_writer_knew(S: Path, T: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("head")
    fd = os.open(S / "d" / "n", os.O_WRONLY)
    os.write(fd, b"mine")
    (T / "d" / "n").unlink()
    (T / "d").rmdir()
    with errno_is(errno.ESTALE, errno.ENOENT):
        os.close(fd)
    assert texts(S) == {"/d/n": "mine"}


def test_so_does_a_new_file_in_a_folder_that_a_note_replaced(S: Path, api: Api):
    (S / "d" / "e").mkdir(parents=True)
    fd = os.open(S / "d" / "e" / "n", NEW)
    os.write(fd, b"mine")
    api.put("/d", "a note")
    with errno_is(errno.ENOENT, errno.ESTALE):
        os.close(fd)
    assert texts(S) == {"/d/e/n": "mine"}


def test_it_is_the_path_after_the_writers_own_renames(S: Path, T: Path, api: Api):
    (S / "d").mkdir()
    fd = os.open(S / "d" / "n", NEW)
    os.write(fd, b"mine")
    (S / "d" / "n").rename(S / "d" / "m")
    (S / "d").rename(S / "e")
    os.write(fd, b" too")
    (T / "e" / "m").unlink()
    with errno_is(errno.ESTALE, errno.ENOENT):
        os.close(fd)
    assert texts(S) == {"/e/m": "mine too"}


def test_a_note_that_was_purged_meanwhile_is_named_too(S: Path, api: Api):
    (S / "n").write_text("head")
    fd = os.open(S / "n", os.O_WRONLY)
    os.write(fd, b"mine")
    api.request("POST", f"/memories/{note_id(S / 'n')}/purge").raise_for_status()
    with errno_is(errno.ESTALE, errno.ENOENT):
        os.close(fd)
    assert texts(S) == {"/n": "mine"}


# ------------------------------------------------------------------------------ the task's end


def test_a_file_made_and_never_written_is_an_empty_note_after_the_task(S, T, api, client, daemon):
    daemon.expected = ["busy, detached lazily"]
    fd = os.open(S / "n", NEW)
    end_task(client, task_of(S))
    assert api.history("/n") == [("created", "")]
    assert names(T) == ["n"]
    os.close(fd)
    assert api.history("/n") == [("created", "")]


# ------------------------------------------------------------------------------ another's scratch


def test_a_folder_where_another_task_has_a_file_open_cannot_be_removed(S: Path, T: Path, api: Api):
    for name in (".n.tmp", "new"):
        (S / "d").mkdir()
        with opened(S / "d" / name, NEW) as fd:
            os.write(fd, b"text")
            with errno_is(errno.ENOTEMPTY):
                (T / "d").rmdir()
            (T / "e").mkdir()
            with errno_is(errno.ENOTEMPTY):
                (T / "e").rename(T / "d")
            os.rename(S / "d" / name, S / "d" / "n")
        assert (T / "d" / "n").read_text() == api.get("/d/n") == "text"
        assert "/d" in (T / ".memfs" / "log").read_text()
        (T / "e").rmdir()
        (T / "d" / "n").unlink()
        (T / "d").rmdir()


def test_the_text_of_a_closed_scratch_file_whose_folder_is_removed_is_kept(S, T, api):
    (S / "d" / "e").mkdir(parents=True)
    (S / "d" / ".n.tmp").write_text("one")
    (S / "d" / "e" / ".n.tmp").write_text("two")
    (S / "d" / "e" / "b.tmp").write_bytes(b"\xff no text")
    (T / "d" / "e").rmdir()
    (T / "d").rmdir()
    with errno_is(errno.ENOENT):
        os.rename(S / "d" / ".n.tmp", S / "d" / "n")
    until(lambda: texts(S) == {"/d/.n.tmp": "one", "/d/e/.n.tmp": "two"}, "the texts are kept")
    assert names(S) == names(T) == api.ls() == []
    (S / "d").mkdir()
    (S / "d" / ".n.tmp").write_text("three")
    (S / "d" / ".n.tmp").rename(S / "d" / "n")
    assert api.get("/d/n") == "three"


def test_the_text_of_an_open_scratch_file_whose_folder_a_note_takes_is_kept(S, T, api):
    (S / "d" / "e").mkdir(parents=True)
    fd = os.open(S / "d" / "e" / ".n.tmp", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"one")
    api.put("/d", "a note")
    with errno_is(errno.ENOENT, errno.ENOTDIR):
        os.rename(S / "d" / "e" / ".n.tmp", S / "d" / "e" / "n")
    os.write(fd, b" two")
    assert os.pread(fd, 99, 0) == b"one two"
    os.close(fd)
    until(lambda: texts(S) == {"/d/e/.n.tmp": "one two"}, "the text is kept")
    assert (S / "d").read_text() == (T / "d").read_text() == "a note"


def test_room_of_scratch_that_lost_its_folder_is_given_back(S: Path, T: Path, api: Api):
    for number in range(6):
        (S / "d").mkdir()
        with opened(S / "d" / "n.tmp", NEW) as fd:
            os.ftruncate(fd, 16 * 2**20)
        (T / "d").rmdir()
        until(lambda: not (S / "d").exists(), f"it is gone, {number}")
    with opened(S / "n.tmp", NEW) as fd:
        os.ftruncate(fd, 16 * 2**20)
