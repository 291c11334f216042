"""memfs's main job end to end, on the licence and README files of this machine.

Copies real files in with cp, rsync and tar, edits them with sed, the shell, vim and Python, reads
all back byte-exact, restores a version, kills the daemon with SIGKILL in the middle of writes and
checks that everything whose close() had returned is there. Exit code 0: all of it held.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from live import Failed, Live, cannot_mount, mounts_below, unmount_below

FILES = 240  # copied with each of the three programs
ENOUGH_FILES = 200  # must be left when the secret scanner has refused some
MAX_BYTES = 102_400  # a note's limit
FEW_REFUSED = 12  # more refusals among real licence files would be false positives
EDITS = 8  # files that each editor changes
KILLS, WRITERS, PROMISES = 3, 4, 12  # rounds; processes; promises of each before the kill
WATCHDOG_S = 600  # a hung mount ends as a failure, not as a hang
SEED = 20_251_201

ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8"}
NAMES = ("copyright", "LICEN[CS]E*", "README*", "NOTICE*", "AUTHORS*", "*.md", "*.rst", "METADATA")


# What is expected ---------------------------------------------------------------------------------


@dataclass
class Expected:
    """What the mounted stores must hold: text and number of versions of each note."""

    folder: Path  # <task>/memory
    text: dict[Path, bytes] = field(default_factory=dict)  # by path below folder
    versions: dict[Path, int] = field(default_factory=dict)

    def save(self, path: Path, text: bytes) -> None:
        """Note that *path* was saved once more, with *text*."""
        self.text[path] = text
        self.versions[path] = self.versions.get(path, 0) + 1


def expect(what: str, wanted: object, found: object) -> None:
    """Fail unless *found* equals *wanted*."""
    if wanted != found:
        raise Failed(f"{what}: expected {shown(wanted)}, found {shown(found)}")


def shown(value: object) -> str:
    """Return *value* short enough for one line of a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]} … {text[-60:]} ({len(text)} characters)"


def command(*args: str | Path, stdin: bytes = b"", check: bool = True) -> str:
    """Run one program, in a UTF-8 locale; return what it wrote to stderr."""
    done = subprocess.run(
        args, input=stdin, capture_output=True, timeout=120, env=ENVIRONMENT, check=False
    )
    error = done.stderr.decode(errors="replace").strip()
    if check:
        words = " ".join(map(str, args))
        expect(f"`{words}`: exit code and stderr", (0, ""), (done.returncode, error))
    return error


# Real input ---------------------------------------------------------------------------------------


