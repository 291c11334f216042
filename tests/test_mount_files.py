"""Opening, reading, writing and closing files on a real mount (DESIGN 3: open … statfs)."""

import errno
import fcntl
import mmap
import os
import stat
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from memfs import limits
from tests.mount import (
    Api,
    Daemon,
    child,
    errno_is,
    names,
    note_id,
    opened,
    python,
    refused,
    sh,
    sh_ok,
    until,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

WRITE, APPEND, READ = os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDONLY
NEW = os.O_WRONLY | os.O_CREAT
TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5"


# ------------------------------------------------------------------------------ saving


def test_echo_into_a_new_file_is_one_version(S: Path, api: Api):
    sh_ok('echo one > "$S/n.md"', S=S)
    assert api.history("/n.md") == [("created", "one\n")]


def test_echo_over_a_note_is_one_more_version_of_the_same_note(S: Path, api: Api):
    sh_ok('echo one > "$S/n.md"', S=S)
    before = api.note_id("/n.md")
    sh_ok('echo two > "$S/n.md"', S=S)
    assert api.history(before) == [("created", "one\n"), ("modified", "two\n")]
    assert api.note_id("/n.md") == before


def test_a_save_is_durable_and_visible_to_the_api_when_close_returns(S: Path, api: Api):
    for number in range(20):
        (S / "n.md").write_text(f"{number}")
        assert api.get("/n.md") == f"{number}"


def test_versions_name_the_task_that_saved(S: Path, api: Api):
    (S / "n.md").write_text("x")
    by = api.versions("/n.md")[0]["created_by"]
    assert by["type"] == "session_actor"
    assert by["task_id"] == S.parts[-3]


def test_a_flush_with_nothing_written_commits_nothing(S: Path, api: Api):
    with opened(S / "n.md", NEW) as fd:
        os.close(os.dup(fd))
        os.fsync(fd)
        assert api.get("/n.md") is None
        os.write(fd, b"x")
    assert api.history("/n.md") == [("created", "x")]
    with opened(S / "n.md", os.O_RDWR) as fd:
        os.close(os.dup(fd))
    assert len(api.versions("/n.md")) == 1


def test_saving_the_same_text_makes_no_version(S: Path, api: Api):
    for _ in range(3):
        sh_ok('echo same > "$S/n.md"', S=S)
    assert len(api.versions("/n.md")) == 1


def test_writing_back_what_was_there_makes_no_version(S: Path, api: Api):
    (S / "n.md").write_text("abc")
    with opened(S / "n.md", os.O_RDWR) as fd:
        os.pwrite(fd, b"X", 1)
        os.pwrite(fd, b"b", 1)
    assert len(api.versions("/n.md")) == 1


def test_touch_makes_one_empty_version(S: Path, api: Api):
    sh_ok('touch "$S/n.md"', S=S)
    until_history(api, "/n.md", [("created", "")])
    sh_ok('touch "$S/n.md"', S=S)
    assert len(api.versions("/n.md")) == 1


def test_emptying_a_note_with_the_shell_makes_one_empty_version(S: Path, api: Api):
    (S / "n.md").write_text("full")
    sh_ok(': > "$S/n.md"', S=S)
    until_history(api, "/n.md", [("created", "full"), ("modified", "")])


def until_history(api: Api, path: str, wanted: list[tuple[str, str]]) -> None:
    """What release commits is there soon, not when close returns: RELEASE is asynchronous."""
    until(lambda: api.memory(path) and api.history(path) == wanted, f"{path}: {wanted}")


def test_truncating_commits_nothing_while_the_handle_may_still_write(S: Path, T: Path, api: Api):
    (S / "n.md").write_text("old text")
    with opened(S / "n.md", WRITE | os.O_TRUNC) as fd:
        os.close(os.dup(fd))
        assert api.get("/n.md") == "old text"
        assert (T / "n.md").read_text() == "old text"
        os.write(fd, b"new")
    assert api.history("/n.md") == [("created", "old text"), ("modified", "new")]


def test_ftruncate_to_nothing_and_a_write_are_one_version(S: Path, api: Api):
    (S / "n.md").write_text("old text")
    with opened(S / "n.md", os.O_RDWR) as fd:
        os.ftruncate(fd, 0)
        os.fsync(fd)
        assert api.get("/n.md") == "old text"
        os.write(fd, b"new")
    assert api.history("/n.md") == [("created", "old text"), ("modified", "new")]


def test_fsync_commits_and_the_close_commits_the_rest(S: Path, api: Api):
    with opened(S / "n.md", NEW) as fd:
        os.write(fd, b"one")
        os.fsync(fd)
        assert api.get("/n.md") == "one"
        os.write(fd, b"two")
        assert api.get("/n.md") == "one"
    assert api.history("/n.md") == [("created", "one"), ("modified", "onetwo")]


def test_an_fsync_after_an_fsync_makes_no_version(S: Path, api: Api):
    with opened(S / "n.md", NEW) as fd:
        os.write(fd, b"one")
        for _ in range(3):
            os.fsync(fd)
    assert len(api.versions("/n.md")) == 1


def test_open_for_reading_and_truncating_empties_as_linux_does(S: Path, api: Api):
    (S / "n.md").write_text("old")
    os.close(os.open(S / "n.md", os.O_RDONLY | os.O_TRUNC))
    until_history(api, "/n.md", [("created", "old"), ("modified", "")])


@pytest.mark.parametrize("size", [3, 8, 0])
def test_truncate_by_path_is_a_version(S: Path, api: Api, size: int):
    (S / "n.md").write_text("abcde")
    os.truncate(S / "n.md", size)
    text = "abcde"[:size].ljust(size, "\0")
    assert (S / "n.md").read_text() == text
    until_history(api, "/n.md", [("created", "abcde"), ("modified", text)])


def test_a_shorter_text_leaves_no_old_tail(S: Path, api: Api):
    sh_ok('seq 1 5000 > "$S/n"; echo x > "$S/n"', S=S)
    assert (S / "n").read_text() == "x\n"
    assert (S / "n").stat().st_size == 2
    assert api.get("/n") == "x\n"


def test_writes_anywhere_and_both_truncates_agree_with_posix(S: Path):
    path = S / "p"
    path.write_bytes(b"abcdef")
    with opened(path, WRITE) as fd:
        os.pwrite(fd, b"ZZ", 2)
    assert path.read_bytes() == b"abZZef"
    with opened(path, os.O_RDWR) as fd:
        os.truncate(path, 3)
        assert os.fstat(fd).st_size == 3
        os.ftruncate(fd, 5)
        assert os.pread(fd, 9, 0) == b"abZ\0\0"
        os.pwrite(fd, b"end", 8)
        assert os.pread(fd, 20, 0) == b"abZ\0\0\0\0\0end"
    assert path.read_bytes() == b"abZ\0\0\0\0\0end"


def test_the_sha256_of_the_note_is_that_of_the_file(S: Path, api: Api):
    (S / "n").write_text("grüße\r\n\0")
    assert api.memory("/n")["content_sha256"] == sha256((S / "n").read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 65_536, limits.NOTE_BYTES])
