"""daemon.mount against the real kernel: tiny file systems in child processes, killed and stopped.

pyfuse3 has one mount a process, so each mount is a child; only children started here are ended,
and every mount below a test's folder is taken away afterwards, whatever the test did.
"""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from daemon import mount
from daemon.config import Config
from daemon.mount import Binder
from memfs import errors

ROOT = Path(__file__).parents[1]
NOBODY = 65_534

fuse = pytest.mark.fuse
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: binds, other users' files")

# A root with the folders 1 and 2, each with a file f; whatever is written to f is dropped.
CHILD = """
import errno, os, stat, sys, trio, pyfuse3
from pathlib import Path
from daemon import log, mount
from daemon.config import Config

NAMES = {(1, b"1"): 2, (1, b"2"): 3, (2, b"f"): 4, (3, b"f"): 5}

class Tiny(pyfuse3.Operations):
    async def getattr(self, ino, ctx=None):
        attr = pyfuse3.EntryAttributes()
        attr.st_ino = ino
        folder = ino < 4
        attr.st_mode = (stat.S_IFDIR if folder else stat.S_IFREG) | 0o777
        attr.st_size = 0 if folder else 4096
        return attr
    async def lookup(self, parent, name, ctx=None):
        if (parent, name) not in NAMES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(NAMES[parent, name])
    async def opendir(self, ino, ctx):
        return ino
    async def readdir(self, fh, start, token):
        for (parent, name), ino in NAMES.items():
            if parent == fh and ino > start:
                if not pyfuse3.readdir_reply(token, name, await self.getattr(ino), ino):
                    return
    async def open(self, ino, flags, ctx):
        return pyfuse3.FileInfo(fh=ino)
    async def read(self, fh, offset, size):
        return bytes(max(0, min(size, 4096 - offset)))
    async def write(self, fh, offset, data):
        return len(data)
    async def setattr(self, ino, attr, fields, fh, ctx):
        return await self.getattr(ino)

config = Config(Path(sys.argv[1]))
log.setup()
"""
SERVE = """
mount.mount_fuse(Tiny(), config)
print("ready", flush=True)
trio.run(mount.serve_fuse, config)
"""


def unmount_all(config: Config) -> None:
    """Leaves no mount; -f also frees processes that wait for a daemon that waits for itself."""
    for point in reversed(mount.read_mounts()):
        if point.path.is_relative_to(config.workspace):
            subprocess.run(["umount", "-fl", point.path], check=True)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    config = Config(tmp_path)
    yield config
    unmount_all(config)


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(config: Config) -> Iterator[Start]:
    """Starts the tiny file system (or other code) and waits until it is mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs a usable /dev/fuse")
    children: list[subprocess.Popen[str]] = []

    def start(code: str = SERVE, workspace: Path = config.workspace) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD + code, workspace],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        return child

    yield start
    for child in children:
        child.kill()
    unmount_all(config)
    for child in children:
        child.communicate(timeout=10)


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def place(config: Config, name: str = "notes", task: str = "T") -> Path:
    return config.tasks_dir / task / "memory" / name


def code_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as exc:
        return exc.errno
    return None


# The mount table -------------------------------------------------------------------------------


def test_mount_table_undoes_escapes_and_optional_fields() -> None:
    line = (
        r"36 35 0:45 /a\040b /x\011y\134z\012\043 ro,nosuid shared:1 master:2 - fuse.memfs "
        r"mem\040fs rw,user_id=0"
    )
    parsed = mount._parse_mount(line)  # pyright: ignore[reportPrivateUsage]
    assert parsed == mount.MountPoint(
        id=36,
        device="0:45",
        root="/a b",
        path=Path("/x\ty\\z\n#"),
        options=frozenset({"ro", "nosuid"}),
        type="fuse.memfs",
    )


@needs_root
def test_mount_table_has_strange_names(config: Config) -> None:
    path = config.workspace / "a b\tc\nd\\e#f\u2028\x0bü\udcff"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "strange", path], check=True)
    assert [m.type for m in mount.read_mounts() if m.path == path] == ["tmpfs"]


# The FUSE mount --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "shown"), [("a-b/c.d", "a-b/c.d"), ("Ü a,b\\c:d#e", "__a_b_c_d_e")]
)
def test_a_mounts_source_names_the_workspace_in_plain_characters(
    tmp_path: Path, folder: str, shown: str
) -> None:
    found = mount.source_name(Config(tmp_path / folder))
    assert found.startswith("memfs@/")
    assert found.endswith(f"/{shown}")


@fuse
def test_mount_is_fuse_memfs_and_nosuid_nodev_noexec(config: Config, start: Start) -> None:
    start()
    (point,) = mount.memfs_mounts_below(config.workspace)
    assert point.path == config.mount_dir
    assert {"nosuid", "nodev", "noexec", "rw"} <= point.options
    found = subprocess.run(
        ["findmnt", "-no", "SOURCE,FSTYPE,OPTIONS", config.mount_dir],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found.split()[:2] == [mount.source_name(config), "fuse.memfs"]
    assert str(config.workspace.parent.parent) in found  # whose mount it is
    assert "default_permissions" in found
    assert ("allow_other" in found) == (os.geteuid() == 0)
    assert stat.S_IMODE(config.data_dir.stat().st_mode) == 0o700


FULL = """
async def main():
    binder = mount.Binder(config)
    notes = config.tasks_dir / "T/memory/notes"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mount.serve_fuse, config)
        with trio.fail_after(10):
            run = trio.to_thread.run_sync
            await run(binder.bind, config.mount_dir / "1", notes, True)
            print(await run(os.listdir, notes), flush=True)
            held = await run(os.open, config.mount_dir / "1/f", os.O_RDONLY)
            try:
                await run(lambda: mount.unmount_fuse(config, lazily=False))
            except Exception as exc:
                print(type(exc).__name__, flush=True)
            await run(os.close, held)  # a close asks the daemon too
            await run(binder.unbind, notes)
            await run(lambda: mount.unmount_fuse(config, lazily=False))
            await run(lambda: mount.unmount_fuse(config, lazily=False))  # nothing left: no error
    print("ended", os.path.ismount(config.mount_dir), flush=True)

