"""Tasks and their folders on a real mount: ends, owners, read-only attachments (DESIGN 2, 3)."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount import (
    Api,
    Daemon,
    child,
    end_task,
    errno_is,
    make_task,
    names,
    opened,
    python,
    sh,
    task_of,
    until,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT


def test_a_task_sees_its_workers_own_store_and_what_it_attaches(S: Path, client):
    assert names(S.parent) == ["shared", "wren"]
    assert S.parent.parent.parent.name == "tasks"
    assert S.parts[-5:] == (".little-worker", "tasks", task_of(S), "memory", "shared")


def test_two_tasks_of_a_worker_share_its_own_store(client, api: Api):
    one, first = make_task(client, api, "heron")
    two, second = make_task(client, api, "heron")
    (first.parent / "heron" / "n").write_text("x")
    assert (second.parent / "heron" / "n").read_text() == "x"
    end_task(client, one)
    end_task(client, two)


def test_the_end_of_a_task_takes_its_folders_and_leaves_the_notes(S, T, api, client, daemon):
    (S / "n").write_text("x")
    (S / "d").mkdir()
    end_task(client, task_of(S))
    assert not S.parent.parent.exists()
    assert not [mount for mount in daemon.mounts() if task_of(S) in Path(mount).parts]
    assert api.get("/n") == (T / "n").read_text() == "x"
    assert names(T) == ["d", "n"]


def test_other_files_in_the_tasks_folder_stay(S: Path, client):
    (S.parent.parent / "work.txt").write_text("the task's own")
    (S.parent / "beside.txt").write_text("y")
    end_task(client, task_of(S))
    assert not S.exists()
    assert (S.parent.parent / "work.txt").read_text() == "the task's own"
    assert (S.parent / "beside.txt").read_text() == "y"


def test_the_end_commits_what_is_written_and_not_closed(S, T, api, client, daemon: Daemon):
    daemon.expected = ["busy, detached lazily"]
    fd = os.open(S / "n", NEW)
    os.write(fd, b"tail")
    end_task(client, task_of(S))
    try:
        assert api.get("/n") == (T / "n").read_text() == "tail"
    finally:
        os.close(fd)


def test_a_busy_folder_is_taken_away_and_its_holder_gets_errors(S, T, api, client, daemon):
    daemon.expected = ["busy, detached lazily"]
    script = """
import os, sys
os.chdir(sys.argv[1])
fd = os.open("n", os.O_RDWR)
started = os.open("started", os.O_WRONLY | os.O_CREAT)
print("ready", flush=True); input()
def late():
    os.write(fd, b"late")
    os.fsync(fd)
def new():
    os.write(started, b"late")
    os.fsync(started)
for call in (lambda: open("other", "w"), late, new, lambda: os.listdir(".")):
    try: call(); print("ok", flush=True)
    except OSError as error: print(error.errno, flush=True)