def test_texts_of_every_size_come_back_byte_exact(S: Path, T: Path, size: int):
    data = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
    (S / "n").write_bytes(data)
    assert (S / "n").read_bytes() == data
    assert (T / "n").read_bytes() == data
    assert (T / "n").stat().st_size == size


# ------------------------------------------------------------------------------ refused writes


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"a" * (limits.NOTE_BYTES + 1), errno.EFBIG),
        (b"caf\xe9 au lait", errno.EILSEQ),
        (b"token " + TOKEN.encode(), errno.EACCES),
    ],
    ids=["too long", "not UTF-8", "secret"],
)
class TestRefusedWrite:
    def test_is_refused_at_the_write_and_the_flush_repeats_it(self, S, api, data, code):
        (S / "n").write_text("head")
        fd = os.open(S / "n", WRITE | os.O_TRUNC)
        with errno_is(code):
            while data:
                data = data[os.write(fd, data) :]
        with errno_is(code):
            os.fsync(fd)
        with errno_is(code):
            os.close(fd)
        assert api.history("/n") == [("created", "head")]
        assert (S / "n").read_text() == "head"

    def test_leaves_no_half_written_note(self, S, api, data, code):
        (S / "n").write_text("head")
        fd = os.open(S / "n", APPEND)
        os.write(fd, b"good start ")
        with errno_is(code):
            os.write(fd, data)
        with errno_is(code):
            os.write(fd, b"more")
        with errno_is(code):
            os.close(fd)
        assert api.history("/n") == [("created", "head")]
        assert (S / "n").read_text() == "head"

    def test_makes_a_new_file_vanish(self, S, T, api, data, code):
        fd = os.open(S / "new", NEW)
        with errno_is(code):
            os.write(fd, data)
        with errno_is(code):
            os.close(fd)
        until_gone(S / "new")
        assert names(S) == names(T) == api.ls() == []

    def test_does_not_stop_the_next_opening(self, S, api, data, code):
        fd = os.open(S / "n", NEW)
        with errno_is(code):
            os.write(fd, data)
        with errno_is(code):
            os.close(fd)
        (S / "n").write_text("good")
        assert api.get("/n") == "good"

    def test_tells_the_shell(self, S, X, api, data, code):
        (X / "bad").write_bytes(data)
        done = sh('cat "$X/bad" > "$S/n"', S=S, X=X)
        assert done.returncode != 0
        assert os.strerror(code) in done.stderr
        done = sh('cp "$X/bad" "$S/n"', S=S, X=X)
        assert done.returncode != 0
        until_gone(S / "n")
        assert api.ls() == []