mount.mount_fuse(Tiny(), config)
print("ready", flush=True)
trio.run(main)
"""


@fuse
@needs_root
def test_daemon_binds_from_a_thread_and_ends_when_unmounted(config: Config, start: Start) -> None:
    out, err = start(FULL).communicate(timeout=30)
    assert (out, err) == ("['f']\nConflict\nended False\n", "")
    assert not mount.memfs_mounts_below(config.workspace)


CANCELLED = """
async def main():
    with trio.move_on_after(0.2):
        await mount.serve_fuse(config)
    print("ended", flush=True)

mount.mount_fuse(Tiny(), config)
print("ready", flush=True)
trio.run(main)
"""


@fuse
def test_cancelled_daemon_leaves_no_mount(config: Config, start: Start) -> None:
    assert start(CANCELLED).communicate(timeout=30) == ("ended\n", "")
    assert not mount.memfs_mounts_below(config.workspace)
    assert os.listdir(config.mount_dir) == []


@fuse
def test_busy_mount_names_who_holds_it_and_goes_lazily(config: Config, start: Start) -> None:
    child = start()
    with subprocess.Popen(["sleep", "60"], cwd=config.mount_dir) as holder:
        try:
            with pytest.raises(errors.Conflict, match=rf"busy: pid {holder.pid} \(sleep\)"):
                mount.unmount_fuse(config, lazily=False)
            mount.unmount_fuse(config, lazily=True)
            assert not mount.memfs_mounts_below(config.workspace)
            assert child.poll() is None  # serves its last holder
        finally:
            holder.kill()
    assert child.wait(10) == 0


@fuse
def test_second_mount_and_stray_files_are_refused(config: Config, start: Start) -> None:
    kill(start())  # also a dead one is not mounted over
    refused = subprocess.run(
        [sys.executable, "-c", CHILD + SERVE, config.workspace],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "errors.Conflict" in refused.stderr
    assert "is mounted" in refused.stderr
    mount.remove_dead(config)
    (config.mount_dir / "stray").touch()
    with pytest.raises(errors.Conflict, match="not empty"):
        mount.mount_fuse(mount.pyfuse3.Operations(), config)


def test_unusable_fuse_device_comes_with_its_remedy(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operations = mount.pyfuse3.Operations()
    monkeypatch.setattr(mount, "_FUSE", tmp_path / "fuse")
    with pytest.raises(errors.NotFound, match="modprobe fuse"):
        mount.mount_fuse(operations, config)
    (tmp_path / "fuse").mkdir()  # opened for writing: EISDIR stands for ENODEV
    with pytest.raises(errors.Unavailable, match="modprobe fuse"):
        mount.mount_fuse(operations, config)
    monkeypatch.setattr(mount, "_FUSE", Path("/dev/null"))
    monkeypatch.setattr(mount, "_may_mount", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(errors.NotFound, match="apt-get install fuse3"):
        mount.mount_fuse(operations, config)
    monkeypatch.setattr(mount, "_may_allow_other", lambda: False)
    problems = "\n".join(mount.check_machine())
    assert "fuse3" in problems
    assert "symlinks" in problems
    assert "user_allow_other" in problems


def test_fuse_conf_is_read_as_fusermount_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allowed = mount._may_allow_other  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(mount, "_FUSE_CONF", tmp_path / "fuse.conf")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not allowed()
    (tmp_path / "fuse.conf").write_text("#user_allow_other\nmount_max = 1000\n")
    assert not allowed()
    (tmp_path / "fuse.conf").write_text("# x\nuser_allow_other\n")
    assert allowed()


# Dead mounts -----------------------------------------------------------------------------------


@fuse
@needs_root
def test_dead_mounts_are_removed_and_nothing_else(config: Config, start: Start) -> None:
    child = start()
    binder = Binder(config)
    notes, other = place(config), place(config, "other", "U")
    binder.bind(config.mount_dir / "1", notes, False)
    binder.bind(config.mount_dir / "2", other, True)
    binder.bind(config.mount_dir / "2", place(config, "third"), True)
    subprocess.run(["mount", "--bind", notes, notes], check=True)  # stacked by somebody
    tmpfs = place(config, "scratch")
    tmpfs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "theirs", tmpfs], check=True)
    (tmpfs / "file").touch()
    # A live daemon of another workspace, inside a task's folder.
    nested = config.tasks_dir / "T/work"
    nested.mkdir()
    start(workspace=nested)
    # Links: ours, and somebody's.
    (config.tasks_dir / "T/memory/link").symlink_to(config.mount_dir / "1")
    (config.tasks_dir / "T/memory/theirs").symlink_to("/etc")
    (config.tasks_dir / "V").symlink_to(config.tasks_dir / "U")

    kill(child)
    # Not stat: the kernel goes on answering it for as long as attributes may be kept.
    assert code_of(lambda: os.listdir(notes)) == errno.ENOTCONN

    removed = mount.remove_dead(config)

    assert sorted(removed) == sorted(
        [config.mount_dir, notes, notes, place(config, "third"), other, place(config, "link")]
    )
    assert os.listdir(notes) == []
    assert (tmpfs / "file").exists()
    assert os.readlink(place(config, "theirs")) == "/etc"
    assert (config.tasks_dir / "V").is_symlink()
    (left,) = mount.memfs_mounts_below(config.workspace)
    assert left.path == Config(nested).mount_dir
    assert sorted(os.listdir(left.path)) == ["1", "2"]
    assert mount.remove_dead(config) == []


@fuse
@needs_root
def test_dead_mount_below_a_foreign_one_stays(config: Config, start: Start) -> None:
    child = start()
    notes = place(config)
    Binder(config).bind(config.mount_dir / "1", notes, False)
    subprocess.run(["mount", "-t", "tmpfs", "theirs", notes], check=True)
    kill(child)
    assert mount.remove_dead(config) == [config.mount_dir]
    assert [m.type for m in mount.read_mounts() if m.path == notes] == ["fuse.memfs", "tmpfs"]
    with pytest.raises(errors.Conflict, match="a mount is already at"):
        Binder(config).bind(config.workspace, notes, False)
    Binder(config).unbind(notes)  # a foreign mount on top: left alone
    assert [m.type for m in mount.read_mounts() if m.path == notes] == ["fuse.memfs", "tmpfs"]


@fuse
def test_dead_mount_is_removed_by_fusermount_without_permission(
    config: Config, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(start())

    def refuse(path: str, _flags: int) -> None:
        raise PermissionError(errno.EPERM, "refused", path)

    monkeypatch.setattr(mount, "_umount2", refuse)
    assert mount.remove_dead(config) == [config.mount_dir]
    assert os.listdir(config.mount_dir) == []


@fuse
@needs_root
def test_stopped_daemon_hangs_nobody_who_cleans_up(config: Config, start: Start) -> None:
    child = start()
    notes = place(config)
    Binder(config).bind(config.mount_dir / "1", notes, False)
    child.send_signal(signal.SIGSTOP)
    code = f"""