"""
    (S / "n").write_text("x")
    with child(script, S) as process:
        end_task(client, task_of(S))
        assert not S.exists()
        process.stdin.write("\n")
        process.stdin.flush()
        said = [process.stdout.readline().strip() for _ in range(4)]
    assert "ok" not in said[:3], "what it writes now is told to be refused"
    assert api.get("/n") == (T / "n").read_text() == "x"
    assert names(T) == ["n", "started"], "it was made before the end"
    assert api.get("/started") == ""


def test_ending_a_task_twice_changes_nothing(S: Path, client):
    end_task(client, task_of(S))
    end_task(client, task_of(S))


def test_a_name_that_a_store_gets_later_changes_no_folder(S: Path, client, api: Api):
    client.post(f"/v1/memory_stores/{api.store_id}", json={"name": "Renamed"}).raise_for_status()
    (S / "n").write_text("x")
    assert S.name == "shared"
    task_id, path = make_task(client, api, "wren")
    assert path.name == "renamed"
    end_task(client, task_id)


def test_an_archived_store_can_be_read_and_emptied_and_not_written(S: Path, client, api: Api):
    (S / "n").write_text("x")
    client.post(f"/v1/memory_stores/{api.store_id}/archive").raise_for_status()
    assert (S / "n").read_text() == "x"
    with errno_is(errno.EROFS):
        os.open(S / "n", os.O_WRONLY | os.O_TRUNC)
    with errno_is(errno.EROFS):
        os.open(S / "new", NEW)
    with errno_is(errno.EROFS):
        (S / "d").mkdir()
    with errno_is(errno.EROFS):
        (S / "n").rename(S / "m")
    (S / "n").unlink()
    assert names(S) == api.ls() == []


def test_a_store_archived_while_a_file_is_written_refuses_at_close(S: Path, client, api: Api):
    (S / "n").write_text("x")
    fd = os.open(S / "n", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"more")
    client.post(f"/v1/memory_stores/{api.store_id}/archive").raise_for_status()
    with errno_is(errno.EROFS):
        os.close(fd)
    assert api.get("/n") == (S / "n").read_text() == "x"


def test_a_deleted_store_leaves_its_tasks_an_errno_and_the_daemon_alive(client, api: Api, task):
    path = task("wren")
    (path / "n").write_text("x")
    (path / "d").mkdir()
    answer = client.delete(f"/v1/memory_stores/{api.store_id}")
    assert answer.status_code in (200, 409), answer.text
    if answer.status_code == 200:
        for call in (
            lambda: (path / "n").read_text(),
            lambda: (path / "new").write_text("x"),
            lambda: (path / "d" / "new").write_text("x"),
            lambda: (path / "e").mkdir(),
        ):
            with errno_is(errno.ENOENT, errno.ESTALE, errno.EROFS):
                call()
    assert client.get("/healthz").status_code == 200


# ------------------------------------------------------------------------------ read-only


def test_everything_that_writes_is_erofs_on_a_read_only_attachment(S: Path, R: Path, api: Api):
    (S / "n").write_text("x")
    (S / "d").mkdir()
    calls = {
        "open": lambda: os.open(R / "n", os.O_WRONLY),
        "open for both": lambda: os.open(R / "n", os.O_RDWR),
        "append": lambda: os.open(R / "n", os.O_WRONLY | os.O_APPEND),
        "truncate at open": lambda: os.open(R / "n", os.O_RDONLY | os.O_TRUNC),
        "truncate": lambda: os.truncate(R / "n", 0),
        "create": lambda: os.open(R / "new", NEW),
        "create scratch": lambda: os.open(R / "new.tmp", NEW),
        "create exclusively": lambda: os.open(R / "new", NEW | os.O_EXCL),
        "mkdir": lambda: (R / "e").mkdir(),
        "rmdir": lambda: (R / "d").rmdir(),
        "unlink": lambda: (R / "n").unlink(),
        "rename": lambda: (R / "n").rename(R / "m"),
        "symlink": lambda: os.symlink("n", R / "l"),
        "link": lambda: os.link(R / "n", R / "l"),
        "mknod": lambda: os.mkfifo(R / "p"),
        "chmod": lambda: (R / "n").chmod(0o600),
        "chown": lambda: os.chown(R / "n", os.getuid(), os.getgid()),
        "utime": lambda: os.utime(R / "n"),
        "setxattr": lambda: os.setxattr(R / "n", "user.memfs.pinned", b"1"),
    }
    for what, call in calls.items():
        with errno_is(errno.EROFS):
            call()
            raise AssertionError(what)
    assert (R / "n").read_text() == "x"
    assert names(R) == ["d", "n"]
    assert len(api.all_versions()) == 1


def test_the_daemon_itself_refuses_when_only_it_stands_in_the_way(S, R, api, daemon: Daemon):
    """As for a bind whose read-only flag is missing: through the private mount, as root."""
    (S / "n").write_text("x")
    (S / "d").mkdir()
    number = python_mount_number(R)
    inside = daemon.config.mount_dir / number
    assert (inside / "n").read_text() == "x"
    for call in (
        lambda: os.open(inside / "n", os.O_RDONLY | os.O_TRUNC),
        lambda: os.open(inside / "n", os.O_WRONLY),
        lambda: os.truncate(inside / "n", 0),
        lambda: os.open(inside / "new", NEW),
        lambda: os.open(inside / "new.tmp", NEW),
        lambda: (inside / "e").mkdir(),
        lambda: (inside / "d").rmdir(),
        lambda: (inside / "n").unlink(),
        lambda: (inside / "n").rename(inside / "m"),
        lambda: (inside / "n").chmod(0o600),
        lambda: os.utime(inside / "n"),
    ):
        with errno_is(errno.EROFS):
            call()
    assert len(api.all_versions()) == 1


def python_mount_number(path: Path) -> str:
    """Return which attachment is bound at *path*: its folder in the private mount."""
    from daemon.mount import read_mounts

    return next(m.root.strip("/") for m in reversed(read_mounts()) if m.path == path)


def test_a_read_only_task_sees_saves_at_once(S: Path, R: Path):
    for number in range(5):
        (S / "n").write_text(f"{number}")
        assert (R / "n").read_text() == f"{number}"


# ------------------------------------------------------------------------------ owners


def test_a_task_with_an_owner_has_a_private_folder_and_owned_files(task, api: Api, S: Path):
    mine = task("crow", owner={"uid": 12_345, "gid": 23_456})
    api.put("/n", "x")
    folder = mine.parent.parent.stat()
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert folder.st_uid == 12_345
    for path in (mine, mine / "n"):
        assert (path.stat().st_uid, path.stat().st_gid) == (12_345, 23_456)
    assert (S / "n").stat().st_uid == os.getuid()


AS_USER = """
import os, sys
os.setgroups([]); os.setgid(23456); os.setuid(12345)
for what in sys.argv[1:]:
    try: exec(what); print("ok")
    except OSError as error: print(error.errno)