def until_gone(path: Path) -> None:
    until(lambda: not path.exists(), f"{path.name} is gone")
    assert path.name not in os.listdir(path.parent)


def test_a_text_of_the_largest_size_is_accepted_and_one_byte_more_is_not(S: Path, api: Api):
    (S / "n").write_bytes(b"a" * limits.NOTE_BYTES)
    fd = os.open(S / "n", APPEND)
    with errno_is(errno.EFBIG):
        os.write(fd, b"b")
    with errno_is(errno.EFBIG):
        os.close(fd)
    assert api.memory("/n")["content_size_bytes"] == limits.NOTE_BYTES


def test_a_write_far_behind_the_end_is_too_long(S: Path):
    (S / "n").write_text("x")
    fd = os.open(S / "n", WRITE)
    with errno_is(errno.EFBIG):
        os.pwrite(fd, b"x", 2**40)
    with errno_is(errno.EFBIG):
        os.close(fd)
    assert (S / "n").read_text() == "x"


def test_truncating_to_more_than_a_note_holds_is_refused(S: Path, api: Api):
    (S / "n").write_text("x")
    with errno_is(errno.EFBIG):
        os.truncate(S / "n", limits.NOTE_BYTES + 1)
    with opened(S / "n", WRITE) as fd, errno_is(errno.EFBIG):
        os.ftruncate(fd, limits.NOTE_BYTES + 1)
    assert (S / "n").read_text() == "x"
    assert len(api.versions("/n")) == 1


def test_a_character_may_be_split_over_two_writes(S: Path, api: Api):
    with opened(S / "n", NEW) as fd:
        for byte in "grüße €".encode():
            os.write(fd, bytes([byte]))
    assert api.get("/n") == "grüße €"


def test_half_a_character_at_the_end_is_refused_at_the_close(S: Path, T: Path, api: Api):
    (S / "n").write_text("head")
    fd = os.open(S / "n", WRITE | os.O_TRUNC)
    os.write(fd, "€".encode()[:2])
    with errno_is(errno.EILSEQ):
        os.close(fd)
    assert api.history("/n") == [("created", "head")]
    assert (S / "n").read_text() == (T / "n").read_text() == "head"


def test_a_secret_split_over_two_writes_is_refused(S: Path, api: Api):
    fd = os.open(S / "n", NEW)
    os.write(fd, f"token: {TOKEN[:20]}".encode())
    with errno_is(errno.EACCES):
        os.write(fd, TOKEN[20:].encode())
    with errno_is(errno.EACCES):
        os.close(fd)
    assert api.ls() == []


def test_a_refused_secret_is_kept_nowhere(S: Path, api: Api, daemon: Daemon):
    secret = "ghp_" + "Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8"
    done = sh('echo "token $TOKEN" > "$S/n"; echo "token $TOKEN" >> "$S/m"', S=S, TOKEN=secret)
    assert "Permission denied" in done.stderr
    assert refused(S) == []
    kept = [daemon.log_path, *daemon.config.data_dir.glob("*.mdb")]
    assert len(kept) > 1
    assert not [path for path in kept if secret.encode() in path.read_bytes()]


