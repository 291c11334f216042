"""Measure the mount: ext4, the floor of the stack (floor_fs.py) and memfs, side by side.

    scripts/bench fs [--quick] [--json] [--rounds N] [--dir DIR]

One run makes a temporary workspace, fills each subject with the same notes, measures in rounds
(every round measures every subject, in rotating order, so that a drift of the machine hits all
alike) and prints medians, ratios and a verdict for each target. A ratio is the median of the
rounds' ratios. A missed target does not change the exit status; an error does (1).

Cold measurements write to /proc/sys/vm/drop_caches and are skipped without root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import gc
import hashlib
import importlib.util
import json
import multiprocessing
import os
import platform
import pydoc_data.topics
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTE_BYTES = 2048
SAMPLE = 100  # distinct notes that a round of a per-operation measurement touches
PORTIONS = 4  # of a sample, in turn with the other worlds and subjects
START_DEADLINE_S = 60
STOP_DEADLINE_S = 30
QUIET_DEADLINE_S = 30
STORE_LIMIT_PER_TASK = 5  # DESIGN §2 allows eight; two tasks of five hold ten stores
PR_SET_PDEATHSIG = 1
FORK = multiprocessing.get_context("fork")

Micros = list[float]


def say(text: str) -> None:
    """Tell the person at the terminal what is going on."""
    sys.stderr.write(text + "\n")


# texts


class Texts:
    """An endless supply of different texts of about 2 KiB, cut from real prose."""

    def __init__(self) -> None:
        """Read the copyright files of the installed packages and Python's own documentation."""
        seen: set[bytes] = set()
        parts: list[str] = []
        for path in sorted(Path("/usr/share/doc").glob("*/copyright")):
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                digest = hashlib.sha256(data).digest()
                if digest not in seen:
                    seen.add(digest)
                    parts.append(data.decode("utf-8", "ignore"))
        parts += [text for _, text in sorted(pydoc_data.topics.topics.items())]
        self.lines = [
            line
            for part in parts
            for line in part.splitlines()
            if line.isprintable() and not re.search(r"://\S*:\S*@", line)  # refused as passwords
        ]
        self.made = 0

    def next(self) -> bytes:
        """Return a text that was not returned before.

        Windows over the prose may overlap, which helps no store that compresses note by note.
        """
        self.made += 1
        text = [f"# Note {self.made}"]
        size = len(text[0])
        at = self.made * 7919
        while size < NOTE_BYTES:
            line = self.lines[at % len(self.lines)]
            text.append(line)
            size += len(line) + 1
            at += 1
        return "\n".join(text).encode()[: NOTE_BYTES - 1].decode("utf-8", "ignore").encode() + b"\n"


# subjects


def die_with_parent() -> None:
    """Ask the kernel to end this child (SIGTERM) when the bench dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Subject:
    """One file system under measurement: ext4, floor or memfs, holding one world of notes."""

    name: str
    folders: list[Path] = field(default_factory=list[Path])
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def notes(self, count: int) -> list[Path]:
        """Return the paths of *count* notes, spread evenly over the folders."""
        each = count // len(self.folders)
        return [folder / f"note-{i:05}.md" for folder in self.folders for i in range(each)]

    def cpu_ticks(self) -> int:
        """Return the processor time the daemon has used."""
        if self.process is None:
            return 0
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(stat[11]) + int(stat[12])

    def check_alive(self) -> None:
        """Raise if the daemon has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}")

    def stop(self) -> None:
        """End the daemon; it unmounts by itself."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            status = self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.process = None
        if status not in {0, -signal.SIGTERM}:
            tail = self.log.read_text(errors="replace")[-2000:] if self.log else ""
            say(f"warning: {self.name} ended with status {status}:\n{tail}")


def folder_names(count: int) -> list[str]:
    """Name the stores of a world."""
    return [f"bench-{i}" for i in range(count)]


def start_ext4(base: Path, stores: int) -> Subject:
    """Make plain directories, as deep as those of a task."""
    memory = base / ".little-worker/tasks/bench-0/memory"
    folders = [memory / name for name in folder_names(stores)]
    for folder in folders:
        folder.mkdir(parents=True)
    return Subject("ext4", folders)


def start_floor(base: Path, stores: int) -> Subject:
    """Mount the floor where a task's memory would be."""
    memory = base / ".little-worker/tasks/bench-0/memory"
    memory.mkdir(parents=True)
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts/floor_fs.py"), str(memory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
            start_new_session=True,  # Ctrl-C is for the bench, which stops its daemons
        )
    subject = Subject("floor", process=process, log=base / "log")
    try:
        wait_for(lambda: memory.is_mount(), subject, base)
        subject.folders = [memory / name for name in folder_names(stores)]
        for folder in subject.folders:
            folder.mkdir()
    except BaseException:
        subject.stop()
        raise
    return subject