from pathlib import Path
from daemon import mount
from daemon.config import Config
config = Config(Path({str(config.workspace)!r}))
notes = config.tasks_dir / "T/memory/notes"
assert mount.holders(notes) == []
try:
    mount.Binder(config).bind(config.workspace, notes, False)
except mount.errors.Conflict:
    print("conflict")
mount.Binder(config).unbind(notes)
print(mount.remove_dead(config) == [config.mount_dir], notes.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=10
    )
    assert (done.stdout, done.stderr) == ("conflict\nTrue False\n", "")


# Binds -----------------------------------------------------------------------------------------


@pytest.fixture
def source(config: Config) -> Path:
    """A folder where the FUSE mount would be: most of Binder does not need one."""
    path = config.mount_dir / "1"
    path.mkdir(parents=True)
    (path / "note.md").write_text("x")
    return path


@fuse
@needs_root
def test_bind_shows_the_source_and_keeps_read_only_ones_from_root(
    config: Config, start: Start
) -> None:
    start()
    binder = Binder(config)
    binder.bind(config.mount_dir / "1", place(config, "rw"), False)
    binder.bind(config.mount_dir / "2", place(config, "ro"), True)
    (place(config, "rw") / "f").write_text("x")
    assert code_of(lambda: os.open(place(config, "ro") / "f", os.O_WRONLY)) == errno.EROFS
    assert code_of(lambda: os.open(place(config, "ro") / "f", os.O_TRUNC)) == errno.EROFS
    for point in mount.memfs_mounts_below(config.tasks_dir):
        assert {"nosuid", "nodev", "noexec"} <= point.options
        assert ("ro" in point.options) == (point.path.name == "ro")
        assert point.root == ("/2" if point.path.name == "ro" else "/1")
    binder.unbind(place(config, "rw"))
    assert os.listdir(config.tasks_dir / "T/memory") == ["ro"]
    binder.unbind(place(config, "ro"))
    assert os.listdir(config.tasks_dir) == []
    binder.unbind(place(config, "ro"))  # gone: nothing happens