def test_a_refused_write_of_one_handle_leaves_the_other_handles_text(S: Path, api: Api):
    (S / "n").write_text("head\n")
    good, bad = os.open(S / "n", APPEND), os.open(S / "n", APPEND)
    os.write(good, b"good\n")
    with errno_is(errno.EILSEQ):
        os.write(bad, b"\xff")
    with errno_is(errno.EILSEQ):
        os.close(bad)
    os.close(good)
    assert api.get("/n") == "head\ngood\n"


# ------------------------------------------------------------------------------ shared buffers


def test_all_handles_of_a_file_share_one_buffer(S: Path, api: Api):
    with opened(S / "n", os.O_RDWR | os.O_CREAT) as one, opened(S / "n", os.O_RDWR) as two:
        os.pwrite(one, b"one", 0)
        assert os.pread(two, 9, 0) == b"one"
        os.pwrite(two, b"two", 3)
        assert os.pread(one, 9, 0) == b"onetwo"
        assert os.fstat(one).st_size == os.fstat(two).st_size == 6
    assert api.get("/n") == "onetwo"
    assert refused(S) == []


def test_a_file_never_conflicts_with_itself(S: Path, api: Api):
    (S / "n").write_text("base")
    with opened(S / "n", os.O_RDWR) as one, opened(S / "n", os.O_RDWR) as two:
        os.pwrite(one, b"1", 0)
        os.fsync(one)
        os.pwrite(two, b"2", 1)
        os.fsync(two)
        os.pwrite(one, b"3", 2)
    texts = [text for _, text in api.history("/n")]
    assert texts == ["base", "1ase", "12se", "123e"]
    assert refused(S) == []


def test_two_processes_that_append_through_one_mount_lose_nothing(S: Path, api: Api):
    script = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True); input()
