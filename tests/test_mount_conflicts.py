"""Several writers of one note: rebase, ESTALE, the guard, and seeing what others did (DESIGN 3)."""

import errno
import json
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount import (
    Api,
    child,
    errno_is,
    names,
    note_id,
    opened,
    refused,
    sh,
    sh_ok,
    until,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

APPEND, NEW = os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_CREAT


# ------------------------------------------------------------------------------ appends


def test_appends_of_two_tasks_are_both_kept_in_order_of_commit(S: Path, T: Path, api: Api):
    (S / "log").write_text("start\n")
    with opened(S / "log", APPEND) as one, opened(T / "log", APPEND) as two:
        os.write(one, b"s1\n")
        os.write(two, b"t1\n")
        os.fsync(two)
        os.fsync(one)
        assert api.get("/log") == "start\nt1\ns1\n"
        os.write(two, b"t2\n")
        os.write(one, b"s2\n")
        os.fsync(one)
    assert api.get("/log") == "start\nt1\ns1\ns2\nt2\n"
    assert (S / "log").read_text() == (T / "log").read_text() == api.get("/log")
    assert refused(S) == refused(T) == []


def test_an_append_over_an_api_change_lands_behind_it(S: Path, api: Api):
    (S / "log").write_text("start\n")
    with opened(S / "log", APPEND) as fd:
        os.write(fd, b"mine\n")
        api.put("/log", "rewritten\n")
    assert api.get("/log") == (S / "log").read_text() == "rewritten\nmine\n"


def test_appends_of_two_tasks_with_long_open_handles_lose_nothing(S: Path, T: Path, api: Api):
    script = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True); input()
for i in range(60):
    os.write(fd, b"%s %04d\\n" % (sys.argv[2].encode(), i))
    if i % 3 == 0: os.fsync(fd)