@needs_root
def test_folders_belong_to_the_task_and_memory_to_the_daemon(config: Config, source: Path) -> None:
    old = os.umask(0o077)
    try:
        Binder(config).bind(source, place(config), False, 1234, 4321)
    finally:
        os.umask(old)
    task = (config.tasks_dir / "T").stat()
    memory = (config.tasks_dir / "T/memory").stat()
    assert (stat.S_IMODE(task.st_mode), task.st_uid, task.st_gid) == (0o700, 1234, 4321)
    assert (stat.S_IMODE(memory.st_mode), memory.st_uid) == (0o755, os.geteuid())
    Binder(config).bind(source, place(config, "second"), False, 1234, 4321)


@needs_root
def test_unbind_keeps_a_tasks_other_files(config: Config, source: Path) -> None:
    binder = Binder(config)
    binder.bind(source, place(config), False)
    (config.tasks_dir / "T/result.txt").touch()
    mounted = [m for m in mount.read_mounts() if m.path == place(config)]
    assert [m.type == "fuse.memfs" for m in mounted] == [False]
    binder.unbind(place(config))  # ext4 here, so it is not a mount of ours
    assert (place(config) / "note.md").exists()
    subprocess.run(["umount", place(config)], check=True)
    binder.unbind(place(config))  # the empty folder of a daemon that died in between
    assert os.listdir(config.tasks_dir / "T") == ["result.txt"]