for i in range(150): os.write(fd, b"%s %04d %s\\n" % (sys.argv[2].encode(), i, b"y" * 40))
os.close(fd); print("done", flush=True)
"""
    (S / "log").touch()
    with child(script, S / "log", "A") as one, child(script, S / "log", "B") as two:
        for process in (one, two):
            process.stdin.write("\n")
            process.stdin.flush()
        assert one.stdout.readline() == two.stdout.readline() == "done\n"
    lines = (S / "log").read_text().splitlines()
    for who in "AB":
        mine = [line for line in lines if line.startswith(who)]
        assert mine == [f"{who} {i:04} {'y' * 40}" for i in range(150)]
    assert len(lines) == 300


def test_append_by_the_shell_adds_lines(S: Path, api: Api):
    sh_ok('for i in 1 2 3; do echo "$i" >> "$S/n"; done', S=S)
    assert [text for _, text in api.history("/n")] == ["1\n", "1\n2\n", "1\n2\n3\n"]


def test_size_and_text_are_right_while_a_handle_is_dirty(S: Path):
    path = S / "grow"
    with path.open("w") as file:
        file.write("abc")
        file.flush()
        assert path.stat().st_size == 3
        os.listdir(S)
        assert path.stat().st_size == 3
        assert path.read_text() == "abc"
        listed = sh_ok('ls -l "$S"', S=S).split()
        assert listed[listed.index("grow") - 4] == "3"


def test_size_is_right_at_once_after_close(S: Path, X: Path):
    (X / "f").write_bytes(b"a" * 30_000)
    for number in range(10):
        os.listdir(S)
        sh_ok('cp "$X/f" "$S/$N"', S=S, X=X, N=f"c{number}")
        assert (S / f"c{number}").stat().st_size == 30_000
        with os.scandir(S) as found:
            assert all(entry.stat().st_size == 30_000 for entry in found)


def test_reading_on_while_another_process_saves_sees_whole_texts(S: Path):
    path = S / "value"
    path.write_text("A" * 100)
    stop, bad = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                text = path.read_text()
            except OSError as error:
                bad.append(repr(error))
                continue
            if len(text) != 100 or len(set(text)) != 1:
                bad.append(f"torn: {len(text)}")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(60):
        new = S / f".v{number}"
        new.write_text(chr(65 + number % 26) * 100)
        new.replace(path)
    stop.set()
    for reader in readers:
        reader.join()
    assert bad == []


# ------------------------------------------------------------------------------ creating


def test_exclusive_create_is_refused_when_the_name_is_taken(S: Path, T: Path):
    with opened(S / "lock", NEW | os.O_EXCL, 0o444) as fd:
        os.write(fd, b"obj")
    for path in (S / "lock", T / "lock"):
        with errno_is(errno.EEXIST):
            os.open(path, NEW | os.O_EXCL)
    assert (S / "lock").read_text() == "obj"
    (S / "lock").unlink()
    os.close(os.open(S / "lock", NEW | os.O_EXCL))


def test_a_file_created_for_reading_only_by_others_can_be_written(S: Path, api: Api):
    with opened(S / "ro", NEW | os.O_EXCL, 0o444) as fd:
        os.write(fd, b"obj")
    assert api.get("/ro") == "obj"
    assert stat.S_IMODE((S / "ro").stat().st_mode) == 0o444


def test_an_uncommitted_file_is_seen_in_its_own_task_only(S: Path, T: Path, api: Api):
    with opened(S / "new", NEW) as fd:
        assert names(S) == ["new"]
        assert names(T) == []
        assert not (T / "new").exists()
        os.write(fd, b"x")
    assert names(T) == ["new"]
    assert (T / "new").read_text() == "x"


def test_wrong_kinds_of_thing_get_posix_errors(S: Path):
    (S / "d").mkdir()
    (S / "f").write_text("x")
    with errno_is(errno.EISDIR):
        os.open(S / "d", WRITE)
    with errno_is(errno.ENOTDIR):
        os.open(S / "f" / "x", READ)
    with errno_is(errno.ENOTDIR):
        os.mkdir(S / "f" / "x")
    with errno_is(errno.ENOTDIR):
        os.rmdir(S / "f")
    with errno_is(errno.EISDIR):
        os.unlink(S / "d")
    with errno_is(errno.ENOENT):
        os.open(S / "none", READ)
    with errno_is(errno.ENOENT):
        os.open(S / "none" / "x", NEW)
    with errno_is(errno.EINVAL):
        os.readlink(S / "f")


def test_symlinks_hard_links_and_devices_are_not_permitted(S: Path):
    (S / "n").write_text("x")
    with errno_is(errno.EPERM):
        os.symlink("n", S / "link")
    with errno_is(errno.EPERM):
        os.link(S / "n", S / "hard")
    with errno_is(errno.EPERM):
        os.mkfifo(S / "pipe")
    with errno_is(errno.EPERM):
        os.mknod(S / "dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert names(S) == ["n"]


# ------------------------------------------------------------------------------ attributes


def test_chmod_is_kept_without_a_version_for_every_task(S: Path, T: Path, api: Api):
    (S / "n").write_text("x")
    (T / "n").stat()
    (S / "n").chmod(0o640)
    assert stat.S_IMODE((S / "n").stat().st_mode) == 0o640
    assert stat.S_IMODE((T / "n").stat().st_mode) == 0o640
    (S / "n").write_text("y")
    assert stat.S_IMODE((S / "n").stat().st_mode) == 0o640
    assert len(api.versions("/n")) == 2


def test_setuid_setgid_and_sticky_are_dropped(S: Path):
    (S / "n").write_text("#!/bin/sh\n")
    (S / "n").chmod(0o4755)
    assert stat.S_IMODE((S / "n").stat().st_mode) == 0o755
    (S / "d").mkdir()
    (S / "d").chmod(0o1777)
    assert stat.S_IMODE((S / "d").stat().st_mode) == 0o777


def test_utimens_is_kept_without_a_version(S: Path, T: Path, api: Api):
    (S / "n").write_text("x")
    for at_ns in (1_579_091_696_500_000_001, -86_400 * 10**9, 4_102_444_800 * 10**9):
        os.utime(S / "n", ns=(at_ns, at_ns))
        assert (S / "n").stat().st_mtime_ns == at_ns
        assert (T / "n").stat().st_mtime_ns == at_ns
    assert len(api.versions("/n")) == 1


def test_an_mtime_set_before_close_survives_the_close(S: Path, T: Path):
    at_ns = 1_579_091_696_500_000_000
    with opened(S / "n", NEW) as fd:
        os.write(fd, b"x")
        os.utime(fd, ns=(at_ns, at_ns))
    assert (S / "n").stat().st_mtime_ns == at_ns
    assert (T / "n").stat().st_mtime_ns == at_ns


def test_a_mode_set_before_close_survives_the_close(S: Path, T: Path):
    with opened(S / "n", NEW, 0o600) as fd:
        os.write(fd, b"x")
        os.fchmod(fd, 0o444)
    assert stat.S_IMODE((S / "n").stat().st_mode) == 0o444
    assert stat.S_IMODE((T / "n").stat().st_mode) == 0o444


def test_saving_moves_the_mtime_on(S: Path):
    (S / "n").write_text("x")
    os.utime(S / "n", ns=(10**9, 10**9))
    (S / "n").write_text("y")
    assert (S / "n").stat().st_mtime > 10**9


def test_a_folder_keeps_the_mtime_it_is_given(S: Path, T: Path):
    (S / "d").mkdir()
    os.utime(S / "d", (1_514_764_800, 1_514_764_800))
    assert (S / "d").stat().st_mtime == (T / "d").stat().st_mtime == 1_514_764_800


def test_cp_p_and_rsync_keep_times_and_rsync_sends_nothing_twice(S: Path, X: Path):
    sh_ok(
        """
        printf 'old\\n' > "$X/f"; touch -d '2020-01-15 12:34:56.5' "$X/f"
        cp -p "$X/f" "$S/f"
        [ "$(stat -c %Y "$S/f")" = "$(stat -c %Y "$X/f")" ]
        rsync -t "$X/f" "$S/r"
        [ "$(stat -c %Y "$S/r")" = "$(stat -c %Y "$X/f")" ]
        """,
        S=S,
        X=X,
    )
    assert sh_ok('rsync -ti "$X/f" "$S/r"', S=S, X=X) == ""


def test_cp_a_copies_a_folder_with_modes_and_times(S: Path, X: Path, api: Api):
    sh_ok(
        """
        mkdir -p "$X/src/sub"; echo a > "$X/src/a"; chmod 600 "$X/src/a"; echo b > "$X/src/sub/b"
        touch -d 2019-05-05 "$X/src/a" "$X/src/sub/b" "$X/src/sub"
        setfattr -n user.tag -v v1 "$X/src/a" || true
        cp -a "$X/src" "$S/copy"
        """,
        S=S,
        X=X,
    )
    for name in ("a", "sub/b", "sub"):
        assert (S / "copy" / name).stat().st_mtime == (X / "src" / name).stat().st_mtime
    assert stat.S_IMODE((S / "copy/a").stat().st_mode) == 0o600
    assert [len(api.versions(path)) for path in api.ls()] == [1, 1]


def test_mv_between_the_mount_and_a_disk_copies_and_removes(S: Path, X: Path, api: Api):
    sh_ok('echo m > "$X/a"; mv "$X/a" "$S/b"; mv "$S/b" "$X/c"', S=S, X=X)
    assert (X / "c").read_text() == "m\n"
    assert names(X) == ["c"]
    assert names(S) == api.ls() == []


def test_chown_to_oneself_succeeds_and_to_others_is_not_permitted(S: Path):
    (S / "n").write_text("x")
    (S / "d").mkdir()
    for path in (S / "n", S / "d"):
        found = path.stat()
        os.chown(path, found.st_uid, found.st_gid)
        os.chown(path, -1, -1)
        with errno_is(errno.EPERM):
            os.chown(path, 12_345, -1)
        with errno_is(errno.EPERM):
            os.chown(path, -1, 12_345)


def test_files_are_owned_by_the_daemon_by_default(S: Path):
    (S / "n").write_text("x")
    found = (S / "n").stat()
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    assert S.stat().st_uid == os.getuid()


def test_xattrs_show_id_version_and_sha256(S: Path, api: Api):
    (S / "n").write_text("x")
    note = api.memory("/n")
    assert os.getxattr(S / "n", "user.memfs.id").decode() == note["id"]
    assert os.getxattr(S / "n", "user.memfs.version").decode() == note["memory_version_id"]
    assert os.getxattr(S / "n", "user.memfs.sha256").decode() == note["content_sha256"]
    (S / "n").write_text("y")
    assert os.getxattr(S / "n", "user.memfs.version").decode() != note["memory_version_id"]


def test_other_xattrs_are_not_supported(S: Path):
    (S / "n").write_text("x")
    with errno_is(errno.ENOTSUP):
        os.setxattr(S / "n", "user.tag", b"v")
    with errno_is(errno.ENOTSUP):
        os.getxattr(S / "n", "user.tag")
    with errno_is(errno.ENOTSUP):
        os.removexattr(S / "n", "user.tag")
    with errno_is(errno.ENODATA):
        os.getxattr(S / "n", "user.memfs.nothing")


def test_ids_cannot_be_set_by_xattr(S: Path):
    (S / "n").write_text("x")
    before = note_id(S / "n")
    with errno_is(errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL):
        os.setxattr(S / "n", "user.memfs.id", b"mem_x")
    assert note_id(S / "n") == before


# ------------------------------------------------------------------------------ mmap


def test_private_and_shared_maps_work(S: Path, T: Path, api: Api):
    (S / "m").write_bytes(b"hello world\n" * 500)
    with opened(S / "m", os.O_RDWR) as fd:
        with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as private:
            assert private[:5] == b"hello"
        with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED) as shared:
            shared[0:5] = b"HELLO"
            shared[4096:4101] = b"PAGE2"
            shared.flush()
    data = (S / "m").read_bytes()
    assert (data[:5], data[4096:4101], len(data)) == (b"HELLO", b"PAGE2", 6000)
    assert (T / "m").read_bytes() == data
    assert api.get("/m") == data.decode()


def test_a_write_to_a_map_after_the_last_close_is_kept(S: Path, T: Path, api: Api):
    (S / "m").write_bytes(b"hello world\n" * 500)
    script = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED)
os.close(fd)
m[0:5] = b"LATER"
m[5000:5003] = b"END"
"""
    done = python(script, S / "m")
    assert done.returncode == 0, done.stderr
    until(lambda: (api.get("/m") or "").startswith("LATER"), "the map's text is committed")
    assert (S / "m").read_bytes()[5000:5003] == b"END"
    assert (T / "m").read_bytes() == (S / "m").read_bytes()


