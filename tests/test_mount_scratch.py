"""Temporary files, notes in waiting, and the programs that save through them (DESIGN 3)."""

import errno
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest

from memfs import limits
from tests.mount import (
    Api,
    Daemon,
    errno_is,
    names,
    note_id,
    opened,
    refused,
    sh,
    sh_ok,
    task_of,
    until,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT
ALWAYS = [
    "n.md~", ".n.md.swp", ".n.md.swo", ".n.md.swx", ".n.md.swpx", "4913", ".#n.md", "#n.md#",
    ".tmp-1", "n.tmp", "n.tmp.4242", ".fs-1.tmp", ".goutputstream-A1B2C3", ".nfs0001", ".DS_Store",
    "._n.md", "n.lock", ".~lock.n.odt#", "n.part",
]  # fmt: skip
NOT = ["n.md", "4914", "tmp", "lock", "n.tmp2", "sediments", "tmpfiles.md", "~n", "notes.locked"]
MKSTEMP = ["sedAb12Cd", "tmpab12cd_x", ".n.md.Ab12Cd"]
TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5"


def lives_in_memory(path: Path, api: Api) -> bool:
    is_note = False
    with suppress(OSError):
        is_note = bool(note_id(path))
    assert is_note == (f"/{path.name}" in api.ls())
    return not is_note


# ------------------------------------------------------------------------------ scratch


@pytest.mark.parametrize("name", ALWAYS, ids=lambda name: name.replace("#", "hash"))
def test_temporary_names_make_no_note(S: Path, T: Path, api: Api, name: str):
    (S / name).write_bytes(b"\xff any bytes \0")
    assert (S / name).read_bytes() == b"\xff any bytes \0"
    assert lives_in_memory(S / name, api)
    assert names(S) == [name]
    assert names(T) == []
    assert not (T / name).exists()
    (S / name).unlink()
    assert names(S) == []
    assert api.all_versions() == []


def test_other_names_make_notes(S: Path, api: Api):
    for name in NOT:
        (S / name).write_text("x")
        assert not lives_in_memory(S / name, api), name


@pytest.mark.parametrize("name", MKSTEMP)
def test_names_of_mkstemp_count_only_when_made_as_mkstemp_does(S: Path, api: Api, name: str):
    with opened(S / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) as fd:
        os.write(fd, b"\xff")
    assert lives_in_memory(S / name, api)
    (S / name).unlink()
    (S / name).write_text("x")
    assert not lives_in_memory(S / name, api)


def test_pythons_temporary_files_work(S: Path, api: Api):
    with tempfile.NamedTemporaryFile(dir=S) as file:
        file.write(b"\xff\xfe")
        file.flush()
        assert os.stat(file.name).st_size == 2
        assert lives_in_memory(Path(file.name), api)
    with tempfile.TemporaryFile(dir=S) as file:
        file.write(b"\xff" * 5000)
        file.seek(0)
        assert file.read() == b"\xff" * 5000
    assert names(S) == []
    assert api.all_versions() == []


def test_scratch_files_are_files_like_any_other(S: Path):
    path = S / "n.tmp"
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        os.pwrite(fd, b"end", 10_000)
        assert os.pread(fd, 5, 9_998) == b"\0\0end"
        os.ftruncate(fd, 3)
        assert os.fstat(fd).st_size == 3
    with errno_is(errno.EEXIST):
        os.open(path, NEW | os.O_EXCL)
    path.chmod(0o600)
    os.utime(path, (1, 2))
    assert path.stat().st_mtime == 2
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(S / "m.tmp")
    (S / "o.tmp").write_text("o")
    (S / "o.tmp").replace(S / "m.tmp")
    assert (S / "m.tmp").read_text() == "o"
    with opened(S / "m.tmp", os.O_RDWR) as fd:
        (S / "m.tmp").unlink()
        os.write(fd, b"orphan")
        assert os.pread(fd, 9, 0) == b"orphan"
    assert names(S) == []


def test_a_scratch_file_holds_16_mib_and_not_more(S: Path):
    with opened(S / "n.tmp", NEW) as fd:
        os.pwrite(fd, b"x", limits.SCRATCH_FILE_BYTES - 1)
        with errno_is(errno.ENOSPC):
            os.pwrite(fd, b"x", limits.SCRATCH_FILE_BYTES)
        with errno_is(errno.ENOSPC):
            os.ftruncate(fd, limits.SCRATCH_FILE_BYTES + 1)
    assert (S / "n.tmp").stat().st_size == limits.SCRATCH_FILE_BYTES
    (S / "n").write_text("notes go on")


def test_all_scratch_of_an_attachment_holds_64_mib_and_removing_frees_it(S: Path, T: Path):
    full = limits.SCRATCH_ATTACHMENT_BYTES // limits.SCRATCH_FILE_BYTES
    for number in range(full):
        with opened(S / f"{number}.tmp", NEW) as fd:
            os.ftruncate(fd, limits.SCRATCH_FILE_BYTES)
    fd = os.open(S / "more.tmp", NEW)
    with errno_is(errno.ENOSPC):
        os.write(fd, b"x")
    with opened(T / "theirs.tmp", NEW) as other:
        os.write(other, b"another attachment has its own")
    (S / "0.tmp").unlink()
    os.write(fd, b"x")
    os.close(fd)
    for path in S.glob("*.tmp"):
        path.unlink()
    for _ in range(2):  # what truncating and replacing free is free again
        with opened(S / "a.tmp", NEW | os.O_TRUNC) as fd:
            os.ftruncate(fd, limits.SCRATCH_FILE_BYTES)
            os.ftruncate(fd, 0)
        for number in range(full):
            with opened(S / "b.tmp", NEW | os.O_TRUNC) as fd:
                os.ftruncate(fd, limits.SCRATCH_FILE_BYTES)
            (S / "b.tmp").replace(S / f"{number}.tmp")
        for number in range(full):
            (S / f"{number}.tmp").unlink()


def test_what_removed_and_open_temporary_files_take_is_given_back_at_close(S: Path):
    for _ in range(limits.SCRATCH_ATTACHMENT_BYTES // limits.SCRATCH_FILE_BYTES + 2):
        with tempfile.TemporaryFile(dir=S) as file:
            file.truncate(limits.SCRATCH_FILE_BYTES)
    for _ in range(limits.SCRATCH_ATTACHMENT_BYTES // limits.SCRATCH_FILE_BYTES + 2):
        with opened(S / "n.tmp", NEW) as fd:
            os.ftruncate(fd, limits.SCRATCH_FILE_BYTES)
            os.unlink(S / "n.tmp")


def test_scratch_in_folders_goes_with_rm_r_and_moves_with_the_folder(S: Path, T: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n.tmp").write_text("x")
    (S / "d").rename(S / "e")
    assert (S / "e" / "n.tmp").read_text() == "x"
    with errno_is(errno.ENOTEMPTY):
        (S / "e").rmdir()
    shutil.rmtree(S / "e")
    assert names(S) == names(T) == []


def test_scratch_is_gone_when_the_task_ends(S: Path, T: Path, api: Api, client, task):
    (S / "n.tmp").write_text("scratch")
    (S / "n").write_text("note")
    client.post(f"/v1/tasks/{task_of(S)}/end").raise_for_status()
    again = task("wren")
    assert names(again) == names(T) == ["n"]


# ------------------------------------------------------------------------------ from scratch


def test_renaming_scratch_to_a_name_makes_a_note(S: Path, T: Path, api: Api):
    (S / "n.tmp").write_text("text")
    os.utime(S / "n.tmp", (5, 5))
    (S / "n.tmp").rename(S / "n")
    assert api.history("/n") == [("created", "text")]
    assert (S / "n").read_text() == (T / "n").read_text() == "text"
    assert (S / "n").stat().st_mtime == (T / "n").stat().st_mtime == 5
    assert names(S) == names(T) == ["n"]


def test_ten_atomic_saves_are_ten_versions_of_one_note(S: Path, T: Path, api: Api):
    (S / "n").write_text("0")
    note = note_id(S / "n")
    (T / "n").read_text()
    for number in range(1, 11):
        (S / ".n.tmp").write_text(f"{number}")
        (S / ".n.tmp").replace(S / "n")
        assert (S / "n").read_text() == (T / "n").read_text() == f"{number}"
    assert [text for _, text in api.history(note)] == [f"{number}" for number in range(11)]
    assert len(api.all_versions()) == 11


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff\xfe", errno.EILSEQ),
        (b"x" * (limits.NOTE_BYTES + 1), errno.EFBIG),
        (f"token {TOKEN}".encode(), errno.EACCES),
    ],
    ids=["not UTF-8", "too long", "secret"],
)
def test_the_rename_carries_the_errors_and_the_scratch_file_stays(S, api, data, code):
    (S / "n").write_text("head")
    (S / "n.tmp").write_bytes(data)
    for target in ("n", "new"):
        with errno_is(code):
            os.rename(S / "n.tmp", S / target)
    assert (S / "n.tmp").read_bytes() == data
    assert (S / "n").read_text() == "head"
    assert api.history("/n") == [("created", "head")]
    assert names(S) == ["n", "n.tmp"]


def test_a_scratch_file_that_is_still_open_goes_on_as_the_note(S: Path, T: Path, api: Api):
    with opened(S / "n.tmp", NEW) as fd:
        os.write(fd, b"one")
        os.rename(S / "n.tmp", S / "n")
        assert api.get("/n") == "one"
        os.write(fd, b" two")
    assert api.get("/n") == (S / "n").read_text() == (T / "n").read_text() == "one two"


def test_a_bad_write_after_the_rename_is_refused_as_in_any_note(S: Path, api: Api):
    fd = os.open(S / "n.tmp", NEW)
    os.write(fd, b"one")
    os.rename(S / "n.tmp", S / "n")
    with errno_is(errno.EILSEQ):
        os.write(fd, b"\xff")
    with errno_is(errno.EILSEQ):
        os.close(fd)
    assert api.get("/n") == (S / "n").read_text() == "one"


def test_renaming_scratch_over_a_note_keeps_the_notes_open_readers(S: Path):
    (S / "n").write_text("old")
    with opened(S / "n", os.O_RDONLY) as fd:
        (S / ".n.tmp").write_text("new")
        (S / ".n.tmp").replace(S / "n")
        assert os.pread(fd, 9, 0) == b"old"
        assert (S / "n").read_text() == "new"


def test_renaming_scratch_over_a_folder_is_refused(S: Path):
    (S / "d").mkdir()
    (S / "n.tmp").write_text("x")
    with errno_is(errno.EISDIR):
        os.rename(S / "n.tmp", S / "d")
    with errno_is(errno.ENOTDIR):
        os.rename(S / "d", S / "n.tmp")
    assert names(S) == ["d", "n.tmp"]


def test_a_note_named_like_scratch_by_api_is_a_note(S: Path, T: Path, api: Api):
    api.put("/n.tmp", "by api")
    assert (S / "n.tmp").read_text() == (T / "n.tmp").read_text() == "by api"
    (S / "n.tmp").write_text("edited")
    assert api.get("/n.tmp") == "edited"
    (S / "n.tmp").unlink()
    assert names(S) == names(T) == api.ls() == []


# ------------------------------------------------------------------------------ in waiting


def test_a_note_moved_to_a_scratch_name_and_made_anew_is_the_same_note(S, T, api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    assert names(S) == ["n~"]
    assert (S / "n~").read_text() == "one"
    assert not (S / "n").exists()
    assert (T / "n").read_text() == "one", "unchanged in the store until it is clear"
    assert len(api.versions(note)) == 1
    (S / "n").write_text("two")
    assert note_id(S / "n") == note_id(T / "n") == note
    (S / "n~").unlink()
    assert (S / "n").read_text() == (T / "n").read_text() == "two"
    assert api.history(note) == [("created", "one"), ("modified", "two")]
    assert names(S) == names(T) == ["n"]


def test_removing_the_copy_first_is_the_delete(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    (S / "n~").unlink()
    assert [operation for operation, _ in api.history(note)] == ["created", "deleted"]
    assert names(S) == names(T) == api.ls() == []
    (S / "n").write_text("two")
    assert note_id(S / "n") != note


def test_renaming_it_back_is_nothing(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    os.rename(S / "n~", S / "n")
    assert note_id(S / "n") == note
    assert (S / "n").read_text() == (T / "n").read_text() == "one"
    assert len(api.all_versions()) == 1
    assert names(S) == ["n"]


def test_renaming_the_copy_to_another_name_is_a_move(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    os.rename(S / "n~", S / "m")
    assert (S / "m").read_text() == (T / "m").read_text() == "one"
    assert names(S) == names(T) == ["m"]
    assert api.ls() == ["/m"]


def test_an_atomic_save_over_a_note_in_waiting_continues_it(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    (S / ".n.tmp").write_text("two")
    os.rename(S / ".n.tmp", S / "n")
    (S / "n~").unlink()
    assert note_id(S / "n") == note_id(T / "n") == note
    assert api.history(note) == [("created", "one"), ("modified", "two")]


def test_a_copy_that_is_renamed_again_still_waits(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    os.rename(S / "n~", S / "n.tmp")
    (S / "n").write_text("two")
    assert api.history(note) == [("created", "one"), ("modified", "two")]
    (S / "n.tmp").unlink()
    assert names(S) == ["n"]
    assert api.ls() == ["/n"]


def test_a_foreign_change_of_a_note_in_waiting_is_not_overwritten(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    api.put("/n", "theirs")
    fd = os.open(S / "n", NEW)
    os.write(fd, b"mine")
    with errno_is(errno.ESTALE):
        os.close(fd)
    assert api.get("/n") == (T / "n").read_text() == "theirs"
    assert [path.read_text() for path in refused(S)] == ["mine"]
    (S / "n~").unlink()
    assert api.get("/n") == (S / "n").read_text() == "theirs"


def test_removing_the_copy_of_a_note_that_another_changed_does_not_delete_it(S, T, api):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    (T / "n").write_text("theirs")
    assert not (S / "n").exists()
    (S / "n~").unlink()
    until((S / "n").exists, "it shows again")
    assert api.get("/n") == (S / "n").read_text() == "theirs"


def test_a_copy_that_is_replaced_is_the_delete(S: Path, T: Path, api: Api):
    for name in ("m", "m.tmp"):
        (S / "n").write_text("one")
        (S / name).write_text("other")
        os.rename(S / "n", S / "n~")
        os.rename(S / name, S / "n~")
        assert not (S / "n").exists()
        (S / "n~").unlink()
        assert names(S) == names(T) == api.ls() == []


def test_removing_the_copy_and_then_the_new_file_is_the_delete(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    with opened(S / "n", NEW) as fd:
        (S / "n~").unlink()
        assert api.get("/n") == "one"
        (S / "n").unlink()
        os.write(fd, b"orphan")
    assert names(S) == names(T) == api.ls() == []


def test_a_refused_new_text_leaves_the_note_in_waiting(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    note = note_id(S / "n")
    os.rename(S / "n", S / "n~")
    fd = os.open(S / "n", NEW)
    with errno_is(errno.EILSEQ):
        os.write(fd, b"\xff")
    with errno_is(errno.EILSEQ):
        os.close(fd)
    until(lambda: names(S) == ["n~"], "the refused file is gone")
    os.rename(S / "n~", S / "n")
    assert note_id(S / "n") == note_id(T / "n") == note
    assert api.history(note) == [("created", "one")]


def test_a_note_in_waiting_comes_back_when_the_task_ends(S: Path, T: Path, api: Api, client):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    client.post(f"/v1/tasks/{task_of(S)}/end").raise_for_status()
    assert api.get("/n") == (T / "n").read_text() == "one"
    assert names(T) == ["n"]


def test_the_copy_of_a_note_in_waiting_is_scratch(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    os.rename(S / "n", S / "n~")
    (S / "n~").write_bytes(b"\xff changed")
    (S / "n").write_text("two")
    assert (S / "n~").read_bytes() == b"\xff changed"
    assert api.get("/n") == "two"
    assert names(T) == ["n"]


def test_a_folder_of_a_note_in_waiting_can_be_moved(S: Path, T: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("one")
    note = note_id(S / "d" / "n")
    os.rename(S / "d" / "n", S / "d" / "n~")
    (S / "d").rename(S / "e")
    (S / "e" / "n").write_text("two")
    assert note_id(S / "e" / "n") == note
    (S / "e" / "n~").unlink()
    assert names(S / "e") == names(T / "e") == ["n"]
    assert api.ls() == ["/e/n"]


def test_removing_the_folder_of_a_note_in_waiting_is_the_delete(S: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("one")
    os.rename(S / "d" / "n", S / "n~")
    assert api.get("/d/n") == "one", "to others nothing has happened"
    (S / "d").rmdir()
    assert api.ls() == []
    assert (S / "n~").read_text() == "one"


# ------------------------------------------------------------------------------ programs


@pytest.mark.parametrize("mode", ["auto", "no", "yes"])
def test_vim_saves_as_one_version_of_the_same_note(S: Path, T: Path, api: Api, mode: str):
    if shutil.which("vim") is None:
        pytest.skip("needs vim")
    (S / "plan.md").write_text("one\n")
    note = note_id(S / "plan.md")
    for number, word in enumerate(("two", "three"), 2):
        sh_ok(
            'timeout 20 vim -u NONE -N -i NONE -es -c "set backup backupcopy=$MODE backupskip=" '
            '-c "normal Go$WORD" -c wq "$F" < /dev/null',
            MODE=mode,
            WORD=word,
            F=S / "plan.md",
        )
        assert (T / "plan.md").read_text().endswith(f"{word}\n")
        assert len(api.versions(note)) == number
    assert note_id(S / "plan.md") == note
    assert (S / "plan.md").read_text() == "one\ntwo\nthree\n"
    assert api.ls() == ["/plan.md"]
    assert set(names(S)) <= {"plan.md", "plan.md~"}
    assert names(T) == ["plan.md"]


def test_sed_i_is_one_version_and_keeps_the_mode(S: Path, api: Api):
    sh_ok(
        r"""
        printf 'TODO a\nTODO b\n' > "$S/t.md"; chmod 640 "$S/t.md"
        sed -i s/TODO/DONE/ "$S/t.md"
        [ "$(grep -c DONE "$S/t.md")" = 2 ]; [ "$(stat -c %a "$S/t.md")" = 640 ]
        """,
        S=S,
    )
    assert len(api.versions("/t.md")) == 2
    note = note_id(S / "t.md")
    sh_ok('sed -i.bak s/DONE/X/ "$S/t.md"; [ "$(head -n1 "$S/t.md.bak")" = "DONE a" ]', S=S)
    assert names(S) == ["t.md", "t.md.bak"]
    assert note in (note_id(S / "t.md"), note_id(S / "t.md.bak"))


def test_rsync_updates_notes_in_place_of_their_history(S: Path, X: Path, api: Api):
    for number in range(5):
        (X / f"{number}.md").write_text(f"{number}\n")
    sh_ok('rsync -a "$X/" "$S/"', S=S, X=X)
    ids = {path: api.note_id(path) for path in api.ls()}
    (X / "3.md").write_text("changed, and longer\n")
    sh_ok('rsync -a --delete "$X/" "$S/"', S=S, X=X)
    assert {path: api.note_id(path) for path in api.ls()} == ids
    assert len(api.versions("/3.md")) == 2
    assert len(api.all_versions()) == 6
    (X / "4.md").unlink()
    sh_ok('rsync -a --delete "$X/" "$S/"', S=S, X=X)
    assert names(S) == names(X)


def test_tar_and_git_diff_and_grep_work(S: Path, X: Path, api: Api):
    sh_ok(
        """
        mkdir -p "$X/src/sub"; echo alpha > "$X/src/a"; echo beta > "$X/src/sub/b"
        tar -C "$X" -cf - src | tar -C "$S" -xf -
        diff -r "$X/src" "$S/src"
        grep -rq beta "$S"
        tar -C "$S" -cf "$X/out.tar" src
        """,
        S=S,
        X=X,
    )
    assert [len(api.versions(path)) for path in api.ls()] == [1, 1]


def test_git_says_why_it_cannot_live_here_and_leaves_no_half_note(S: Path, api: Api):
    done = sh('cd "$S" && git init -q . && echo x > f && git add f', S=S)
    assert done.returncode in (0, 128, 1)
    assert "Input/output error" not in done.stderr
    sh('rm -rf "$S/.git"', S=S)


def test_sqlite_is_refused_with_an_errno_and_nothing_half_done(S: Path, api: Api):
    with closing(sqlite3.connect(S / "db.sqlite")) as db, pytest.raises(sqlite3.Error):
        db.execute("create table t(i integer primary key, v)")
    until(lambda: api.ls() in ([], ["/db.sqlite"]), "settled")
    assert not api.ls() or api.get("/db.sqlite") == ""


def test_emacs_lock_symlink_is_not_permitted_and_disturbs_nothing(S: Path):
    (S / "plan.md").write_text("x\n")
    done = sh('ln -s kim@host.1:2 "$S/.#plan.md"', S=S)
    assert "not permitted" in done.stderr
    assert sh_ok('ls -la "$S" > /dev/null; grep -r x "$S"; rm -f "$S/.#plan.md"', S=S)
    assert (S / "plan.md").read_text() == "x\n"


def test_a_python_atomic_save_with_fsync_and_folder_fsync_works(S: Path, api: Api):
    with opened(S / ".n.tmp", NEW) as fd:
        os.write(fd, b"text")
        os.fsync(fd)
    os.replace(S / ".n.tmp", S / "n")
    folder = os.open(S, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
    assert api.history("/n") == [("created", "text")]


def test_the_daemons_scratch_patterns_are_shown_nowhere_in_recall(S: Path, daemon: Daemon):
    (S / "n~").write_text("scratch only")
    assert b"scratch only" not in b"".join(
        path.read_bytes() for path in daemon.config.data_dir.glob("*.mdb")
    )