def memfs_command() -> list[str] | None:
    """Return how to call memfs, or None while there is none."""
    installed = Path(sys.executable).parent / "memfs"
    if installed.exists():
        return [str(installed)]
    if (ROOT / "daemon/cli/__main__.py").exists():
        missing = [m for m in ("lmdb", "pyfuse3", "click") if importlib.util.find_spec(m) is None]
        return None if missing else [sys.executable, "-m", "daemon.cli"]
    return None


class Memfs:
    """The memfs command line on one workspace."""

    def __init__(self, workspace: Path) -> None:
        """Remember how to call memfs on *workspace*."""
        command = memfs_command()
        if command is None:
            raise RuntimeError("there is no memfs to run")
        self.workspace = workspace
        self.command = [*command, "--workspace", str(workspace)]
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("MEMFS_")}
        self.environment["PYTHONPATH"] = str(ROOT)

    def call(self, *arguments: str) -> Any:  # noqa: ANN401 - whatever JSON says
        """Run a command against the daemon and return what it answers."""
        done = subprocess.run(
            [*self.command, "--json", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RuntimeError(f"memfs {' '.join(arguments)}: status {done.returncode}: {said}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def serve(self) -> Subject:
        """Start the daemon and return when it answers."""
        with (self.workspace / "log").open("ab") as log:
            process = subprocess.Popen(
                [*self.command, "serve"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                start_new_session=True,  # Ctrl-C is for the bench, which stops its daemons
            )
        subject = Subject("memfs", process=process, log=self.workspace / "log")

        def answers() -> bool:
            with contextlib.suppress(RuntimeError):
                self.call("status")
                return True
            return False

        try:
            wait_for(answers, subject, self.workspace)
        except BaseException:
            subject.stop()
            raise
        return subject

    def folder(self, task: str, resource: dict[str, Any]) -> Path:
        """Return where a resource of a task is mounted."""
        path = Path(resource["mount_path"])
        if path.is_dir():
            return path
        return self.workspace / ".little-worker/tasks" / task / "memory" / path.name


def start_memfs(base: Path, stores: int) -> Subject:
    """Start a daemon with *stores* stores, attached to as many tasks as they need."""
    memfs = Memfs(base)
    subject = memfs.serve()
    try:
        names = folder_names(stores)
        for name in names:
            memfs.call("store", "create", name)
        for first in range(0, stores, STORE_LIMIT_PER_TASK):
            task = f"bench-{first // STORE_LIMIT_PER_TASK}"
            wanted = names[first : first + STORE_LIMIT_PER_TASK]
            attach = [word for name in wanted for word in ("--store", name)]
            answer = memfs.call("task", "create", task, "--worker", "bench", *attach)
            resources = answer["resources"][-len(wanted) :]  # the worker's own store comes first
            subject.folders += [memfs.folder(task, resource) for resource in resources]
        wait_for(lambda: all(f.is_dir() for f in subject.folders), subject, base)
    except BaseException:
        subject.stop()
        raise
    return subject


STARTERS: dict[str, Callable[[Path, int], Subject]] = {
    "ext4": start_ext4,
    "floor": start_floor,
    "memfs": start_memfs,
}


def wait_for(ready: Callable[[], bool], subject: Subject, base: Path) -> None:
    """Return when *ready*; raise with the daemon's log when it ends or takes too long."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not ready():
        with contextlib.suppress(OSError):
            log = (base / "log").read_text(errors="replace")[-2000:]
        if subject.process is not None and subject.process.poll() is not None:
            raise RuntimeError(f"{subject.name} ended at its start:\n{log}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{subject.name} is not ready after {START_DEADLINE_S} s:\n{log}")
        time.sleep(0.05)


def unmount_below(base: Path) -> bool:
    """Unmount whatever a dead daemon left under *base*; say whether nothing is mounted there."""

    def mounts() -> list[str]:
        rows = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [row.split()[4].encode().decode("unicode_escape") for row in rows]
        return sorted((p for p in points if p.startswith(f"{base}/")), key=len, reverse=True)

    for point in mounts():
        say(f"warning: {point} was still mounted")
        if subprocess.run(
            ["fusermount3", "-uz", point], capture_output=True, check=False
        ).returncode:
            subprocess.run(["umount", "-l", point], capture_output=True, check=False)
    return not mounts()


# worlds


@dataclass
class World:
    """The same notes in every subject."""

    notes: int
    stores: int
    subjects: list[Subject]

    def turn(self, round_: int) -> list[Subject]:
        """Return the subjects in the order of this round."""
        at = round_ % len(self.subjects)
        return self.subjects[at:] + self.subjects[:at]

    def find(self, name: str) -> Subject | None:
        """Return the subject of that name, if it takes part."""
        return next((s for s in self.subjects if s.name == name), None)

    def sample(self, subject: Subject, seed: int) -> list[Path]:
        """Return notes for one round: the same ones in every subject."""
        return random.Random(seed).sample(subject.notes(self.notes), min(SAMPLE, self.notes))


def create_note(path: str, text: bytes) -> None:
    """Create a note that does not exist."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def write_notes(notes: list[Path], texts: list[bytes]) -> None:
    """Create each note with its text."""
    for path, text in zip(notes, texts, strict=True):
        create_note(str(path), text)


def in_processes(jobs: list[Callable[[Callable[[], object]], Any]]) -> list[Any]:
    """Run each job in a process of its own and return their results in order.

    A job is called with a function that returns when every job has called it: all begin at once.
    """
    barrier = FORK.Barrier(len(jobs))

    def run(job: Callable[[Callable[[], object]], Any], answer: Connection) -> None:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            answer.send((job(barrier.wait), None))
        except BaseException:
            barrier.abort()
            answer.send((None, traceback.format_exc()))

    running: list[tuple[Any, Connection]] = []
    results: list[Any] = []
    failures: list[str] = []
    try:
        for job in jobs:
            receive, send = FORK.Pipe(duplex=False)
            process = FORK.Process(target=run, args=(job, send))
            process.start()
            send.close()  # here, so that the end of the child is the end of the pipe
            running.append((process, receive))
        for _, receive in running:
            try:
                result, failure = receive.recv()
            except EOFError:
                barrier.abort()
                result, failure = None, "it was killed"
            results.append(result)
            if failure:
                failures.append(failure)
    finally:
        for process, receive in running:
            receive.close()
            process.join(STOP_DEADLINE_S)
            if process.is_alive():
                process.kill()
    if failures:
        raise RuntimeError("a worker process failed:\n" + "\n".join(failures))
    return results


def fill(subject: Subject, count: int, texts: list[bytes], writers: int = 4) -> float:
    """Write the notes through the mount with several processes; return notes per second."""
    notes = subject.notes(count)

    def job(at: int, begin: Callable[[], object]) -> None:
        begin()
        write_notes(notes[at::writers], texts[at::writers])

    began = time.perf_counter()
    in_processes([functools.partial(job, at) for at in range(writers)])
    return count / (time.perf_counter() - began)


# operations: each takes notes and texts and returns microseconds per operation


def timed(operations: Iterator[Callable[[], object]]) -> Micros:
    """Return what each operation took."""
    clock = time.perf_counter_ns
    took: Micros = []
    gc.disable()
    try:
        for operation in operations:
            began = clock()
            operation()
            took.append((clock() - began) / 1e3)
    finally:
        gc.enable()
    return took


def read_note(path: str) -> None:
    """Open, read and close, with nothing in between that Python's open would add."""
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 1 << 17)
    os.close(fd)


def save_note(path: str, text: bytes, sync: bool = False) -> None:
    """Open with O_TRUNC, write, close: what a shell's `>` and Python's open(…, "w") do."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def warm_reads(notes: list[Path]) -> Micros:
    """Read notes whose text the kernel holds."""
    paths = [str(p) for p in notes]
    for path in paths:
        read_note(path)
    return timed(functools.partial(read_note, p) for p in paths * 3)


def cold_reads(notes: list[Path]) -> Micros:
    """Read notes of which the kernel knows nothing; caches were just dropped."""
    for folder in {p.parent for p in notes}:
        os.stat(folder)
    return timed(functools.partial(read_note, str(p)) for p in notes)


def stats(notes: list[Path]) -> Micros:
    """Stat notes whose attributes the kernel holds; each figure is the mean of one pass."""
    paths = [str(p) for p in notes]

    def one_pass() -> None:
        for path in paths:
            os.stat(path)

    one_pass()
    return [us / len(paths) for us in timed(one_pass for _ in range(20))]


def saves(notes: list[Path], texts: Texts, sync: bool = False) -> Micros:
    """Give notes new texts."""
    return timed(functools.partial(save_note, str(p), texts.next(), sync) for p in notes)


def removals_and_creations(notes: list[Path], texts: Texts) -> tuple[Micros, Micros]:
    """Unlink notes and create them again, so that their number stays."""
    removed, created = [], []
    for note in notes:
        path, text = str(note), texts.next()
        removed += timed(iter([functools.partial(os.unlink, path)]))
        created += timed(iter([functools.partial(create_note, path, text)]))
    return removed, created


def synced_writes(path: Path, count: int) -> Micros:
    """Write one 4 KiB block and fsync, over blocks that exist: the price of durability here."""
    blocks = 256
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(fd).st_size < blocks * 4096:
            os.pwrite(fd, os.urandom(blocks * 4096), 0)
            os.fsync(fd)

        def one(i: int, block: bytes) -> None:
            os.pwrite(fd, block, i % blocks * 4096)
            os.fsync(fd)

        return timed(functools.partial(one, i, os.urandom(4096)) for i in range(count))
    finally:
        os.close(fd)


def save_until(
    notes: list[Path], texts: Texts, seconds: float, sync: bool, begin: Callable[[], object]
) -> float:
    """Save notes in turn for a while; return saves per second."""
    supply = [texts.next() for _ in range(256)]
    salt = os.urandom(8).hex()  # no two processes and no two runs may save the same text
    paths = [str(p) for p in notes]
    begin()
    count = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        text = f"{salt} {count}\n".encode() + supply[count % len(supply)]
        save_note(paths[count % len(paths)], text, sync)
        count += 1
    return count / (now - began)


def read_until(notes: list[Path], seconds: float, begin: Callable[[], object]) -> Micros:
    """Read warm notes for a while."""
    took = warm_reads(notes)
    took.clear()
    begin()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        took += timed(functools.partial(read_note, str(p)) for p in notes)
    return took


def saves_a_second(
    notes: list[Path], savers: int, texts: Texts, seconds: float, sync: bool
) -> float:
    """Let processes save notes of their own at once; return all their saves per second."""
    jobs = [
        functools.partial(save_until, notes[at * 10 : at * 10 + 10], texts, seconds, sync)
        for at in range(savers)
    ]
    return sum(in_processes(jobs))


def reads_while_saving(notes: list[Path], texts: Texts, seconds: float, sync: bool) -> Micros:
    """Read warm notes while two processes save other ones."""
    savers = [
        functools.partial(save_until, notes[at * 10 : at * 10 + 10], texts, seconds, sync)
        for at in range(2)
    ]
    return in_processes([*savers, functools.partial(read_until, notes[20:], seconds)])[-1]


def command_ms(*words: str) -> float:
    """Run a command with its output thrown away; return how long it took."""
    began = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    took = (time.perf_counter() - began) * 1e3
    if done.returncode > 1 or done.stderr:  # grep says 1 when nothing matches
        raise RuntimeError(f"{words[0]}: {done.stderr.decode(errors='replace')[:500]}")
    return took


# memory and disk


def memory_mib(subject: Subject) -> dict[str, float]:
    """Return the daemon's resident memory, whole and in parts, in MiB."""
    assert subject.process is not None
    rows = Path(f"/proc/{subject.process.pid}/status").read_text().splitlines()
    kib = {row.split(":")[0]: int(row.split()[1]) for row in rows if row.endswith(" kB")}
    return {key: kib[key] / 1024 for key in ("VmRSS", "RssAnon", "RssFile", "VmHWM")}


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Return allocated and apparent size of all files below *folder*."""
    files = [p.lstat() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    return sum(s.st_blocks * 512 for s in files), sum(s.st_size for s in files)


# the run


@dataclass
class Result:
    """What was measured: for each operation, world and subject a list of figures per round."""

    rounds: dict[tuple[str, int, str], list[Micros]] = field(default_factory=dict)

    def add(self, operation: str, world: int, subject: str, figures: Micros) -> None:
        """Add one round."""
        self.rounds.setdefault((operation, world, subject), []).append(figures)

    def median(self, operation: str, world: int, subject: str) -> float | None:
        """Return the median of all figures, or None if nothing was measured."""
        rounds = self.rounds.get((operation, world, subject))
        return median(figure for figures in rounds for figure in figures) if rounds else None

    def p99(self, operation: str, world: int, subject: str) -> float | None:
        """Return the 99th percentile of all figures."""
        rounds = self.rounds.get((operation, world, subject))
        figures = sorted(figure for figures in rounds or () for figure in figures)
        return figures[len(figures) * 99 // 100] if figures else None

    def medians(self, operation: str, world: int, subject: str) -> list[float]:
        """Return the median of each round."""
        return [median(figures) for figures in self.rounds.get((operation, world, subject), [])]


@dataclass
class Target:
    """A promise of the issue and what became of it."""

    text: str
    limit: float
    at_least: bool = False
    value: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Say whether it was met; None if it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class Bench:
    """One run."""

    def __init__(self, base: Path, quick: bool, rounds: int | None) -> None:
        """Plan a run in *base*."""
        self.base = base
        self.quick = quick
        self.rounds = rounds or (3 if quick else 9)
        self.slow_rounds = max(2, self.rounds // 3)
        self.seconds = 1.0 if quick else 2.0
        self.small, self.large = 100, 1_000 if quick else 10_000
        self.huge = None if quick else 100_000
        self.texts = Texts()
        self.result = Result()
        self.worlds: list[World] = []
        self.fill_rates: dict[str, float] = {}
        self.memory: dict[str, dict[str, float]] = {}
        self.disk: dict[str, float] = {}
        self.skipped: list[str] = []
        self.names = ["ext4", "floor"]
        if importlib.util.find_spec("pyfuse3") is None:
            self.names.remove("floor")
            self.skipped.append("floor: pyfuse3 is not importable")
        if memfs_command() is None:
            self.skipped.append("memfs: no memfs command yet")
        else:
            self.names.append("memfs")
        self.can_drop = os.access("/proc/sys/vm/drop_caches", os.W_OK)
        if not self.can_drop:
            self.skipped.append("cold: /proc/sys/vm/drop_caches is not writable (not root)")

    def make_world(self, notes: int, stores: int) -> World:
        """Start each subject and fill it."""
        world = World(notes, stores, [])
        self.worlds.append(world)  # before anything starts, so that close() finds all of it
        texts = [self.texts.next() for _ in range(notes)]
        for name in self.names:
            base = self.base / f"{name}-{notes}"
            base.mkdir()
            subject = STARTERS[name](base, stores)
            world.subjects.append(subject)
            rate = fill(subject, notes, texts)
            self.fill_rates[f"{name}-{notes}"] = rate
            say(f"  {name}: {notes} notes written, {rate:,.0f} a second")
            if name == "memfs" and notes == self.large:
                self.measure_disk(base, sum(map(len, texts)))
                self.list_and_read(subject)
                self.memory["after filling"] = memory_mib(subject)
        return world

    def measure_disk(self, base: Path, text_bytes: int) -> None:
        """Remember the size of the data directory against that of the texts."""
        allocated, apparent = disk_bytes(base / ".little-worker/memfs")
        self.disk = {
            "text_bytes": text_bytes,
            "allocated_bytes": allocated,
            "apparent_bytes": apparent,
            "ratio": allocated / text_bytes,
        }

    def list_and_read(self, subject: Subject) -> None:
        """List and read every note."""
        folders = [f"{folder}/" for folder in subject.folders]
        command_ms("ls", "-l", *folders)
        command_ms("grep", "-r", "no note says this", *folders)

    def drop_caches(self) -> None:
        """Empty the kernel's caches, and wait until the daemons have digested the forgets."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        self.wait_quiet()

    def wait_quiet(self) -> None:
        """Return when no daemon of ours uses the processor."""
        deadline = time.monotonic() + QUIET_DEADLINE_S
        before: list[int] = []
        while time.monotonic() < deadline:
            now = [s.cpu_ticks() for world in self.worlds for s in world.subjects]
            if now == before:
                return
            before = now
            time.sleep(0.1)

    def check_alive(self) -> None:
        """Raise if a daemon has ended."""
        for world in self.worlds:
            for subject in world.subjects:
                subject.check_alive()

    def measure_operations(self, round_: int) -> None:
        """Measure one round of the per-operation figures in every world."""
        add = self.result.add
        # operation by operation and in small portions, so that worlds and subjects are compared
        # in the same mood of the machine, which changes within a second
        everything = [(world, s) for world in self.worlds for s in world.turn(round_)]
        if round_ % 2:
            everything.reverse()
        took: dict[tuple[str, int, str], Micros] = {}
        if self.can_drop:
            self.drop_caches()
        reads = [("cold", cold_reads)] if self.can_drop else []
        for operation, measure in [*reads, ("warm", warm_reads), ("stat", stats)]:
            for part in range(PORTIONS):
                for world, s in everything:
                    notes = world.sample(s, round_)[part::PORTIONS]
                    took.setdefault((operation, world.notes, s.name), []).extend(measure(notes))
        for part in range(PORTIONS):
            for world, s in everything:
                notes = world.sample(s, round_)[part::PORTIONS]
                key = ("save", world.notes, s.name)
                took.setdefault(key, []).extend(saves(notes, self.texts))
                if s.name == "ext4":
                    key = ("save+fsync", world.notes, "ext4")
                    took.setdefault(key, []).extend(saves(notes, self.texts, sync=True))
                    key = ("4k+fsync", world.notes, "disk")
                    synced = synced_writes(self.base / "fsync-reference", len(notes))
                    took.setdefault(key, []).extend(synced)
        for (operation, notes_count, name), figures in took.items():
            add(operation, notes_count, name, figures)
        for world, s in everything:
            removed, created = removals_and_creations(world.sample(s, round_)[:25], self.texts)
            add("unlink", world.notes, s.name, removed)
            add("create", world.notes, s.name, created)

    def measure_commands(self, world: World, round_: int) -> None:
        """Measure `ls -l` and `grep -r` over all notes of a world."""
        for s in world.turn(round_):
            folders = [f"{folder}/" for folder in s.folders]
            self.list_and_read(s)
            took = [command_ms("ls", "-l", *folders) for _ in range(2)]
            self.result.add("ls -l", world.notes, s.name, took)
            took = [command_ms("grep", "-r", "no note says this", *folders) for _ in range(2)]
            self.result.add("grep -r", world.notes, s.name, took)
        if self.can_drop:
            self.drop_caches()
            for s in world.turn(round_):
                folders = [f"{folder}/" for folder in s.folders]
                took = [command_ms("ls", "-l", *folders)]
                self.result.add("ls -l cold", world.notes, s.name, took)

    def measure_concurrency(self, world: World, round_: int) -> None:
        """Measure one saver, eight savers, and a reader beside two savers."""
        for s in world.turn(round_):
            notes = s.notes(world.notes)[:SAMPLE]
            sync = s.name == "ext4"  # so that it promises what memfs promises
            for savers in (1, 8):
                rate = saves_a_second(notes, savers, self.texts, self.seconds, sync)
                self.result.add(f"savers {savers}", world.notes, s.name, [rate])
            took = reads_while_saving(notes, self.texts, self.seconds / 2, sync)
            self.result.add("read beside savers", world.notes, s.name, took)

    def measure_restarted(self, world: World) -> None:
        """Measure the memory of a fresh daemon that has listed and read everything."""
        subject = world.find("memfs")
        if subject is None:
            return
        self.memory["after all measurements"] = memory_mib(subject)
        subject.stop()
        base = self.base / f"memfs-{world.notes}"
        subject.process = Memfs(base).serve().process
        wait_for(lambda: all(f.is_dir() for f in subject.folders), subject, base)
        self.list_and_read(subject)
        self.memory["after restart"] = memory_mib(subject)

    def run(self) -> None:
        """Do everything."""
        for notes, stores in ((self.small, 1), (self.large, 1), (self.huge, 10)):
            if notes is not None:
                say(f"filling {notes} notes")
                self.make_world(notes, stores)
        for round_ in range(self.rounds):
            say(f"operations, round {round_ + 1} of {self.rounds}")
            self.measure_operations(round_)
            self.check_alive()
        large = self.worlds[1]
        for round_ in range(self.slow_rounds):
            say(f"commands and concurrency, round {round_ + 1} of {self.slow_rounds}")
            self.measure_commands(large, round_)
            self.measure_concurrency(large, round_)
            self.check_alive()
        for world in self.worlds[2:]:
            for round_ in range(2):
                say(f"commands over {world.notes} notes, round {round_ + 1} of 2")
                self.measure_commands(world, round_)
                self.check_alive()
        self.measure_restarted(large)

    def close(self) -> None:
        """Stop every daemon, unmount what is left and remove everything."""
        for world in self.worlds:
            for subject in world.subjects:
                subject.stop()
        if unmount_below(self.base):
            shutil.rmtree(self.base, ignore_errors=True)
        else:
            say(f"warning: something is mounted below {self.base}; it was left alone")

    # verdicts

    def ratio(
        self, operation: str, world: int, over: Callable[[int], list[list[float]]]
    ) -> tuple[float | None, str]:
        """Return memfs over the sum of what *over* lists, round by round, and how it came about."""
        above = self.result.medians(operation, world, "memfs")
        below = over(world)
        if not above or not all(below):
            return None, ""
        base = [sum(parts) for parts in zip(*below, strict=False)]
        ratios = [a / b for a, b in zip(above, base, strict=False)]  # an error ends mid-round
        detail = f"{fmt(median(above))} / {fmt(median(base))}, rounds "
        return median(ratios), detail + f"{min(ratios):.2f} to {max(ratios):.2f}"

    def targets(self) -> list[Target]:
        """Return every target with its verdict."""
        medians = self.result.medians
        found: list[Target] = []

        def against(text: str, limit: float, operation: str, world: int, *others: str) -> None:
            def over(w: int) -> list[list[float]]:
                return [
                    medians("4k+fsync" if other == "disk" else operation, w, other)
                    for other in others
                ]

            value, detail = self.ratio(operation, world, over)
            found.append(Target(text, limit, value=value, detail=detail))

        large = self.large
        against(f"warm open+read+close, {large:,} notes: / floor", 1.3, "warm", large, "floor")
        against(f"cold open+read+close, {large:,} notes: / floor", 1.5, "cold", large, "floor")
        against(f"stat of a cached note, {large:,} notes: / ext4", 1.5, "stat", large, "ext4")
        against(
            f"save, {large:,} notes: / (floor + 4 KiB write+fsync)",
            1.5, "save", large, "floor", "disk",
        )  # fmt: skip
        eight, one = medians("savers 8", large, "memfs"), medians("savers 1", large, "memfs")
        speedup = Target("8 concurrent savers: / the throughput of one", 2.0, at_least=True)
        if eight and one:
            ratios = [e / o for e, o in zip(eight, one, strict=False)]
            speedup.value = median(ratios)
            speedup.detail = f"{fmt(median(eight))} / {fmt(median(one))} saves a second"
        found.append(speedup)
        for world in [w for w in (large, self.huge) if w]:
            against(f"ls -l of {world:,} notes: / floor", 1.3, "ls -l", world, "floor")
            against(f"grep -r of {world:,} notes, warm: / floor", 1.3, "grep -r", world, "floor")
            for operation in ("warm", "cold", "stat", "save", "create", "unlink"):
                value, detail = self.ratio(
                    operation,
                    world,
                    lambda _, op=operation: [medians(op, self.small, "memfs")],
                )
                text = f"{operation} at {world:,} notes: / the same at {self.small}"
                found.append(Target(text, 1.2, value=value, detail=detail))
        memory = Target(f"resident MiB, {large:,} notes listed and read", 150)
        if self.memory:
            when, parts = max(self.memory.items(), key=lambda item: item[1]["VmRSS"])
            memory.value = parts["VmRSS"]
            memory.detail = f"{when}: anonymous {parts['RssAnon']:.0f}, file {parts['RssFile']:.0f}"
        found.append(memory)
        disk = Target("data directory: / the text, one version each", 2.5)
        if self.disk:
            disk.value = self.disk["ratio"]
            disk.detail = (
                f"{self.disk['allocated_bytes'] / 2**20:.1f}"
                f" / {self.disk['text_bytes'] / 2**20:.1f} MiB"
            )
        found.append(disk)
        return found

    def report(self) -> dict[str, Any]:
        """Return everything as one JSON document."""
        figures: dict[str, Any] = {}
        for (operation, world, subject), rounds in self.result.rounds.items():
            row = figures.setdefault(operation, {}).setdefault(str(world), {})
            row[subject] = {
                "median": self.result.median(operation, world, subject),
                "p99": self.result.p99(operation, world, subject),
                "rounds": [median(figures) for figures in rounds],
            }
        return {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["scripts/bench", "fs", *sys.argv[1:]]),
            "quick": self.quick,
            "machine": machine(self.base),
            "skipped": self.skipped,
            "units": {
                "default": "microseconds",
                "ls -l": "ms",
                "ls -l cold": "ms",
                "grep -r": "ms",
                "savers": "saves/s",
            },
            "figures": figures,
            "notes_written_per_second": self.fill_rates,
            "memory_mib": self.memory,
            "disk": self.disk,
            "targets": [
                {
                    "text": t.text,
                    "limit": t.limit,
                    "at_least": t.at_least,
                    "value": t.value,
                    "met": t.met,
                    "detail": t.detail,
                }
                for t in self.targets()
            ],
        }


def machine(base: Path) -> dict[str, Any]:
    """Describe where the figures were taken."""
    mounts = [row.split() for row in Path("/proc/self/mounts").read_text().splitlines()]
    real = str(base.resolve())
    inside = [m for m in mounts if real == m[1] or real.startswith(m[1].rstrip("/") + "/")]
    disk = max(inside, key=lambda m: len(m[1]))
    return {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "disk": f"{disk[0]} {disk[2]}",
        "load": os.getloadavg()[0],
    }


def fmt(value: float | None) -> str:
    """Write a figure with three digits that matter."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


UNITS = {"ls -l": "ms", "ls -l cold": "ms", "grep -r": "ms", "savers 1": "/s", "savers 8": "/s"}


def table(bench: Bench) -> str:
    """Return the figures and verdicts for people."""
    report = bench.report()
    where = report["machine"]
    lines = [
        f"{report['command']}    {report['date']}",
        f"kernel {where['kernel']}, {where['cores']} cores, Python {where['python']},"
        f" {where['disk']}, load {where['load']:.1f}, {bench.rounds} rounds",
        *(f"skipped: {text}" for text in bench.skipped),
        "",
        f"{'median':22}{'notes':>9}{'ext4':>10}{'floor':>10}{'memfs':>10}"
        f"{'unit':>6}{'memfs/floor':>13}{'memfs p99':>11}",
    ]
    for operation, worlds in report["figures"].items():
        for world, row in worlds.items():
            ext4, floor, memfs = (row.get(n, {}).get("median") for n in ("ext4", "floor", "memfs"))
            if "disk" in row:
                ext4 = row["disk"]["median"]
            over = f"{memfs / floor:.2f}" if memfs and floor else "-"
            p99 = None if UNITS.get(operation) else row.get("memfs", {}).get("p99")
            lines.append(
                f"{operation:22}{int(world):9,}{fmt(ext4):>10}{fmt(floor):>10}{fmt(memfs):>10}"
                f"{UNITS.get(operation, 'µs'):>6}{over:>13}{fmt(p99):>11}"
            )
    lines += ["", "p99 of read beside two savers: " + ", ".join(
        f"{name} {fmt(bench.result.p99('read beside savers', bench.large, name))} µs"
        for name in bench.names
    )]  # fmt: skip
    for when, parts in bench.memory.items():
        split = ", ".join(f"{key} {value:.0f}" for key, value in parts.items())
        lines.append(f"memory {when}: {split} MiB")
    lines += ["", f"{'target':62}{'limit':>8}{'value':>8}"]
    for target in bench.targets():
        verdict = {True: "met", False: "MISSED", None: "not measured"}[target.met]
        sign = "≥" if target.at_least else "≤"
        lines.append(
            f"{target.text:62}{sign + fmt(target.limit):>8}{fmt(target.value):>8}"
            f"  {verdict:13}{target.detail}"
        )
    return "\n".join(lines) + "\n"


def options_of(what: str, about: str, *, quick: str, rounds: str) -> argparse.Namespace:
    """Return the options of a bench, and have SIGTERM and SIGHUP end it in order."""
    parser = argparse.ArgumentParser(prog=f"scripts/bench {what}", description=about)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print JSON; the table goes to stderr")
    parser.add_argument("--rounds", type=int, help=rounds)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where to work")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    return options


def show(text: str, report: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    """Print a table; with JSON that is what stdout gets."""
    (sys.stderr if as_json else sys.stdout).write(text)
    if as_json:
        json.dump(report(), sys.stdout, indent=1)
        sys.stdout.write("\n")


def main() -> int:
    """Run the bench and print what it found."""
    options = options_of(
        "fs",
        __doc__.split("\n")[0],
        quick="fewer rounds, 1,000 notes at most",
        rounds="rounds of the per-operation measurements",
    )
    base = Path(tempfile.mkdtemp(prefix="memfs-bench-", dir=options.dir))
    if "tmpfs" in machine(base)["disk"]:
        base.rmdir()
        sys.exit(f"{options.dir} is in memory; name a directory on a disk with --dir")
    bench = Bench(base, options.quick, options.rounds)
    for text in bench.skipped:
        say(f"skipped: {text}")
    try:
        bench.run()
    except Exception:
        traceback.print_exc()
        failed = True
    else:
        failed = False
    finally:
        bench.close()
    show(table(bench), bench.report, as_json=options.json)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
