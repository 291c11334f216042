"""Stopping, crashing and starting again under a real mount (DESIGN 1, 3, 5; issue 2: Process)."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount import (
    ROOT,
    SERVE,
    Api,
    Daemon,
    child,
    end_task,
    errno_is,
    make_store,
    make_task,
    names,
    note_id,
    refused,
    served,
    task_of,
)

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT


class World:
    """A daemon, one store, two tasks."""

    def __init__(self, daemon: Daemon, api: Api, s: Path, t: Path) -> None:
        self.daemon, self.api, self.S, self.T = daemon, api, s, t


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A daemon for this test alone, since it is stopped or killed."""
    with served(tmp_path / "ws") as daemon, daemon.client() as client:
        api = make_store(client)
        yield World(
            daemon, api, make_task(client, api, "wren")[1], make_task(client, api, "robin")[1]
        )


def test_what_was_saved_is_there_after_a_restart(world: World):
    S, T, api = world.S, world.T, world.api
    (S / "d" / "empty").mkdir(parents=True)
    (S / "d" / "n").write_text("text")
    (S / "d" / "n").chmod(0o640)
    os.utime(S / "d" / "n", ns=(10**18 + 1, 10**18 + 1))
    os.utime(S / "d" / "empty", (10**9, 10**9))
    (S / "touched").touch()
    (S / "scratch.tmp").write_text("scratch")
    before = note_id(S / "d" / "n")
    world.daemon.restart()
    for root in (S, T):
        assert names(root) == ["d", "touched"]
        assert names(root / "d") == ["empty", "n"]
        found = (root / "d" / "n").stat()
        assert found.st_mode & 0o777 == 0o640
        assert found.st_mtime_ns == 10**18 + 1
        assert (root / "d" / "empty").stat().st_mtime == 10**9
        assert (root / "d" / "n").read_text() == "text"
    assert note_id(S / "d" / "n") == before
    (S / "d" / "empty").rmdir()
    (S / "d" / "n").write_text("goes on")
    assert api.history("/d/n") == [("created", "text"), ("modified", "goes on")]


def test_sigterm_commits_what_is_written_and_not_closed(world: World):
    world.daemon.expected = ["busy", "still open"]
    script = """
import os, sys
os.chdir(sys.argv[1])
fd = os.open("open.md", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"tail")
print("ready", flush=True); input()
"""
    with child(script, world.S) as process:
        assert world.daemon.stop() == 0
        said = [line for line in world.daemon.log_lines() if line["level"] != "info"]
        assert str(process.pid) in str(said), "it says which process holds the mount"
    assert world.daemon.mounts() == []
    world.daemon.start()
    assert (world.S / "open.md").read_text() == "tail"
    assert world.api.get("/open.md") == "tail"


def test_a_file_made_and_never_written_is_an_empty_note_after_a_stop(world: World):
    world.daemon.expected = ["busy", "still open", "still in use"]
    (world.S / "old").write_text("old")
    (world.S / "waiting").write_text("waiting")
    os.rename(world.S / "waiting", world.S / "waiting~")
    script = """
import os, sys
os.chdir(sys.argv[1])
for name in ("new.md", "old", "waiting", "new.tmp"):
    os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
print("ready", flush=True); input()
"""
    with child(script, world.S):
        assert world.daemon.stop() == 0
    world.daemon.start()
    for root in (world.S, world.T):
        assert {name: (root / name).read_text() for name in names(root)} == {
            "new.md": "",
            "old": "old",
            "waiting": "waiting",
        }
    assert world.api.history("/new.md") == [("created", "")]
    assert (world.S / "new.md").stat().st_mode & 0o777 == 0o640


def test_a_crash_between_truncate_and_write_leaves_the_old_note(world: World):
    world.daemon.expected = ["removed a dead mount"]
    (world.S / "n").write_text("old")
    fd = os.open(world.S / "n", os.O_WRONLY | os.O_TRUNC)
    world.daemon.kill9()
    with errno_is(*DEAD):
        os.write(fd, b"new")
    with suppress(OSError):
        os.close(fd)
    world.daemon.start()
    assert (world.S / "n").read_text() == world.api.get("/n") == "old"


DEAD = (107, 103)  # ENOTCONN, ECONNABORTED


