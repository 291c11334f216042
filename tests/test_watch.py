"""`memfs watch` as a process against a daemon that comes and goes."""

import json
import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.http.bounds import Bounds
from tests.served import Served, serving

ROOT = Path(__file__).parents[1]
QUICK = Bounds(heartbeat_s=0.2)


class Watch:
    """A running `memfs watch`; lines come with a deadline."""

    def __init__(self, workspace: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "daemon.cli", "--workspace", str(workspace), "watch", *args],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # select does not see what a buffer holds
            env=os.environ | {"TZ": "UTC"},
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def line(self) -> str:
        ready, _, _ = select.select([self.out], [], [], 30)
        assert ready, "nothing came"
        return self.out.readline().decode()

    def rows(self, count: int) -> list[Any]:
        return [json.loads(self.line()) for _ in range(count)]

    def end(self) -> tuple[int, str]:
        """Wait for its end and return exit code and standard error."""
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err.decode()


@contextmanager
def watching(workspace: Path, *args: str) -> Iterator[Watch]:
    watch = Watch(workspace, *args)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.communicate(timeout=30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "ws", bounds=QUICK) as one:
        yield one


def test_watch_shows_changes_of_the_stores_it_was_told(served: Served) -> None:
    store, other = served.store("one"), served.store("two")
    since = served.service.feed.seq
    other.write("/no")
    note = store.write("/yes")
    store.call("POST", f"/memories/{note['id']}", {"path": "/new"})
    with watching(served.config.workspace, "one", "--since", str(since)) as watch:
        first, second = watch.line(), watch.line()
        assert first.split()[0] == str(since + 2)
        who = ["user", pwd.getpwuid(7).pw_name]  # as Served says
        named = ["one", f"({store.id})"]
        assert first.split()[4:] == ["created", *named, *who, "/yes"]
        assert second.split()[4:] == ["modified", *named, *who, "/yes", "->", "/new"]
        watch.process.send_signal(signal.SIGINT)
        assert watch.end() == (0, "")


def test_watch_says_what_was_done_to_stores_tasks_and_keys(served: Served) -> None:
    store = served.store("old")
    with watching(served.config.workspace, "--since", str(served.service.feed.seq)) as watch:
        store.write("/a")
        assert watch.line()  # it knows the store by its old name now
        served.call("POST", f"memory_stores/{store.id}", {"name": "new"})

        def said() -> str:
            return " ".join(watch.line().split()[4:])

        who = f"user {pwd.getpwuid(7).pw_name}"
        assert said() == f"store modified new ({store.id}) {who} old -> new"
        served.call("DELETE", f"memory_stores/{store.id}")
        assert said() == f"store deleted new ({store.id}) {who} new"
        served.call("POST", "tasks", {"id": "t", "worker": "Ada"})
        assert [said().split(" Ada ")[0] for _ in range(3)] == [
            *("store created", "worker created", "task created"),
        ]
        served.call("POST", "tasks/t/end")
        assert said().startswith("task ended Ada (memstore_")
        key = served.call("POST", "keys", {"power": "person"})
        served.call("POST", f"keys/{key['id']}/revoke")
        assert said() == f"key created - {who} {key['id']}"
        assert said() == f"key revoked - {who} {key['id']}"


def test_watch_loses_and_repeats_no_row_when_the_daemon_restarts(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    with serving(workspace, bounds=QUICK) as served:
        first = served.service.feed.seq
    served = Served(workspace, bounds=QUICK)
    try:
        with watching(workspace, "--json", "--since", str(first)) as watch:
            seqs: list[int] = []
            for _ in range(4):
                served.store()
                seqs += [row["seq"] for row in watch.rows(1)]
                served.close()
                served = Served(workspace, bounds=QUICK)
            assert seqs == list(range(first + 1, first + 5))
            watch.process.send_signal(signal.SIGINT)
            assert watch.end() == (0, "")
    finally:
        served.close()


def test_watch_ends_when_nobody_reads_it(served: Served) -> None:
    with watching(served.config.workspace, "--since", "0") as watch:
        served.store()
        assert watch.line()
        watch.out.close()  # nothing more happens: it must notice by itself
        assert watch.process.wait(30) == 0
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == b""


def test_watch_says_why_it_cannot(tmp_path: Path, served: Served) -> None:
    with watching(served.config.workspace, "nope") as watch:
        assert watch.end()[0] == 4
    with watching(served.config.workspace, "--since", "99999") as watch:
        code, err = watch.end()
        assert code == 5
        assert "--since 99999: there is no such change yet, the newest is " in err
        assert "after" not in err
    (tmp_path / "other").mkdir()
    with watching(tmp_path / "other") as watch:
        assert watch.end()[0] == 3