def test_a_private_map_of_an_old_text_stays_readable_after_an_api_save(S: Path, api: Api):
    (S / "m").write_text("A" * 5000)
    with opened(S / "m", READ) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as old:
        assert old[:1] == b"A"
        api.put("/m", "B" * 5000)
        assert set(bytes(old)) in ({65}, {66})
        assert (S / "m").read_text() == "B" * 5000


# ------------------------------------------------------------------------------ locks, statfs

LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try: getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: print("busy")
else: print("free")
"""


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_locks_of_one_process_keep_another_out(S: Path, call: str):
    (S / "n").write_text("x")
    with (S / "n").open("r+") as file:
        getattr(fcntl, call)(file, fcntl.LOCK_EX)
        assert python(LOCK, S / "n", call).stdout == "busy\n"
        getattr(fcntl, call)(file, fcntl.LOCK_UN)
        assert python(LOCK, S / "n", call).stdout == "free\n"


def test_statfs_is_never_zero(S: Path):
    found = os.statvfs(S)
    assert min(found.f_bsize, found.f_frsize, found.f_blocks, found.f_bavail, found.f_bfree) > 0
    assert min(found.f_files, found.f_ffree, found.f_favail) > 0
    assert found.f_namemax == 255
    assert found.f_bavail <= found.f_blocks
    disk = os.statvfs(S.parents[5])
    assert found.f_bavail * found.f_frsize <= disk.f_bavail * disk.f_frsize * 1.1
    sh_ok("""df -P "$S" | tail -1 | awk '{exit !($2>0 && $4>0)}'""", S=S)


def test_the_mount_is_nosuid_nodev_noexec(S: Path, R: Path):
    for path in (S, R):
        flags = os.statvfs(path).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
        assert flags & os.ST_NOEXEC
    assert os.statvfs(R).f_flag & os.ST_RDONLY


def test_a_file_behind_a_loaded_page_reads_back_after_dropping_it(S: Path):
    data = bytes(range(32, 127)) * 500
    (S / "n").write_bytes(data)
    with opened(S / "n", READ) as fd:
        for offset in (0, 4096, 40_000):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 5000, offset) == data[offset : offset + 5000]


def test_fallocate_and_copy_file_range_work_or_say_they_cannot(S: Path):
    (S / "a").write_text("abc")
    with opened(S / "a", os.O_RDWR) as fd:
        os.posix_fallocate(fd, 0, 10)
    assert (S / "a").read_bytes() == b"abc".ljust(10, b"\0")
    with opened(S / "a", READ) as source, opened(S / "b", NEW) as target:
        with suppress(OSError):  # the kernel may not know how to between two FUSE files
            os.copy_file_range(source, target, 10)
        os.pwrite(target, b"abc", 0)
    assert (S / "b").read_bytes().startswith(b"abc")