def test_a_crash_leaves_all_that_was_closed_and_the_next_start_mounts_again(world: World):
    world.daemon.expected = ["removed a dead mount"]
    S, T, api = world.S, world.T, world.api
    for number in range(20):
        (S / f"{number}").write_text(f"{number}")
    fd = os.open(S / "synced", NEW)
    os.write(fd, b"synced")
    os.fsync(fd)
    os.write(fd, b" and not")
    mounts = sorted(world.daemon.mounts())
    world.daemon.kill9()
    with errno_is(*DEAD):
        os.stat(S)
    world.daemon.start()
    with suppress(OSError):
        os.close(fd)
    assert sorted(world.daemon.mounts()) == mounts, "none stacked, none missing"
    for root in (S, T):
        assert {name: (root / name).read_text() for name in names(root)} == {
            **{f"{number}": f"{number}" for number in range(20)},
            "synced": "synced",
        }
    assert len(api.ls()) == 21


def test_crashes_do_not_pile_up_mounts(world: World):
    world.daemon.expected = ["removed a dead mount"]
    mounts = sorted(world.daemon.mounts())
    for _ in range(2):
        world.daemon.kill9()
        world.daemon.start()
        assert sorted(world.daemon.mounts()) == mounts


def test_a_note_in_waiting_is_back_after_a_crash(world: World):
    world.daemon.expected = ["removed a dead mount"]
    (world.S / "n").write_text("one")
    os.rename(world.S / "n", world.S / "n~")
    world.daemon.kill9()
    world.daemon.start()
    assert names(world.S) == ["n"]
    assert (world.S / "n").read_text() == "one"


def test_refused_texts_survive_a_restart(world: World):
    (world.S / "n").write_text("base")
    fd = os.open(world.S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    world.api.put("/n", "theirs")
    with errno_is(116):
        os.close(fd)
    world.daemon.restart()
    assert [path.read_text() for path in refused(world.S)] == ["MINE"]


def test_tasks_that_ended_are_not_mounted_again(world: World):
    with world.daemon.client() as client:
        client.post(f"/v1/tasks/{task_of(world.T)}/end").raise_for_status()
    world.daemon.restart()
    assert not world.T.exists()
    assert names(world.S) == []


def test_a_second_daemon_on_the_workspace_refuses_and_names_the_first(world: World):
    done = subprocess.run(
        [sys.executable, "-c", SERVE.format(patch=""), world.daemon.workspace],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert re.search(rf"\b{world.daemon.pid}\b", done.stderr), done.stderr
    (world.S / "n").write_text("the first one goes on")
    assert world.api.get("/n") == "the first one goes on"


def test_stopping_while_clients_read_and_write_ends_in_order(world: World):
    world.daemon.expected = ["busy", "still open"]
    script = """
import os, sys
print("ready", flush=True)
number = 0
try:
    while True:
        number += 1
        with open(sys.argv[1] + f"/{sys.argv[2]}", "w") as file: file.write(f"{number}")
        print(number, flush=True)
except OSError as error: print("end", error.errno, flush=True)
"""
    with child(script, world.S, "a") as one, child(script, world.T, "b") as two:
        for process in (one, two):
            for _ in range(20):
                process.stdout.readline()
        assert world.daemon.stop() == 0
        last = {}
        for name, process in (("a", one), ("b", two)):
            for line in process.stdout:
                if line.startswith("end"):
                    break
                last[name] = line.strip()
    world.daemon.start()
    for name, saved in last.items():
        assert int(world.api.get(f"/{name}")) >= int(saved), "closed, so saved"


def test_the_log_is_json_and_holds_no_texts(world: World):
    (world.S / "n").write_text("unmistakable words")
    world.daemon.restart()
    text = world.daemon.log_path.read_text()
    assert "unmistakable" not in text
    for line in text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("name", ["memory", "memory.going"])
def test_folders_of_a_task_that_ended_as_the_daemon_was_killed_go_at_the_next_start(
    world: World, name: str
):
    world.daemon.expected = ["removed a dead mount"]
    task = world.S.parents[1]
    with world.daemon.client() as client:
        end_task(client, task.name)
    assert not task.exists()
    world.daemon.kill9()
    (task / name / world.S.name).mkdir(parents=True)
    world.daemon.start()
    assert not task.exists()
    world.S.mkdir(parents=True)  # as an agent does that makes its folder before each write
    (world.S / "late.md").write_text("gets no versions")
    with world.daemon.client() as client:
        problems = client.get("/v1/status").json()["problems"]
    assert any(str(world.S) in problem for problem in problems)
    world.daemon.restart()
    assert (world.S / "late.md").read_text() == "gets no versions"