@needs_root
def test_no_file_lands_in_a_folder_whose_mount_is_going(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binder, codes = Binder(config), []
    for name in ("notes", "more"):
        binder.bind(source, place(config, name), False)
    monkeypatch.setattr(mount, "TYPE", mount._seen_at(place(config)).type)  # as if it were ours
    unmount = mount._unmount

    def and_write(path: str, **how: bool) -> None:
        unmount(path, **how)
        codes.append(code_of(lambda: (place(config) / "lost.md").write_text("x")))

    monkeypatch.setattr(mount, "_unmount", and_write)
    (config.tasks_dir / "T/memory/beside.md").touch()
    binder.unbind(place(config), place(config, "more"))
    assert codes == [errno.ENOENT] * 2
    assert os.listdir(config.tasks_dir / "T") == ["memory"]
    assert os.listdir(config.tasks_dir / "T/memory") == ["beside.md"]
    assert os.listdir(source) == ["note.md"]


@needs_root
def test_a_daemon_that_died_while_mounts_went_leaves_a_folder_that_can_be_used(
    config: Config, source: Path
) -> None:
    (config.tasks_dir / "T/memory.going/notes").mkdir(parents=True)
    (config.tasks_dir / "T/memory.going/beside.md").touch()
    subprocess.run(
        ["mount", "--bind", source, config.tasks_dir / "T/memory.going/notes"], check=True
    )
    try:
        with mock.patch.object(mount, "TYPE", mount._seen_at(Path("/")).type):
            assert mount.remove_dead(config) == [config.tasks_dir / "T/memory.going/notes"]
    finally:
        subprocess.run(["umount", "-q", config.tasks_dir / "T/memory.going/notes"], check=False)
    Binder(config).bind(source, place(config), False)
    assert sorted(os.listdir(config.tasks_dir / "T/memory")) == ["beside.md", "notes"]
    assert (place(config) / "note.md").exists()


def test_what_is_in_the_way_is_never_hidden(config: Config, source: Path) -> None:
    binder = Binder(config)
    target = place(config)
    target.mkdir(parents=True)
    (target / "mine.md").touch()
    for _ in range(2):
        with pytest.raises(errors.Conflict, match="something is already at"):
            binder.bind(source, target, False)
    binder.unbind(target)
    assert os.listdir(target) == ["mine.md"]
    shutil.rmtree(target)
    target.touch()
    with pytest.raises(errors.Conflict, match="something is already at"):
        binder.bind(source, target, False)
    binder.unbind(target)
    assert target.is_file()
    target.unlink()
    target.symlink_to("/etc")
    with pytest.raises(errors.Conflict, match="something is already at"):
        binder.bind(source, target, False)
    binder.unbind(target)
    assert target.is_symlink()


@needs_root
def test_second_bind_is_refused_and_an_empty_folder_or_stale_link_is_used(
    config: Config, source: Path
) -> None:
    binder = Binder(config)
    place(config).mkdir(parents=True)
    binder.bind(source, place(config), False)
    with pytest.raises(errors.Conflict, match="a mount is already at"):
        binder.bind(source, place(config), False)
    assert len([m for m in mount.read_mounts() if m.path == place(config)]) == 1
    place(config, "linked").symlink_to(config.mount_dir / "9")
    binder.bind(source, place(config, "linked"), False)
    assert place(config, "linked") in [m.path for m in mount.read_mounts()]


@pytest.mark.parametrize("part", ["T", "T/memory"])
def test_planted_symlinks_are_not_followed(
    config: Config, source: Path, tmp_path: Path, part: str
) -> None:
    victim = tmp_path / "victim"
    (victim / "memory/notes").mkdir(parents=True)
    link = config.tasks_dir / part
    link.parent.mkdir(parents=True)
    link.symlink_to(victim if part == "T" else victim / "memory")
    with pytest.raises(errors.Conflict, match="no real folder"):
        Binder(config).bind(source, place(config), False)
    Binder(config).unbind(place(config))
    assert (victim / "memory/notes").is_dir()
    assert not [m for m in mount.read_mounts() if m.path.is_relative_to(victim)]


@needs_root
def test_another_users_folder_is_refused(config: Config, source: Path) -> None:
    (config.tasks_dir / "T/memory").mkdir(parents=True)
    os.chown(config.tasks_dir / "T/memory", NOBODY, NOBODY)
    with pytest.raises(errors.Conflict, match="another user"):
        Binder(config).bind(source, place(config), False)
    Binder(config).bind(source, place(config), False, NOBODY, NOBODY)  # the task's own user


@pytest.mark.parametrize(
    "bad",
    [
        "T",
        "T/memory",
        "T/other/notes",
        "T/memory/a/b",
        "../T/memory",
        "../memory/notes",
        "../memfs/mnt",
    ],
)
def test_targets_elsewhere_are_refused(config: Config, source: Path, bad: str) -> None:
    with pytest.raises(errors.InvalidPath):
        Binder(config).bind(source, Path(os.path.normpath(config.tasks_dir / bad)), False)
    with pytest.raises(errors.InvalidPath):
        Binder(config).unbind(config.tasks_dir / bad)


@needs_root
def test_missing_source_leaves_nothing_at_the_target(config: Config) -> None:
    with pytest.raises(errors.Unavailable, match="No such file"):
        Binder(config).bind(config.mount_dir / "missing", place(config), False)
    assert os.listdir(config.tasks_dir / "T/memory") == []


@needs_root
def test_failed_read_only_remount_leaves_no_writable_bind(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mount._mount  # pyright: ignore[reportPrivateUsage]

    def refuse(source: Path | None, target: str, flags: int) -> None:
        if flags & mount.MS_REMOUNT:
            raise OSError(errno.EINVAL, "refused", target)
        real(source, target, flags)

    monkeypatch.setattr(mount, "_mount", refuse)
    with pytest.raises(errors.Unavailable, match="refused"):
        Binder(config).bind(source, place(config), True)
    assert os.listdir(config.tasks_dir / "T/memory") == []


@needs_root
def test_symlinks_where_mounting_is_forbidden_and_one_warning(
    config: Config, source: Path, tmp_path: Path
) -> None:
    code = f"""
import os
from pathlib import Path
from daemon import log, mount
from daemon.config import Config
log.setup()
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})  # here: nobody may not start root's Python
config = Config(Path({str(config.workspace)!r}))
binder = mount.Binder(config)
for name in ("a", "b"):
    binder.bind(config.mount_dir / "1", config.tasks_dir / "T/memory" / name, True)
a, b = (config.tasks_dir / "T/memory" / name for name in "ab")
print(os.readlink(a) == str(config.mount_dir / "1"), (b / "note.md").read_text())
print(mount.remove_dead(config) == [a, b], mount.remove_dead(config))
binder.bind(config.mount_dir / "1", a, True)
binder.unbind(a)
print(os.listdir(config.tasks_dir), len(mount.check_machine()) > 1)
"""
    # pytest keeps tmp_path from other users: show the workspace to nobody at its own place.
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    parents = [p for p in tmp_path.parents if p.stat().st_mode & 0o001 == 0]
    modes = [p.stat().st_mode for p in parents]
    for path in parents:
        path.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
    finally:
        for path, mode in zip(parents, modes, strict=True):
            path.chmod(stat.S_IMODE(mode))
    assert done.stdout == "True x\nTrue []\n[] True\n", done.stderr
    assert done.stderr.count("attachments are symlinks") == 1


# Holders ---------------------------------------------------------------------------------------

HOLD = {
    "fd": "held = open(sys.argv[1] + '/f')",
    "cwd": "os.chdir(sys.argv[1])",
    "map": "fd = os.open(sys.argv[1] + '/f', 0); m = mmap.mmap(fd, 9, prot=1); os.close(fd)",
    "none": "held = open(sys.argv[1] + '-2')",
}


@fuse
@needs_root
@pytest.mark.parametrize("how", HOLD)
def test_busy_attachment_is_detached_and_its_holder_named(
    config: Config, start: Start, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    start()
    notes = place(config)
    Binder(config).bind(config.mount_dir / "1", notes, False)
    place(config, "notes-2").touch()  # a name that only begins the same
    code = f"import mmap, os, sys; {HOLD[how]}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, notes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        expected = [] if how == "none" else [(holder.pid, os.path.basename(sys.executable)[:15])]
        assert mount.holders(notes) == expected
        Binder(config).unbind(notes)
        assert not notes.exists()
        assert [getattr(r, "holders", None) for r in caplog.records] == [expected] * len(expected)
        assert [m.path for m in mount.memfs_mounts_below(config.workspace)] == [config.mount_dir]
        holder.communicate("")
