"""SIGKILL in the middle of writes: every save that was promised is there (DESIGN 3, SEMANTICS).

This shows that saves are atomic and that nothing promised lives in the daemon only. It does not
show that they outlive a power cut: that takes a block device that drops what was not synced.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from memfs.store.check import check
from memfs.store.env import Env
from tests.mount import Api, Daemon, make_store, make_task, served, until

pytestmark = pytest.mark.fuse

WRITER = Path(__file__).with_name("crash_writer.py")
KINDS = ("rewrite", "append", "replace", "patch")  # the last one writes through a second task
LATEST_S = 0.6  # after the first promises of all writers
MOUNTS = 5  # the connection, and for two tasks the store and the worker's own


@dataclass
class File:
    """What a writer said about one note, and what was found of it."""

    said: list[tuple[str, bool]] = field(default_factory=list)  # sha256, whether it was promised
    found: int = 0  # how many of what was said are accounted for
    head: str = ""  # the newest of what was found


@dataclass
class Totals:
    kills: int = 0
    promises: int = 0
    versions: int = 0
    unpromised: int = 0
    stuck: int = 0


class Crashes:
    """One workspace that is killed again and again, with the same tasks and notes."""

    def __init__(self, daemon: Daemon, folder: Path, seed: int) -> None:
        self.daemon, self.folder = daemon, folder
        self.random = random.Random(seed)
        self.totals = Totals()
        self.files: dict[str, File] = {}
        self.newest: str | None = None  # the version up to which all is checked
        with daemon.client() as client:
            self.store_id = make_store(client).store_id
            made = [make_task(client, self.api(client), "wren") for _ in range(2)]
        self.mounts = [path for _, path in made]

    def api(self, client: httpx.Client) -> Api:
        return Api(client, self.store_id)

    def crash(self) -> None:
        """Write, kill, check what is on disk, start, check what is shown."""
        with ExitStack() as stack:
            writers = [self.start_writer(kind, stack) for kind in KINDS]
            stack.callback(lambda: [process.kill() for process, _ in writers])
            until(
                lambda: all(b"kept " in path.read_bytes() for _, path in writers),
                "every writer was promised something",
                30,
            )
            delay = self.random.uniform(0, LATEST_S)
            try:
                writers[0][0].wait(delay)
            except subprocess.TimeoutExpired:
                pass
            else:
                raise AssertionError("a writer gave up before the crash")
            self.kill()
            for process, path in writers:
                _, errors = process.communicate(timeout=30)
                assert process.returncode == 0, errors.decode()
                self.listen(path)
        self.totals.kills += 1
        with closing(Env(self.daemon.config.data_dir, self.daemon.config.map_size_bytes)) as env:
            assert check(env) == []
        assert self.daemon.mounts(), "the mounts did not stay, dead"
        self.daemon.start()
        assert len(self.daemon.mounts()) == MOUNTS, "a mount is missing or stacked"
        self.check()

    def kill(self) -> None:
        """SIGKILL the daemon; its end must free everybody who waits for it.

        It does not while its notifier waits for a folder that a waiting rename has locked: then
        not even the kernel's end of the connection is closed.
        """
        os.kill(self.daemon.pid, signal.SIGKILL)
        try:
            self.daemon.kill9()
        except subprocess.TimeoutExpired:
            self.totals.stuck += 1
            subprocess.run(["umount", "-f", self.daemon.config.mount_dir], check=False)
            self.daemon.kill9()

    def start_writer(self, kind: str, stack: ExitStack) -> tuple[subprocess.Popen[bytes], Path]:
        mount = self.mounts[kind == KINDS[-1]]
        files = [mount / f"{kind}-{number}.md" for number in range(2)]
        said = self.folder / f"{kind}-{self.totals.kills}"
        command = [sys.executable, WRITER, kind, str(self.random.randrange(10**9)), *files]
        with said.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)
        stack.enter_context(process)
        return process, said

    def listen(self, path: Path) -> None:
        """Take up what a writer said; the save that the crash cut off was not promised."""
        for line in path.read_text().splitlines():
            what, name, digest = line.split(" ")
            file = self.files.setdefault(Path(name).name, File())
            if what == "try":
                file.said.append((digest, False))
            else:
                assert file.said[-1] == (digest, False)
                file.said[-1] = (digest, True)
                self.totals.promises += 1
        path.unlink()

    def check(self) -> None:
        """Every promise is in the history, in order; besides at most the save that was cut off."""
        with self.daemon.client() as client:
            api = self.api(client)
            found: dict[str, list[str]] = {name: [] for name in self.files}
            for version in reversed(list(self.news(api))):
                found[version["path"].removeprefix("/")].append(version["content_sha256"])
                self.newest = version["id"]
                self.totals.versions += 1
            heads = api.tree()
        for name, file in self.files.items():
            waiting = iter(found[name])
            shown = next(waiting, None)
            for digest, promised in file.said[file.found :]:
                if shown == digest:
                    self.totals.unpromised += not promised
                    file.head = digest
                    shown = next(waiting, None)
                else:
                    assert not promised, f"{name}: a promised save is lost"
            assert shown is None, f"{name}: a version that nobody wrote"
            file.found = len(file.said)
            assert heads[f"/{name}"] == file.head
            for mount in self.mounts:
                text = (mount / name).read_bytes()
                assert sha256(text).hexdigest() == heads[f"/{name}"]
        assert set(heads) == {f"/{name}" for name in self.files}
        for mount in self.mounts:
            assert set(os.listdir(mount)) == set(self.files), "a temporary file outlived the crash"

    def news(self, api: Api) -> Iterator[dict[str, str]]:
        """Yield the versions since the last check, newest first."""
        page: str | None = None
        while True:
            asked = {"limit": 100} | ({} if page is None else {"page": page})
            answer = api.request("GET", "/memory_versions", params=asked).raise_for_status().json()
            for version in answer["data"]:
                if version["id"] == self.newest:
                    return
                yield version
            page = answer["next_page"]
            if page is None:
                return


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_every_promised_save_outlives_sigkill(tmp_path: Path, kills: int):
    with served(tmp_path / "ws") as daemon:
        daemon.expected = ["removed a dead mount"]
        crashes = Crashes(daemon, tmp_path, seed=kills)
        for _ in range(kills):
            before = crashes.totals.promises
            crashes.crash()
            assert crashes.totals.promises > before, "nothing was promised, so nothing was shown"
        totals = crashes.totals
        print(totals)
        assert not totals.stuck, "killing the daemon left it and its clients hanging"
        assert totals.unpromised <= len(KINDS) * kills
        assert totals.versions == totals.promises + totals.unpromised
        daemon.restart()  # an orderly stop and start find the same
        crashes.check()