os.close(fd); print("done", flush=True)
"""
    (S / "log").write_text("head\n")
    with (
        child(script, S / "log", "S1") as one,
        child(script, S / "log", "S2") as two,
        child(script, T / "log", "T1") as three,
    ):
        for process in (one, two, three):
            process.stdin.write("\n")
            process.stdin.flush()
        for process in (one, two, three):
            assert process.stdout.readline() == "done\n"
    lines = api.get("/log").splitlines()
    assert lines[0] == "head"
    for who in ("S1", "S2", "T1"):
        mine = [line for line in lines if line.startswith(who)]
        assert mine == [f"{who} {number:04}" for number in range(60)]
    assert len(lines) == 181
    assert (S / "log").read_text() == (T / "log").read_text() == api.get("/log")


def test_shell_appends_of_two_tasks_lose_nothing(S: Path, T: Path, api: Api):
    (S / "log").write_text("")

    def append(root: Path, who: str) -> None:
        sh_ok('for i in $(seq 1 30); do echo "$WHO $i" >> "$F"; done', F=root / "log", WHO=who)

    threads = [threading.Thread(target=append, args=args) for args in ((S, "s"), (T, "t"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (api.get("/log") or "").splitlines()
    for who in "st":
        mine = [line for line in lines if line.startswith(who)]
        assert mine == [f"{who} {number}" for number in range(1, 31)]
    assert len(lines) == 60


def test_an_appender_that_reads_back_sees_its_own_text_until_it_closes(S: Path, T: Path):
    (S / "log").write_text("a\n")
    with opened(S / "log", os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, b"s\n")
        (T / "log").write_text("a\nt\n")
        os.fsync(fd)
        assert os.pread(fd, 99, 0) == b"a\ns\n"
    assert (S / "log").read_text() == (T / "log").read_text() == "a\nt\ns\n"


def test_a_rebased_append_that_gets_too_long_is_refused_and_kept(S: Path, T: Path, api: Api):
    (S / "log").write_text("a" * 60_000)
    with opened(T / "log", APPEND) as other:
        fd = os.open(S / "log", APPEND)
        os.write(fd, b"s" * 30_000)
        os.write(other, b"t" * 30_000)
        os.fsync(other)
        with errno_is(errno.EFBIG, errno.ESTALE):
            os.close(fd)
    assert api.get("/log") == "a" * 60_000 + "t" * 30_000
    assert (S / "log").read_text() == api.get("/log")
    assert [path.read_text() for path in refused(S)] == ["a" * 60_000 + "s" * 30_000]


def test_two_tasks_that_make_the_same_new_file_keep_both_texts(S: Path, T: Path, api: Api):
    one, two = os.open(S / "n", NEW | os.O_APPEND), os.open(T / "n", NEW | os.O_APPEND)
    os.write(one, b"s\n")
    os.write(two, b"t\n")
    os.close(one)
    os.close(two)
    assert api.get("/n") == "s\nt\n"
    assert len(api.ls()) == 1
    assert (S / "n").read_text() == (T / "n").read_text() == "s\nt\n"


# ------------------------------------------------------------------------------ ESTALE


@pytest.fixture(params=["API", "other task"])
def foreign(request, api: Api, T: Path) -> Callable[[str, str], None]:
    """Saves a text by another door."""
    if request.param == "API":
        return api.put

    def save(path: str, text: str) -> None:
        with (T / path[1:]).open("a+") as file:
            file.truncate(0)
            file.write(text)

    return save


def test_a_write_over_a_foreign_change_is_estale_and_the_head_stays(S, api, foreign):
    (S / "n").write_text("base\n")
    fd = os.open(S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    foreign("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.fsync(fd)
    with errno_is(errno.ESTALE):
        os.close(fd)
    assert api.get("/n") == (S / "n").read_text() == "theirs\n"


def test_the_refused_text_is_kept_with_reason_base_and_head(S: Path, T: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    base = api.memory("/n")
    fd = os.open(S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    foreign("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.close(fd)
    for root in (S, T):
        (kept,) = refused(root)
        assert kept.read_text() == "MINE\n"
        why = json.loads(kept.with_name(f"{kept.name}.why.json").read_text())
        assert why["path"] == "/n"
        assert why["base"] == base["content_sha256"]
        assert why["head"] == api.memory("/n")["content_sha256"]
        assert "changed" in why["reason"]
        assert why["actor"]["id"] == S.parts[-3]


def test_after_estale_reading_then_writing_works(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    fd = os.open(S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    foreign("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.close(fd)
    text = (S / "n").read_text()
    (S / "n").write_text(f"{text}mine\n")
    assert api.get("/n") == "theirs\nmine\n"


def test_a_write_equal_to_the_foreign_text_is_no_conflict(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    with opened(S / "n", os.O_RDWR) as fd:
        os.pwrite(fd, b"SAME\n", 0)
        foreign("/n", "SAME\n")
    assert len(api.versions("/n")) == 2
    assert refused(S) == []


def test_a_truncating_writer_that_loses_the_race_is_estale(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    fd = os.open(S / "n", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"mine\n")
    foreign("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.close(fd)
    assert api.get("/n") == "theirs\n"
    assert [path.read_text() for path in refused(S)] == ["mine\n"]


def test_python_files_see_the_conflict_at_close(S: Path, api: Api):
    (S / "n").write_text("base\n")
    file = (S / "n").open("r+")
    assert file.read() == "base\n"
    api.put("/n", "from api\n")
    file.seek(0)
    file.write("from agent\n")
    with errno_is(errno.ESTALE):
        file.close()
    assert api.get("/n") == "from api\n"
    assert [path.read_text() for path in refused(S)] == ["from agent\n"]


def test_a_write_to_a_note_that_was_deleted_elsewhere_is_kept_and_resurrects_nothing(S, T, api):
    for remove in (lambda: api.rm("/n"), lambda: (T / "n").unlink()):
        (S / "n").write_text("base\n")
        before = len(refused(S))
        fd = os.open(S / "n", APPEND)
        os.write(fd, b"more\n")
        remove()
        with errno_is(errno.ESTALE, errno.ENOENT):
            os.close(fd)
        assert names(S) == names(T) == api.ls() == []
        assert len(refused(S)) == before + 1
        assert refused(S)[-1].read_text() == "base\nmore\n"


def test_a_write_to_a_note_that_was_moved_elsewhere_goes_along(S: Path, T: Path, api: Api):
    for move in (lambda: api.mv("/n", "/moved"), lambda: (T / "n").rename(T / "moved")):
        (S / "n").write_text("base\n")
        with opened(S / "n", APPEND) as fd:
            os.write(fd, b"more\n")
            move()
        assert api.ls() == ["/moved"]
        assert (S / "moved").read_text() == (T / "moved").read_text() == "base\nmore\n"
        (S / "moved").unlink()


def test_a_new_file_that_meets_a_note_made_meanwhile_is_kept_in_refused(S: Path, api: Api):
    fd = os.open(S / "n", NEW)
    os.pwrite(fd, b"mine", 0)
    os.pwrite(fd, b"M", 0)  # no longer an append
    api.put("/n", "theirs")
    with errno_is(errno.ESTALE, errno.EEXIST):
        os.close(fd)
    assert api.get("/n") == (S / "n").read_text() == "theirs"
    assert [path.read_text() for path in refused(S)] == ["Mine"]


def test_a_new_file_in_a_folder_that_became_a_note_is_kept_in_refused(S: Path, api: Api):
    (S / "d").mkdir()
    fd = os.open(S / "d" / "n", NEW)
    os.write(fd, b"mine")
    api.put("/d", "theirs")
    with errno_is(errno.ESTALE, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
        os.close(fd)
    assert (S / "d").read_text() == "theirs"
    assert [path.read_text() for path in refused(S)] == ["mine"]


def test_a_failed_save_leaves_nothing_dirty_behind(S: Path, T: Path, api: Api):
    (S / "n").write_text("base\n")
    fd = os.open(S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    api.put("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.close(fd)
    api.put("/n", "again\n")
    assert (S / "n").read_text() == (T / "n").read_text() == "again\n"
    assert len(api.versions("/n")) == 3
    assert len(refused(S)) == 1


# ------------------------------------------------------------------------------ the guard


def test_echo_over_a_note_that_another_changed_prints_stale_file_handle(S, api, foreign):
    sh_ok('echo base > "$S/n"; cat "$S/n"', S=S)
    foreign("/n", "theirs\n")
    done = sh('echo mine > "$S/n"', S=S)
    assert done.returncode != 0
    assert "Stale file handle" in done.stderr
    assert api.history("/n")[-1] == ("modified", "theirs\n")
    assert (S / "n").read_text() == "theirs\n"


def test_after_the_guard_reading_then_writing_works(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    foreign("/n", "theirs\n")
    assert "Stale" in sh('echo mine > "$S/n"', S=S).stderr
    assert "Stale" in sh('echo mine > "$S/n"', S=S).stderr, "until it is read"
    sh_ok('cat "$S/n"; echo mine > "$S/n"', S=S)
    assert api.get("/n") == "mine\n"


def test_a_stat_alone_does_not_count_as_reading(S: Path, api: Api):
    (S / "n").write_text("base\n")
    api.put("/n", "theirs\n")
    (S / "n").stat()
    os.listdir(S)
    with errno_is(errno.ESTALE):
        os.open(S / "n", os.O_WRONLY | os.O_TRUNC)


def test_a_rename_over_a_note_that_another_changed_is_estale(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    for name in (".n.tmp", "draft"):
        api.put("/n", "base\n")
        assert (S / "n").read_text() == "base\n"
        foreign("/n", "theirs\n")
        (S / name).write_text("mine\n")
        with errno_is(errno.ESTALE):
            os.replace(S / name, S / "n")
        assert api.get("/n") == "theirs\n"
        assert (S / name).read_text() == "mine\n", "the source stays"
        assert (S / "n").read_text() == "theirs\n"
        os.replace(S / name, S / "n")
        assert api.get("/n") == "mine\n"


def test_truncate_by_path_of_a_note_that_another_changed_is_estale(S: Path, api: Api, foreign):
    (S / "n").write_text("base\n")
    foreign("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.truncate(S / "n", 0)
    assert api.get("/n") == "theirs\n"


def test_a_task_that_never_opened_the_note_may_overwrite_it(S: Path, T: Path, api: Api):
    (S / "n").write_text("one\n")
    sh_ok('echo two > "$T/n"', T=T)
    assert api.get("/n") == "two\n"
    api.put("/m", "api\n")
    sh_ok('echo three > "$S/m"', S=S)
    assert api.get("/m") == "three\n"


def test_with_guard_off_the_last_writer_wins(task, api: Api):
    off = task("crow", guard=False)
    (off / "n").write_text("base\n")
    api.put("/n", "theirs\n")
    sh_ok('echo mine > "$O/n"', O=off)
    assert api.history("/n")[-1] == ("modified", "mine\n")
    api.put("/n", "theirs again\n")
    (off / ".n.tmp").write_text("mine again\n")
    (off / ".n.tmp").replace(off / "n")
    assert api.get("/n") == "mine again\n"


def test_with_guard_off_an_open_handle_still_loses_nothing_silently(task, api: Api):
    off = task("crow", guard=False)
    (off / "n").write_text("base\n")
    fd = os.open(off / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    api.put("/n", "theirs\n")
    with errno_is(errno.ESTALE):
        os.close(fd)
    assert len(refused(off)) == 1


def test_the_guard_does_not_mind_ones_own_changes(S: Path, api: Api):
    for number in range(5):
        sh_ok('echo "$N" > "$S/n"', S=S, N=number)
        (S / ".n.tmp").write_text(f"tmp {number}")
        (S / ".n.tmp").replace(S / "n")
        (S / "n").chmod(0o600)
    assert len(api.versions("/n")) == 10


def test_appending_needs_no_guard(S: Path, api: Api):
    (S / "n").write_text("base\n")
    api.put("/n", "theirs\n")
    sh_ok('echo mine >> "$S/n"', S=S)
    assert api.get("/n") == "theirs\nmine\n"


def test_a_deleted_and_remade_note_is_another_note_for_the_guard(S: Path, T: Path, api: Api):
    (S / "n").write_text("base\n")
    (T / "n").unlink()
    (T / "n").write_text("new\n")
    sh_ok('echo mine > "$S/n"', S=S)
    assert api.get("/n") == "mine\n"


# ------------------------------------------------------------------------------ seeing others


@pytest.fixture(params=["/", "/a/b/c/d/e/"], ids=["root", "deep"])
def at(request) -> str:
    return request.param


def test_a_text_of_another_size_by_api_is_seen_at_the_next_open_and_stat(S, T, api, at):
    path, root = at + "n.md", str(S)
    api.put(path, "short\n")
    for text in ("".join(f"{n}\n" for n in range(2000)), "tiny\n", "", "back"):
        assert Path(root + path).read_text() == api.get(path)
        api.put(path, text)
        assert Path(root + path).stat().st_size == len(text)
        assert Path(root + path).read_text() == text
        assert Path(str(T) + path).read_text() == text


def test_a_text_of_the_same_size_by_api_is_seen_at_the_next_open(S: Path, T: Path, api: Api, at):
    path = at + "n.md"
    for number in range(10):
        api.put(path, f"same{number}")
        assert Path(f"{S}{path}").read_text() == f"same{number}"
        assert sh_ok('cat "$F"', F=f"{T}{path}") == f"same{number}"


def test_a_save_by_the_other_task_is_seen_at_the_next_open(S: Path, T: Path, api: Api, at):
    path = at + "n.md"
    api.put(path, "start")
    mine, theirs = Path(f"{S}{path}"), Path(f"{T}{path}")
    for number in range(5):
        theirs.read_text()
        mine.write_text(f"s{number}")
        assert theirs.read_text() == f"s{number}"
        mine.read_text()
        theirs.write_text(f"t{number}")
        assert mine.read_text() == f"t{number}"
        assert mine.stat().st_mtime_ns == theirs.stat().st_mtime_ns


def test_a_note_made_by_api_is_seen_after_its_name_was_looked_up_in_vain(S, T, api, at):
    api.put(at + "other", "x")
    path = at + "n.md"
    for root in (S, T):
        assert not Path(f"{root}{path}").exists()
    api.put(path, "new")
    for root in (S, T):
        assert Path(f"{root}{path}").read_text() == "new"
        assert "n.md" in os.listdir(f"{root}{at}")


def test_folders_made_by_api_are_seen_after_they_were_looked_up_in_vain(S, T, api):
    for root in (S, T):
        assert not (root / "a" / "b" / "c" / "n").exists()
        assert names(root) == []
    api.put("/a/b/c/n", "new")
    for root in (S, T):
        assert (root / "a" / "b" / "c" / "n").read_text() == "new"


def test_a_note_deleted_by_api_is_gone_at_once(S: Path, T: Path, api: Api, at):
    api.put(at + "stays", "x")
    api.put(at + "n.md", "x")
    for root in (S, T):
        Path(f"{root}{at}n.md").read_text()
        os.listdir(f"{root}{at}")
    api.rm(at + "n.md")
    for root in (S, T):
        assert not Path(f"{root}{at}n.md").exists()
        assert os.listdir(f"{root}{at}") == ["stays"]
        with errno_is(errno.ENOENT):
            os.open(f"{root}{at}n.md", os.O_RDONLY)


def test_folders_emptied_by_api_are_gone_at_once(S: Path, T: Path, api: Api):
    api.put("/a/b/c/n", "x")
    for root in (S, T):
        assert (root / "a/b/c/n").read_text() == "x"
    api.rm("/a/b/c/n")
    for root in (S, T):
        assert not (root / "a").exists()
        assert not (root / "a" / "b" / "c").exists()
        assert names(root) == []
    sh_ok('echo note > "$S/a"; cat "$T/a"', S=S, T=T)


def test_a_note_moved_by_api_is_seen_at_its_new_path_only(S: Path, T: Path, api: Api, at):
    api.put(at + "n.md", "x")
    for root in (S, T):
        Path(f"{root}{at}n.md").read_text()
        assert not (root / "x" / "moved").exists()
    api.mv(at + "n.md", "/x/moved")
    for root in (S, T):
        assert (root / "x" / "moved").read_text() == "x"
        assert not Path(f"{root}{at}n.md").exists()
        assert note_id(root / "x" / "moved") == api.note_id("/x/moved")


def test_a_folder_renamed_by_the_other_task_is_seen_through_its_deep_paths(S, T, api):
    api.put("/a/b/c/d/e/n", "x")
    assert (S / "a/b/c/d/e/n").read_text() == (T / "a/b/c/d/e/n").read_text() == "x"
    assert not (T / "a/z").exists()
    (S / "a" / "b").rename(S / "a" / "z")
    assert (T / "a/z/c/d/e/n").read_text() == "x"
    assert not (T / "a/b/c/d/e/n").exists()
    assert names(T / "a") == ["z"]
    (T / "a/z/c/d/e/n").write_text("y")
    assert (S / "a/z/c/d/e/n").read_text() == "y"
    (T / "a" / "z").rename(T / "top")
    assert (S / "top/c/d/e/n").read_text() == "y"
    assert names(S) == ["a", "top"]


def test_a_process_that_stands_in_a_renamed_folder_goes_on_there(S: Path, T: Path, api: Api):
    api.put("/a/b/n", "x")
    fd = os.open(T / "a" / "b", os.O_RDONLY | os.O_DIRECTORY)
    try:
        (S / "a").rename(S / "z")
        with open(os.open("n", os.O_RDONLY, dir_fd=fd)) as file:
            assert file.read() == "x"
        with open(os.open("new", NEW, dir_fd=fd), "w") as file:
            file.write("y")
        assert sorted(os.listdir(fd)) == ["n", "new"]
    finally:
        os.close(fd)
    assert api.get("/z/b/new") == "y"


def test_a_note_replaced_by_a_folder_and_back_is_seen_as_what_it_is(S: Path, T: Path, api: Api):
    for _ in range(3):
        (S / "x").write_text("note")
        assert (T / "x").is_file()
        (S / "x").unlink()
        (S / "x").mkdir()
        assert (T / "x").is_dir()
        (T / "x").rmdir()
        assert not (S / "x").exists()
        api.put("/x/y", "deep")
        assert (T / "x" / "y").read_text() == (S / "x" / "y").read_text() == "deep"
        api.rm("/x/y")
        api.put("/x", "note again")
        assert (T / "x").read_text() == (S / "x").read_text() == "note again"
        api.rm("/x")
        assert names(S) == names(T) == []


def test_modes_and_times_set_by_the_other_task_are_seen_at_the_next_stat(S: Path, T: Path):
    (S / "n").write_text("x")
    for number in range(20):
        (S / "n").chmod(0o600 + number)
        os.utime(S / "n", ns=(number * 10**9, number * 10**9))
        found = (T / "n").stat()
        assert found.st_mode & 0o777 == 0o600 + number
        assert found.st_mtime_ns == number * 10**9


def test_a_reader_that_holds_a_file_open_keeps_its_text_and_the_next_open_sees_the_new(S, api):
    api.put("/n", "old" * 4000)
    with opened(S / "n", os.O_RDONLY) as fd:
        assert os.pread(fd, 3, 0) == b"old"
        api.put("/n", "new" * 4000)
        data = os.pread(fd, 12_000, 0)
        assert data in (b"old" * 4000, b"new" * 4000), "not torn"
        assert (S / "n").read_text() == "new" * 4000


def test_fstat_of_an_open_file_that_changed_elsewhere_tells_of_the_text_it_shows(S, T, api):
    for change in (lambda: api.put("/n", "longer"), lambda: (T / "n").unlink()):
        api.put("/n", "old")
        with opened(S / "n", os.O_RDONLY) as fd:
            before = os.fstat(fd)
            change()
            (S / "n").exists()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 99, 0) == b"old"
            after = os.fstat(fd)
            assert (after.st_size, after.st_mode) == (before.st_size, before.st_mode)
            assert after.st_mtime_ns == before.st_mtime_ns


def test_readers_and_maps_do_not_hang_while_the_api_changes_the_note(S: Path, T: Path, api: Api):
    (S / "n").write_text("0" * 50_000)
    stop, bad = threading.Event(), []

    def read(root: Path) -> None:
        while not stop.is_set():
            text = (root / "n").read_text()
            if len(set(text)) != 1 or not 50_000 <= len(text) <= 50_100:
                bad.append((len(text), set(text)))

    readers = [threading.Thread(target=read, args=(root,)) for root in (S, S, T)]
    with opened(S / "n", os.O_RDONLY) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as old:
        for reader in readers:
            reader.start()
        for number in range(60):
            api.put("/n", str(number % 10) * (50_000 + number))
            assert old[number * 700] in b"0123456789"
        stop.set()
        for reader in readers:
            reader.join(20)
            assert not reader.is_alive()
    assert bad == []
    assert names(S) == ["n"]


def test_names_of_two_tasks_that_change_the_same_folder_agree(S: Path, T: Path, api: Api):
    def work(root: Path, who: str) -> None:
        for number in range(30):
            (root / f"{who}{number}").write_text(who)
            assert f"{who}{number}" in os.listdir(root)
            if number % 3 == 0:
                (root / f"{who}{number}").unlink()
                assert f"{who}{number}" not in os.listdir(root)

    failures: list[BaseException] = []

    def guarded(root: Path, who: str) -> None:
        try:
            work(root, who)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=args) for args in ((S, "s"), (T, "t"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    until(lambda: names(S) == names(T) == sorted(path[1:] for path in api.ls()), "all agree")
    assert len(names(S)) == 40