"""


def test_the_owner_can_work_and_others_cannot_enter(task, api: Api, S: Path, daemon: Daemon):
    mine = task("crow", owner={"uid": 12_345, "gid": 23_456})
    for folder in daemon.workspace.parents:  # pytest's folders are root's
        if not os.stat(folder).st_mode & 0o001:
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
    os.chmod(daemon.workspace, 0o755)
    done = python(
        AS_USER,
        f"open({str(mine / 'n')!r}, 'w').write('by the owner')",
        f"os.mkdir({str(mine / 'd')!r})",
        f"os.chown({str(mine / 'n')!r}, 12345, 23456)",
        f"os.chmod({str(mine / 'n')!r}, 0o600)",
        f"os.utime({str(mine / 'n')!r})",
        f"os.rename({str(mine / 'n')!r}, {str(mine / 'd' / 'm')!r})",
        f"os.listdir({str(S)!r})",
        f"os.listdir({str(daemon.config.mount_dir)!r})",
    )
    assert done.stdout.split() == ["ok"] * 6 + ["13"] * 2, done
    assert api.get("/d/m") == "by the owner"
    assert stat.S_IMODE((S / "d" / "m").stat().st_mode) == 0o600


def test_permission_bits_count_for_users_who_are_not_root(task, api: Api, daemon: Daemon):
    mine = task("crow", owner={"uid": 12_345, "gid": 23_456})
    for folder in daemon.workspace.parents:
        if not os.stat(folder).st_mode & 0o001:
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
    os.chmod(daemon.workspace, 0o755)
    api.put("/n", "x")
    (mine / "n").chmod(0o444)
    done = python(AS_USER, f"open({str(mine / 'n')!r}).read()", f"open({str(mine / 'n')!r}, 'w')")
    assert done.stdout.split() == ["ok", "13"], done
    assert api.get("/n") == "x"


# ------------------------------------------------------------------------------ status


def test_status_names_every_mount_as_alive(S: Path, T: Path, client):
    found = client.get("/v1/status").raise_for_status().json()
    mounts = {row["path"]: row["alive"] for row in found["mounts"]}
    assert mounts[str(S)] is True
    assert mounts[str(T)] is True


def test_open_files_and_inodes_do_not_grow(S: Path, T: Path, client):
    def status() -> dict:
        return client.get("/v1/status").raise_for_status().json()

    def work() -> None:
        for number in range(30):
            (S / f"n{number}").write_text("x")
            (T / f"n{number}").read_text()
            (S / f"n{number}.tmp").write_text("x")
            (S / f"n{number}.tmp").replace(S / f"n{number}")
            (T / f"n{number}").unlink()

    work()
    sh("sync; echo 2 > /proc/sys/vm/drop_caches")
    before = status()
    for _ in range(3):
        work()
    sh("sync; echo 2 > /proc/sys/vm/drop_caches")
    until(lambda: status()["open_files"] <= before["open_files"], "every file is released")
    until(lambda: status()["inodes"] <= before["inodes"] + 10, "inodes are forgotten")


def test_a_held_file_of_an_ended_task_harms_nobody(S, T, api, client, daemon: Daemon):
    daemon.expected = ["busy, detached lazily"]
    (S / "n").write_text("x")
    with opened(S / "n", os.O_RDONLY) as fd:
        end_task(client, task_of(S))
        assert os.pread(fd, 9, 0) in (b"x", b"")
        (T / "n").write_text("y")
    assert api.get("/n") == "y"


def test_a_text_that_ends_within_a_character_as_its_task_ends_is_kept_up_to_there(
    S: Path, T: Path, client, daemon: Daemon
):
    daemon.expected = ["ended within a character", "busy"]
    with opened(S / "n.md", os.O_WRONLY | os.O_CREAT) as fd:
        os.write(fd, "kept up to h€re: ".encode() + "€".encode()[:2])
        end_task(client, task_of(S))
        with suppress(OSError):
            os.close(os.dup(fd))
    until(lambda: (T / "n.md").exists(), "the note")
    assert (T / "n.md").read_text() == "kept up to h€re: "
