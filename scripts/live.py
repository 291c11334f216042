"""One `memfs serve` on one workspace as a child process, for the scripts that need a live mount."""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from daemon.cli.main import cli

MEMFS = Path(sys.executable).with_name("memfs")
COMMAND_S = 60  # any one command; the longest here takes under a second


class Failed(Exception):
    """A step did not do what it should; the message says what was expected and found."""


class Live:
    """The daemon of *workspace*: started, stopped and killed by the pid of this child only."""

    def __init__(self, workspace: Path, *options: str) -> None:
        """Plan a daemon on *workspace*; *options* are of `memfs serve`."""
        self.workspace = workspace
        self.options = options
        self.log = workspace / ".little-worker" / "serve.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, deadline_s: float = 20) -> None:
        """Return when `memfs status` is good: the daemon answers and every mount is alive."""
        if (pid := self._other()) is not None:
            raise Failed(
                f"a daemon serves {self.workspace} already, process {pid}: use it as it is, or "
                f"stop it first (Ctrl-C where it runs, or `kill {pid}`)"
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the child for its life
            except BlockingIOError:
                raise Failed(f"a daemon is being started on {self.workspace} already") from None
            self.process = subprocess.Popen(
                [MEMFS, "--workspace", self.workspace, "serve", *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C reaches the caller, who ends us once
            )
        end = time.monotonic() + deadline_s
        while (status := self.here("status", check=False)).exit_code != 0:
            if self.process.poll() is not None:
                code = self.process.returncode
                raise Failed(f"memfs serve ended with exit code {code}:\n{self.log_tail()}")
            if time.monotonic() > end:
                found = f"exit code {status.exit_code}: {status.output.strip()}"
                raise Failed(
                    f"expected memfs status to be good within {deadline_s:.0f} s, "
                    f"found {found}\n{self.log_tail()}"
                )
            time.sleep(0.02)

    def port(self) -> str:
        """Return the TCP port that the newest daemon's log names."""
        found = re.findall(r"listening on \S+ port ([0-9]+)", self.log.read_text(errors="replace"))
        if not found:
            raise Failed(f"expected a TCP port in {self.log}, found none\n{self.log_tail()}")
        return found[-1]

    def _other(self) -> int | None:
        """Return the pid of a daemon that answers here, None if there is none."""
        try:
            return json.loads(self.here("--json", "status", check=False).stdout)["pid"]
        except (ValueError, KeyError):
            return None

    def stop(self, deadline_s: float = 20) -> None:
        """End the daemon with SIGTERM; it must exit 0 and leave no mount behind."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(
                f"expected memfs serve to end within {deadline_s:.0f} s of SIGTERM, "
                f"found it running\n{self.log_tail()}"
            ) from None
        if code != 0:
            raise Failed(f"expected exit code 0 after SIGTERM, found {code}:\n{self.log_tail()}")
        if left := mounts_below(self.workspace):
            raise Failed(f"expected no mount after the daemon's end, found {left}")

    def kill(self) -> None:
        """End the daemon with SIGKILL, as a crash does."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the daemon if it still runs, gently, then firmly; for leaving after a failure."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run(self, *args: str | Path) -> bytes:
        """Run one memfs command as a person does; return what it printed. Exit code 0 or Failed."""
        words = " ".join(map(str, args))
        try:
            done = subprocess.run(
                [MEMFS, "--workspace", self.workspace, *args],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_S,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"memfs {words}: no end in {COMMAND_S} s") from None
        if done.returncode != 0:
            error = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise Failed(f"memfs {words}: expected exit code 0, found {done.returncode}: {error}")
        return done.stdout

    def here(self, *args: str | Path, check: bool = True) -> Result:
        """Run one memfs command in this process, which saves the start of an interpreter."""
        words = [str(arg) for arg in args]
        done = CliRunner().invoke(cli, ["--workspace", str(self.workspace), *words])
        if check and done.exit_code != 0:
            raise Failed(
                f"memfs {' '.join(words)}: expected exit code 0, "
                f"found {done.exit_code}: {done.output.strip()} {done.exception!r}"
            )
        return done

    def json(self, *args: str | Path) -> Any:  # noqa: ANN401 - JSON is anything
        """Run one memfs command with --json in this process; return what it printed."""
        return json.loads(self.here("--json", *args).stdout)

    def list(self, *args: str | Path) -> list[dict[str, Any]]:
        """Run one listing command in this process; return its rows, which must be all there are."""
        page = self.json(*args)
        if page["next_page"] is not None:
            raise Failed(f"memfs {' '.join(map(str, args))}: expected one page, found next_page")
        return page["data"]

    def log_tail(self, lines: int = 20) -> str:
        """Return the end of the daemon's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points below *folder*, the deepest first; dead mounts are listed too."""
    prefix = f"{folder.resolve()}/"
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4])
        if point.startswith(prefix):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def unmount_below(folder: Path) -> None:
    """Take away every mount that is left below *folder*; needed only after a failure."""
    for point in mounts_below(folder):
        lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run([*lazily, point], capture_output=True, timeout=COMMAND_S)


def cannot_mount() -> str | None:
    """Return why this process cannot have a mount, with the remedy; None when it can."""
    if not os.path.exists("/dev/fuse"):
        return (
            "there is no /dev/fuse here, so nothing can be mounted: run `modprobe fuse` as root, "
            "or give the container the device (--device /dev/fuse --cap-add SYS_ADMIN)"
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened by this user: run this as root"
    return None