def real_files() -> Iterator[Path]:
    """Yield licences, READMEs and the like of the packages that are installed here."""
    yield from sorted(Path("/usr/share/doc").glob("*/copyright"))[: FILES * 2 // 3]
    packages = Path(sysconfig.get_path("purelib"))
    for name in NAMES:
        yield from sorted(packages.rglob(name))
    for top in (Path("/usr/share/doc"), Path("/usr/share/common-licenses")):
        yield from sorted(path for path in top.rglob("*") if path.suffix != ".gz")


def is_text(path: Path) -> bool:
    """Tell whether *path* is a file of its own that a note can hold."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return False
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def collect(source: Path) -> int:
    """Copy real files below *source*, names and times kept; return how many."""
    count = 0
    for path in real_files():
        below = path.relative_to(path.parents[1])  # libc6/copyright, licenses/LICENSE.txt
        if "site-packages" in path.parts:
            below = path.relative_to(sysconfig.get_path("purelib"))
        target = source / below
        if target.exists() or not is_text(path):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        count += 1
        if count == FILES:
            break
    if count < ENOUGH_FILES:
        raise Failed(f"expected at least {ENOUGH_FILES} text files on this machine, found {count}")
    return count


def texts(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below *folder*, by relative path."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Steps --------------------------------------------------------------------------------------------


@dataclass
class Smoke:
    """One run in one workspace."""

    live: Live
    scratch: Path  # on an ordinary disk
    own: dict[str, Any] = field(default_factory=dict)  # the task's attachments
    shared: dict[str, Any] = field(default_factory=dict)
    expected: Expected = field(default_factory=lambda: Expected(Path()))
    edited: list[Path] = field(default_factory=list)

    def store_and_path(self, path: Path) -> tuple[str, str]:
        """Return what the command line calls the note at *path* below the task's folder."""
        for attachment in (self.own, self.shared):
            if Path(attachment["mount_path"]).name == path.parts[0]:
                return attachment["memory_store_id"], f"/{Path(*path.parts[1:])}"
        raise AssertionError(path)

    def start(self) -> str:
        """The daemon is up and a task with its worker's own and a shared store is mounted."""
        self.live.start()
        self.live.json("store", "create", "Team notes", "--description", "What all should know.")
        task = self.live.json(
            *("task", "create", "smoke", "--worker", "Tester"),
            *("--store", "Team notes"),
        )
        self.own, self.shared = task["resources"]
        folder = Path(self.own["mount_path"])
        expect(
            "the folders of the task", ["team-notes", "tester"], sorted(os.listdir(folder.parent))
        )
        self.expected.folder = folder.parent
        return str(folder.parent)

    def copy_in(self) -> str:
        """Each of cp -a, rsync -t and tar has put the same real files into a folder of its own."""
        source = self.scratch / "files"
        count = collect(source)
        by_cp = Path(self.own["mount_path"]) / "by-cp"
        refused = self.refusals(source, by_cp, command("cp", "-a", source, by_cp, check=False))

        by_rsync = Path(self.shared["mount_path"]) / "by-rsync"
        command("rsync", "-rt", f"{source}/", f"{by_rsync}/")
        by_tar = Path(self.own["mount_path"]) / "by-tar"
        by_tar.mkdir()
        archive = self.scratch / "files.tar"
        command("tar", "-cf", archive, "-C", source, ".")
        command("tar", "-xf", archive, "-C", by_tar)

        files = texts(source)
        for target in (by_cp, by_rsync, by_tar):
            expect(f"names in {target.name}", sorted(files), sorted(texts(target)))
            for path, text in files.items():
                self.expected.save(target.relative_to(self.expected.folder) / path, text)
                copied, original = (target / path).stat(), (source / path).stat()
                expect(f"size of {target / path}", original.st_size, copied.st_size)
                expect(f"mtime of {target / path}", int(original.st_mtime), int(copied.st_mtime))
        size = sum(map(len, files.values()))
        said = f"{len(files)} real files, {size / 2**20:.1f} MiB, three times"
        return said + (f"; refused as secrets: {', '.join(refused)} of {count}" if refused else "")

    def refusals(self, source: Path, target: Path, error: str) -> list[str]:
        """Take the files that the secret scanner refused out of *source*; return their names.

        Only EACCES counts, for few files, and a refused file must not be there by half.
        """
        refused: list[str] = []
        for path in sorted(texts(source)):
            if f"'{target / path}': Permission denied" not in error:
                continue
            if (target / path).exists():
                raise Failed(f"expected nothing at the refused {target / path}, found a file")
            (source / path).unlink()
            refused.append(str(path))
        others = [  # cp says it for the write, and again for the close
            line
            for line in error.splitlines()
            if not any(line.endswith(f"'{target / path}': Permission denied") for path in refused)
        ]
        if others or len(refused) > FEW_REFUSED:
            raise Failed(
                f"cp -a: expected at most {FEW_REFUSED} files refused with EACCES and no other "
                f"message, found {len(refused)} and: {shown(others)}"
            )
        return refused

    def edit(self) -> str:
        """Each editor has changed some of the files, and each save is one version."""
        counts: list[str] = []
        ways: dict[str, Callable[[Path, bytes], bytes]] = {
            "sed -i": edit_with_sed,
            ">>": edit_with_shell,
            "vim backupcopy=auto": lambda path, text: edit_with_vim("auto", path, text),
            "vim backupcopy=yes": lambda path, text: edit_with_vim("yes", path, text),
            "vim backupcopy=no": lambda path, text: edit_with_vim("no", path, text),
            "Python open('w')": edit_with_python,
            "Python os.replace": edit_with_replace,
        }
        plain = [
            path
            for path, text in self.expected.text.items()
            if text.endswith(b"\n") and text.isascii() and b"\r" not in text and b"\0" not in text
        ]
        random.Random(SEED).shuffle(plain)
        for name, change in ways.items():
            for _ in range(EDITS):
                path = plain.pop()
                text = change(self.expected.folder / path, self.expected.text[path])
                self.expected.save(path, text)
                self.edited.append(path)
            counts.append(name)
        return f"{EDITS} files each with {', '.join(counts)}"

    def read_back(self, *, cat: bool) -> str:
        """Every note holds exactly its text, through the mount and through the command line."""
        for path, text in self.expected.text.items():
            expect(str(path), text, (self.expected.folder / path).read_bytes())
        said = f"{len(self.expected.text)} notes through the mount"
        if not cat:
            return said
        for path, text in self.expected.text.items():
            store, name = self.store_and_path(path)
            found = self.live.here("cat", store, name).stdout_bytes
            expect(f"memfs cat {store} {name}", text, found)
        for attachment in (self.own, self.shared):
            top = Path(attachment["mount_path"]).name
            wanted = sorted(
                self.store_and_path(path)[1] for path in self.expected.text if path.parts[0] == top
            )
            rows = self.live.list("ls", "-r", attachment["memory_store_id"])
            found = sorted(row["path"] for row in rows if row["type"] == "memory")
            expect(f"memfs ls {attachment['name']}", wanted, found)
        return f"{said} and through memfs cat; all names through memfs ls"

    def versions(self) -> str:
        """Each note has one version for each save, no more and no less; one is restored."""
        operations: dict[tuple[str, str], list[str]] = {}
        for attachment in (self.own, self.shared):
            store = attachment["memory_store_id"]
            for row in self.live.list("log", store):
                operations.setdefault((store, row["path"]), []).append(row["operation"])
        wanted = {
            self.store_and_path(path): ["modified"] * (saves - 1) + ["created"]
            for path, saves in self.expected.versions.items()
        }
        for note in sorted(wanted.keys() | operations.keys()):
            expect(f"versions of {note}", wanted.get(note), operations.get(note))

        path = self.edited[0]
        store, name = self.store_and_path(path)
        newest, oldest = self.live.list("log", store, name)
        original = (self.scratch / "files" / Path(*path.parts[2:])).read_bytes()
        self.live.run("restore", store, name, oldest["id"])
        self.expected.save(path, original)
        expect(f"the restored {path}", original, (self.expected.folder / path).read_bytes())
        rows = self.live.list("log", store, name)
        expect(f"versions below the restored {path}", [newest, oldest], rows[1:])
        return f"{sum(map(len, wanted.values()))} versions of {len(wanted)} notes; one restored"

    def crash(self, number: int) -> str:
        """After SIGKILL in the middle of writes, every save whose close had returned is there."""
        folder = self.expected.folder / "team-notes" / f"crash-{number}"
        folder.mkdir()
        promises = [self.scratch / f"promises-{number}-{writer}" for writer in range(WRITERS)]
        writers = [
            subprocess.Popen(
                [sys.executable, __file__, "--writer", folder, str(writer)],
                stdout=promised.open("wb"),
                stderr=subprocess.PIPE,
            )
            for writer, promised in enumerate(promises)
        ]
        try:
            end = time.monotonic() + 30
            while any(promised.read_bytes().count(b"\n") < PROMISES for promised in promises):
                for writer in writers:
                    if writer.poll() is not None and writer.stderr is not None:
                        error = writer.stderr.read().decode(errors="replace")
                        raise Failed(f"expected writers to write, found one ended: {error}")
                if time.monotonic() > end:
                    raise Failed(f"expected {PROMISES} saves of each writer in 30 s, found fewer")
                time.sleep(0.01)
            time.sleep(random.Random(SEED + number).random() * 0.3)
            self.live.kill()
            for writer in writers:
                try:
                    writer.wait(20)  # the mount is dead: its next operation fails
                except subprocess.TimeoutExpired:
                    raise Failed("expected writers to fail after SIGKILL, found one hang") from None
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        self.live.start()
        kept, newer = check_promises(folder, promises)
        return f"{kept} promised saves by {WRITERS} writers are there, {newer} newer unpromised"

    def healthy(self) -> str:
        """`memfs status` and `memfs doctor` find nothing wrong."""
        self.live.run("status")
        self.live.run("doctor")
        return "memfs status and memfs doctor"

    def end(self) -> str:
        """The daemon ends cleanly, and its data directory is sound."""
        self.live.stop()
        self.live.run("check")
        expect("mounts that are left", [], mounts_below(self.live.workspace))
        return "memfs check finds nothing wrong, no mount is left"


# Editors ------------------------------------------------------------------------------------------


def edit_with_sed(path: Path, text: bytes) -> bytes:
    """Replace a letter throughout, and the first line, so that there is a change for sure."""
    command("sed", "-i", "-e", "1s/^/sed: /", "-e", "s/the/THE/g", path)
    return b"sed: " + text.replace(b"the", b"THE")


def edit_with_shell(path: Path, text: bytes) -> bytes:
    """Append a line as a shell does."""
    command("sh", "-c", 'echo "one more line" >> "$1"', "sh", path)
    return text + b"one more line\n"


def edit_with_vim(backupcopy: str, path: Path, text: bytes) -> bytes:
    """Append a line in vim, with a backup file, and write."""
    settings = f"set backup backupcopy={backupcopy}"
    keys = f"normal Govim backupcopy={backupcopy}"
    command(
        "vim", "-u", "NONE", "-N", "-i", "NONE", "-es", "-c", settings, "-c", keys, "-c", "wq", path
    )
    return text + f"vim backupcopy={backupcopy}\n".encode()


def edit_with_python(path: Path, text: bytes) -> bytes:
    """Write a shorter text over the old one."""
    shorter = b"# " + text[: len(text) // 2]
    with path.open("wb") as file:
        file.write(shorter)
    return shorter


def edit_with_replace(path: Path, text: bytes) -> bytes:
    """Write a temporary file and rename it over the note, as careful programs do."""
    changed = text.upper() + b"replaced\n"
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(changed)
    os.replace(file.name, path)
    return changed


# The crash ----------------------------------------------------------------------------------------


def numbered(name: str, save: int) -> bytes:
    """Return the text of one save of a file that is written whole."""
    return f"{name} save {save}\n".encode() + f"{save:06d} ".encode() * (save * 37 % 400) + b"\n"


def appended(name: str, save: int) -> bytes:
    """Return the text of a file that grew by a line with each save."""
    return b"".join(f"{name} line {i}\n".encode() for i in range(1, save + 1))


def write_until_killed(folder: Path, writer: int) -> None:
    """Save three files again and again, each in its own way; promise each save that returned.

    A promise is the line `NAME NUMBER` on stdout, which is a file on an ordinary disk.
    """
    whole, renamed, grown = (f"{way}-{writer}.md" for way in ("whole", "renamed", "grown"))
    for save in range(1, 100_000):
        with (folder / whole).open("wb") as file:
            file.write(numbered(whole, save))
        os.write(1, f"{whole} {save}\n".encode())
        temporary = folder / f".tmp-{writer}-{save}"
        with temporary.open("wb") as file:
            file.write(numbered(renamed, save))
        os.replace(temporary, folder / renamed)
        os.write(1, f"{renamed} {save}\n".encode())
        with (folder / grown).open("ab") as file:
            file.write(f"{grown} line {save}\n".encode())
        os.write(1, f"{grown} {save}\n".encode())


def check_promises(folder: Path, promises: Iterable[Path]) -> tuple[int, int]:
    """Return how many promised saves were checked and how many newer ones were found."""
    promised: dict[str, int] = {}
    for path in promises:
        for line in path.read_text().splitlines():
            name, save = line.split()
            promised[name] = int(save)
    newer = 0
    for name, save in promised.items():
        make = appended if name.startswith("grown") else numbered
        found = (folder / name).read_bytes()
        if found == make(name, save + 1):
            newer += 1
        else:
            expect(f"{folder.name}/{name}, promised save {save}", make(name, save), found)
    others = set(os.listdir(folder)) - set(promised)
    for name in others:  # a first save that was not promised yet
        make = appended if name.startswith("grown") else numbered
        expect(f"the unpromised {folder.name}/{name}", make(name, 1), (folder / name).read_bytes())
    if not promised:
        raise Failed("expected promises, found none: nothing was tested")
    return sum(promised.values()), newer + len(others)


# The run ------------------------------------------------------------------------------------------


@contextmanager
def temporary_workspace(*, keep: bool) -> Generator[tuple[Live, Path], None, None]:
    """A workspace and a scratch folder; afterwards nothing is mounted or running there."""
    top = Path(tempfile.mkdtemp(prefix="memfs-smoke-"))
    live = Live(top / "workspace")
    scratch = top / "scratch"
    scratch.mkdir()
    try:
        yield live, scratch
    finally:
        live.close()
        unmount_below(live.workspace)
        if keep:
            print(f"kept: {top}")
        elif not mounts_below(top):
            shutil.rmtree(top)


@contextmanager
def watchdog(live: Live) -> Generator[None, None, None]:
    """Kill the daemon after WATCHDOG_S, which frees everything that hangs in its mount."""

    def bite() -> None:
        print(f"FAILED  no end in {WATCHDOG_S} s: the daemon is killed", file=sys.stderr)
        live.kill()

    timer = threading.Timer(WATCHDOG_S, bite)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main() -> int:
    """Run all steps; exit code 0 when every one held."""
    parser = argparse.ArgumentParser(prog="scripts/run --smoke", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the workspace there")
    parser.add_argument("--writer", nargs=2, metavar=("FOLDER", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        write_until_killed(Path(options.writer[0]), int(options.writer[1]))
        return 0
    if (reason := cannot_mount()) is not None:
        print(f"memfs: {reason}", file=sys.stderr)
        return 1

    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # still unmounts
    begun = time.monotonic()
    with temporary_workspace(keep=options.keep) as (live, scratch), watchdog(live):
        smoke = Smoke(live, scratch)
        steps: list[tuple[str, Callable[[], str]]] = [
            ("start", smoke.start),
            ("copy in", smoke.copy_in),
            ("edit", smoke.edit),
            ("read back", lambda: smoke.read_back(cat=True)),
            ("versions", smoke.versions),
            *((f"crash {n}", lambda n=n: smoke.crash(n)) for n in range(1, KILLS + 1)),
            ("read again", lambda: smoke.read_back(cat=False)),
            ("health", smoke.healthy),
            ("end", smoke.end),
        ]
        for name, step in steps:
            before = time.monotonic()
            try:
                said = step()
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                print(f"FAILED  {name}: {failure}", file=sys.stderr)
                if (log := live.log_tail()) not in str(failure):
                    print(f"the daemon's log ends with:\n{log}", file=sys.stderr)
                return 1
            print(f"ok {time.monotonic() - before:6.2f} s  {name:<10}  {said}", flush=True)
    print(f"memfs smoke run: all held, in {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
