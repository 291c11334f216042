"""Everything about kernel mounts but the FUSE handlers: the one FUSE mount, its binds, its dead.

Nothing here looks *through* a mount of ours: a dead one answers ENOTCONN, and one whose daemon
hangs would hang us too. What is mounted is asked of /proc, and paths below the tasks folder are
walked by descriptor without following symlinks, because a task's user may write there.

The functions block, and resolving a bind's source asks the daemon itself: call them from a thread
with a limiter of one (bind and unbind of one task must not run side by side), never on the loop.
"""

import contextlib
import ctypes
import enum
import errno
import logging
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pyfuse3

from daemon.config import Config
from memfs import errors

log = logging.getLogger(__name__)

TYPE = "fuse.memfs"
MEMORY = "memory"  # <tasks>/<id>/memory/<attachment>
GOING = "memory.going"  # what memory/ is called while its mounts are taken away

# <sys/mount.h>, <linux/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND = 32, 4096
MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8
CAP_SYS_ADMIN = 21  # <linux/capability.h>

_FUSE = Path("/dev/fuse")
# requests at once: one that waits must leave room to receive the one it waits for
_REQUESTS = 4096
_FUSE_CONF = Path("/etc/fuse.conf")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    *(ctypes.c_char_p,) * 3,  # source, target, type
    ctypes.c_ulong,
    ctypes.c_void_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


# What is mounted -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of the kernel's mount table."""

    id: int
    device: str  # major:minor, the st_dev of its files; binds share it with their source
    root: str  # the folder within the file system that is seen here
    path: Path
    options: frozenset[str]  # of this mount; the file system may be read-only besides
    type: str


def read_mounts() -> list[MountPoint]:
    """Return all mounts of this process's namespace; of several at one path the last is seen."""
    return [_parse_mount(line) for line in _mount_lines()]


def memfs_mounts_below(path: Path) -> list[MountPoint]:
    """Return the memfs mounts at or below *path* (a resolved path), deepest first, top first."""
    found = [m for m in reversed(read_mounts()) if m.type == TYPE and m.path.is_relative_to(path)]
    return sorted(found, key=lambda m: -len(m.path.parts))


def _seen_at(path: Path) -> MountPoint | None:
    """Return the mount that the name *path* (resolved) leads to, None if it is no mount point."""
    wanted = str(path)
    for line in reversed(_mount_lines()):  # parsing all of thousands for one would take 20 ms
        if _unescape(line.split(" ", 5)[4]) == wanted:
            return _parse_mount(line)
    return None


def _mount_lines() -> list[str]:
    table = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    # Not splitlines and not split(): names may hold every other kind of line end and space.
    return [line for line in table.split("\n") if line]


def _parse_mount(line: str) -> MountPoint:
    """Parse a line of mountinfo (proc_pid_mountinfo(5)); optional fields end at a lone hyphen."""
    fields = line.split(" ")
    kind = fields[fields.index("-", 6) + 1]
    return MountPoint(
        id=int(fields[0]),
        device=fields[2],
        root=_unescape(fields[3]),
        path=Path(_unescape(fields[4])),
        options=frozenset(fields[5].split(",")),
        type=_unescape(kind),
    )


def _unescape(name: str) -> str:
    r"""Undo the kernel's octal escapes: space, tab, newline, backslash and # are \040 and so on."""
    if "\\" not in name:
        return name
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), name)


def holders(path: Path) -> list[tuple[int, str]]:
    """Return pid and command of each process that keeps the mount at *path* (resolved) busy.

    Read from names that the kernel prints, nothing is opened or followed. Processes of other users
    are only seen by root.
    """
    mount = _seen_at(path)
    major, minor = mount.device.split(":") if mount else ("0", "0")
    device = f"{int(major):02x}:{int(minor):02x}"  # as maps has it, in hexadecimal
    found: list[tuple[int, str]] = []
    for process in Path("/proc").iterdir():
        # Processes end while we read, and others' are forbidden.
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and _holds(process, str(path), device):
                found.append((int(process.name), (process / "comm").read_text().rstrip("\n")))
    return sorted(found)


def _holds(process: Path, path: str, device: str) -> bool:
    """True if *process* has a working folder, root, open file or mapping at or below *path*."""
    links = [process / "cwd", process / "root"]
    with contextlib.suppress(OSError):
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if f"{os.readlink(link)}/".startswith(f"{path}/"):
                return True
    # A line is: 7f0000-7f1000 r--s 00000000 00:2d 5   /path
    for line in (process / "maps").read_text("utf-8", "surrogateescape").split("\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[3] == device and fields[5].startswith(f"{path}/"):
            return True
    return False


# Unmounting ------------------------------------------------------------------------------------


def _umount2(path: str, flags: int) -> None:
    if _libc.umount2(os.fsencode(path), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


def _unmount(path: str, *, lazily: bool, abort: bool = False) -> None:
    """Unmount the top mount at *path*, or let fusermount3 do it where this process may not.

    abort: end its requests too, for clients that wait for a daemon that is gone.
    """
    flags = (MNT_DETACH if lazily else 0) | (MNT_FORCE if abort else 0)
    try:
        _umount2(path, UMOUNT_NOFOLLOW | flags)
    except PermissionError:
        command = ["fusermount3", "-uz" if lazily else "-u", "--", path]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
            )
        except FileNotFoundError:
            raise OSError(errno.EPERM, "not root, and fusermount3 is missing", path) from None
        if done.returncode != 0:
            code = errno.EBUSY if "busy" in done.stderr else errno.EPERM
            raise OSError(code, done.stderr.strip(), path) from None


def remove_dead(config: Config) -> list[Path]:
    """Remove what an earlier daemon of this workspace left mounted or linked; return the paths.

    The caller holds the data directory's lock, so every memfs mount at one of this workspace's own
    places is stale, even one that still answers. Mounts elsewhere stay, also those of another
    workspace that lies in a task's folder, and so do the folders: a task may be working in them.
    A mount that cannot be removed is logged; mount_fuse and bind then refuse its place.
    """
    removed: list[Path] = []
    mounts = read_mounts()
    places = {
        m.path
        for m in mounts
        if m.type == TYPE and (m.path == config.mount_dir or _is_attachment(config, m.path))
    }
    for path in sorted(places, key=lambda path: -len(path.parts)):
        # Top first, and only down to a mount of somebody else: it is what the name means now.
        for mount in reversed([m for m in mounts if m.path == path]):
            if mount.type != TYPE:
                log.warning("a foreign mount hides a dead one", extra={"path": path})
                break
            try:
                _unmount(str(path), lazily=True, abort=True)
            except OSError as exc:
                log.warning(
                    "cannot remove a dead mount: run `umount -l` on it as root",
                    extra={"path": path, "reason": exc.strerror},
                )
                break
            removed.append(path)
    return removed + _remove_links(config)


def _is_attachment(config: Config, path: Path) -> bool:
    """True if *path* is <tasks>/<id>/memory/<name> of this workspace."""
    parts = path.parts[len(config.tasks_dir.parts) :]
    if not path.is_relative_to(config.tasks_dir) or len(parts) != 3:
        return False
    return parts[1] in (MEMORY, GOING)


def _remove_links(config: Config) -> list[Path]:
    removed: list[Path] = []
    with contextlib.suppress(FileNotFoundError), _opened(str(config.tasks_dir)) as tasks:
        for task in sorted(os.listdir(tasks)):
            # Symlinks, files and tasks without a memory folder are none of ours.
            with (
                contextlib.suppress(OSError),
                _opened(task, tasks) as task_fd,
                _memory(task_fd) as memory,
            ):
                for name in sorted(os.listdir(memory)):
                    if _is_our_link(config, name, memory):
                        os.unlink(name, dir_fd=memory)
                        removed.append(config.tasks_dir / task / MEMORY / name)
    return removed


# Binds -----------------------------------------------------------------------------------------


class _Entry(enum.Enum):
    """What stands at a name, found without asking a file system mounted there."""

    NOTHING = enum.auto()
    MOUNT = enum.auto()
    FOLDER = enum.auto()
    LINK = enum.auto()
    OTHER = enum.auto()


class Binder:
    """Puts attachments in their tasks' folders: bind mounts, or symlinks where it may not mount."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._may_mount = True  # until the kernel says otherwise

    def bind(
        self,
        source: Path,
        target: Path,
        read_only: bool,
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        """Show *source* (below the FUSE mount) at *target*, <tasks>/<id>/memory/<name>.

        Missing folders are made: the task's with mode 0700 for *uid* and *gid* (default: the
        daemon's), memory/ for the daemon, so that no stray file lands beside the attachments.
        Raises: Conflict when something else stands at *target* or the folders above it are not
        real folders of the daemon or *uid*; Unavailable. Then nothing was hidden or removed.
        """
        task = self._task(target)
        us = os.geteuid()
        owner = us if uid is None else uid
        try:
            self._config.tasks_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            with (
                _opened(str(self._config.tasks_dir)) as tasks,
                _made(task, tasks, 0o700, owner, -1 if gid is None else gid) as task_fd,
                _made(MEMORY, task_fd, 0o755, us) as memory,
            ):
                if not {os.fstat(task_fd).st_uid, os.fstat(memory).st_uid} <= {us, owner}:
                    raise errors.Conflict(f"{target.parent} is another user's: move it away")
                self._clear(target, memory)
                self._place(source, target.name, memory, read_only)
        except OSError as exc:
            raise errors.Unavailable(f"cannot put {target} in place: {exc.strerror}") from exc

    def unbind(self, *targets: Path) -> None:
        """Take *targets*, of one task, away, lazily if busy, and the folders above that are empty.

        What is not ours (a foreign mount, a folder with files, a symlink elsewhere) stays. Nothing
        there: nothing happens but the cleaning. A process that held it keeps its open files and
        working folder, detached: the file system must refuse what it still writes.
        """
        task = self._task(targets[0])
        try:
            with (
                _opened(str(self._config.tasks_dir)) as tasks,
                _opened(task, tasks) as task_fd,
            ):
                with _memory(task_fd) as memory, _aside(task_fd) as name:
                    for target in targets:
                        self._remove(target.parents[1] / name / target.name, memory)
                for folder, parent in ((MEMORY, task_fd), (task, tasks)):
                    _rmdir(folder, parent)
        except OSError as exc:
            # A folder above is gone, or became something that is not ours to follow.
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise errors.Unavailable(f"cannot remove {targets[0]}: {exc.strerror}") from exc

    def _task(self, target: Path) -> str:
        """Return the name of the task's folder."""
        if not _is_attachment(self._config, target) or ".." in target.parts:
            raise errors.InvalidPath(f"{target} is not <tasks>/<id>/{MEMORY}/<name>")
        return target.parts[-3]

    def _clear(self, target: Path, memory: int) -> None:
        """Remove an empty folder or a link of ours at *target*; refuse anything else."""
        found = _entry(target.name, memory)
        if found is _Entry.LINK and _is_our_link(self._config, target.name, memory):
            os.unlink(target.name, dir_fd=memory)
        elif found is not _Entry.NOTHING and not (
            found is _Entry.FOLDER and _rmdir(target.name, memory)
        ):
            what = "a mount" if found is _Entry.MOUNT else "something"
            raise errors.Conflict(f"{what} is already at {target}: move it away")

    def _place(self, source: Path, name: str, memory: int, read_only: bool) -> None:
        """Make *name* show *source*, or leave nothing there."""
        os.mkdir(name, 0o755, dir_fd=memory)  # once mounted, the mode of *source* is what counts
        try:
            mounted = self._mount(source, name, memory, read_only)
        except OSError:
            _rmdir(name, memory)
            raise
        if not mounted:
            os.rmdir(name, dir_fd=memory)
            os.symlink(source, name, dir_fd=memory)

    def _mount(self, source: Path, name: str, memory: int, read_only: bool) -> bool:
        """Bind *source* on the folder *name*; False where this process may not mount."""
        if not self._may_mount:
            return False
        target = f"/proc/self/fd/{memory}/{name}"  # no name above can be exchanged on the way
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | (MS_RDONLY if read_only else 0)
        try:
            _mount(source, target, MS_BIND)
        except PermissionError as exc:  # EPERM; EACCES where AppArmor forbids it
            self._may_mount = False
            log.warning(
                "no permission to bind mounts: attachments are symlinks into the mount, and only "
                "memfs itself keeps read-only ones from being written",
                extra={"reason": exc.strerror},
            )
            return False
        try:
            # The first call ignores these flags. Until the second, the file system alone refuses
            # writes to a read-only attachment.
            _mount(None, target, MS_REMOUNT | MS_BIND | flags)
        except OSError:
            _unmount(target, lazily=True)
            raise
        return True

    def _remove(self, target: Path, memory: int) -> None:
        found = _entry(target.name, memory)
        if found is _Entry.LINK and _is_our_link(self._config, target.name, memory):
            os.unlink(target.name, dir_fd=memory)
        elif found is _Entry.MOUNT:
            mount = _seen_at(target)
            if mount and mount.type != TYPE:
                log.warning("a foreign mount is on an attachment", extra={"path": target})
                return
            path = f"/proc/self/fd/{memory}/{target.name}"
            try:
                _unmount(path, lazily=False)
            except OSError as exc:
                if exc.errno != errno.EBUSY:
                    raise
                log.warning(
                    "busy, detached lazily", extra={"path": target, "holders": holders(target)}
                )
                _unmount(path, lazily=True)
        _rmdir(target.name, memory)


def _mount(source: Path | None, target: str, flags: int) -> None:
    if _libc.mount(os.fsencode(source or "none"), os.fsencode(target), None, flags, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def _entry(name: str, parent: int) -> _Entry:
    """Return what stands at *name*. O_PATH and fdinfo never reach a file system mounted there."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return _Entry.NOTHING
    try:
        if _mount_id(fd) != _mount_id(parent):
            return _Entry.MOUNT
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    if stat.S_ISDIR(mode):
        return _Entry.FOLDER
    return _Entry.LINK if stat.S_ISLNK(mode) else _Entry.OTHER


def _mount_id(fd: int) -> int:
    """Return the id of the mount that *fd* is open on."""
    info = Path(f"/proc/self/fdinfo/{fd}").read_text()
    return int(info.partition("mnt_id:")[2].split()[0])


def _is_our_link(config: Config, name: str, parent: int) -> bool:
    """True if *name* is a symlink into the FUSE mount."""
    try:
        return os.readlink(name, dir_fd=parent).startswith(f"{config.mount_dir}/")
    except OSError:
        return False


@contextlib.contextmanager
def _opened(name: str, parent: int | None = None) -> Generator[int]:
    """Open the folder *name*, which may not be a symlink (ENOTDIR)."""
    fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _aside(task: int) -> Generator[str]:
    """Have no name lead to memory/ while its mounts go; yield the name that it has meanwhile.

    A folder whose mount has gone is an ordinary one for a moment, and would take a file that its
    writer believes to be kept. Where it cannot be renamed it stays.
    """
    try:
        os.rename(MEMORY, GOING, src_dir_fd=task, dst_dir_fd=task)
    except OSError as exc:
        log.warning("memory/ keeps its name while it goes", extra={"reason": exc.strerror})
        yield MEMORY
        return
    try:
        yield GOING
    finally:
        if not _rmdir(GOING, task):
            _put_back(task)


@contextlib.contextmanager
def _memory(task: int) -> Generator[int]:
    """Open a task's memory/, after giving it back its name if a daemon died in between."""
    _put_back(task)
    with _opened(MEMORY, task) as memory:
        yield memory


def _put_back(task: int) -> None:
    """Give a memory/ that was set aside its name again."""
    try:
        os.rename(GOING, MEMORY, src_dir_fd=task, dst_dir_fd=task)
    except FileNotFoundError:
        pass
    except OSError as exc:  # somebody made another one meanwhile, with something in it
        where = os.readlink(f"/proc/self/fd/{task}")
        log.error("files were left in %s/%s: %s", where, GOING, exc.strerror)


@contextlib.contextmanager
def _made(name: str, parent: int, mode: int, uid: int, gid: int = -1) -> Generator[int]:
    """Open the folder *name*; a missing one is made with *mode*, *uid* and *gid* (-1: as it is)."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        made = True
    except FileExistsError:
        made = False
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        raise errors.Conflict(
            f"{name} in the tasks folder is no real folder: move it away"
        ) from None
    try:
        if made:
            os.fchmod(fd, mode)  # mkdir's mode is cut by the umask
            os.fchown(fd, uid, gid)
        yield fd
    finally:
        os.close(fd)


def _rmdir(name: str, parent: int) -> bool:
    """Remove the folder *name* if it is an empty one; return whether it was."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EBUSY, errno.ENOENT, errno.ENOTDIR):
            raise
        return False
    return True


# The FUSE mount --------------------------------------------------------------------------------


def mount_fuse(operations: pyfuse3.Operations, config: Config) -> None:
    """Mount *operations* at config.mount_dir; from now until serve_fuse its requests wait.

    Once a process: a second one would hang the first (pyfuse3 keeps one session).
    Raises: NotFound, Unavailable, Conflict when something is mounted there or in the folder.
    """
    _check_fuse()
    if _seen_at(config.mount_dir):
        raise errors.Conflict(f"{config.mount_dir} is mounted: run `umount -l` on it as root")
    for folder in (config.data_dir, config.mount_dir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.listdir(config.mount_dir):
        raise errors.Conflict(f"{config.mount_dir} is not empty: move its files away")
    options = {
        *(f"fsname={source_name(config)}", "subtype=memfs"),
        *("default_permissions", "nosuid", "nodev", "noexec"),
    }
    if _may_allow_other():
        options.add("allow_other")
    else:
        log.warning("only this user can use the mount: set user_allow_other in /etc/fuse.conf")
    try:
        pyfuse3.init(operations, str(config.mount_dir), options)
    except RuntimeError as exc:
        raise errors.Unavailable(
            f"the kernel refused the mount at {config.mount_dir} ({exc}; libfuse said why on "
            "stderr): run as root, in a container with --cap-add SYS_ADMIN --device /dev/fuse"
        ) from exc


def source_name(config: Config) -> str:
    """Return what mount, findmnt and df call the mount's source: it tells workspaces apart.

    Plain characters only: libfuse splits options at commas, pyfuse3 wants ASCII, and a colon would
    make df take it for a file system of another machine.
    """
    return "memfs@" + re.sub(r"[^A-Za-z0-9/._+-]", "_", str(config.workspace))


async def serve_fuse(config: Config) -> None:
    """Answer the mount's requests until it is unmounted or this is cancelled; then it is gone.

    Cancelling is the end for a mount that unmount_fuse left busy: its holders get ENOTCONN.
    """
    try:
        await pyfuse3.main(max_tasks=_REQUESTS)
    finally:
        pyfuse3.close(unmount=_seen_at(config.mount_dir) is not None)


def unmount_fuse(config: Config, *, lazily: bool) -> None:
    """Take the FUSE mount out of the tree, after its binds; serve_fuse then ends by itself.

    Call it while serve_fuse runs: the kernel writes pages of shared mappings back first. Lazily:
    serve_fuse ends when the last holder goes, so give it a deadline.
    Raises: Conflict naming the processes that hold it (not lazily), Unavailable.
    """
    if not _seen_at(config.mount_dir):
        return
    try:
        _unmount(str(config.mount_dir), lazily=lazily)
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            who = ", ".join(f"{pid} ({name})" for pid, name in holders(config.mount_dir))
            raise errors.Conflict(f"{config.mount_dir} is busy: pid {who or 'unknown'}") from exc
        raise errors.Unavailable(f"cannot unmount {config.mount_dir}: {exc.strerror}") from exc


def _check_fuse() -> None:
    """Raise NotFound or Unavailable, with the remedy, where this process cannot mount FUSE."""
    try:
        os.close(os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise errors.NotFound(
            f"{_FUSE} is missing: run `modprobe fuse` as root, in a container --device {_FUSE}"
        ) from None
    except PermissionError:
        raise errors.Unavailable(f"{_FUSE} may not be opened: run as root, or chmod it") from None
    except OSError as exc:
        raise errors.Unavailable(
            f"{_FUSE} does not work ({exc.strerror}): run `modprobe fuse` as root"
        ) from exc
    if not _may_mount() and not shutil.which("fusermount3"):
        raise errors.NotFound("fusermount3 is missing: run as root, or `apt-get install fuse3`")


def _may_mount() -> bool:
    """True if this process may mount; root in a container often may not."""
    status = Path("/proc/self/status").read_text("utf-8", "surrogateescape")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> CAP_SYS_ADMIN & 1)


def _may_allow_other() -> bool:
    """True if fusermount3 and the kernel let this user open the mount to others."""
    if os.geteuid() == 0:
        return True
    try:
        lines = _FUSE_CONF.read_text().split("\n")
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def check_machine() -> list[str]:
    """Return what this machine lacks for mounts, a sentence with its remedy each; [] is well."""
    problems: list[str] = []
    try:
        _check_fuse()
    except errors.MemfsError as exc:
        problems.append(str(exc))
    if not _may_mount():
        problems.append(
            "no permission to mount: attachments are symlinks instead of bind mounts; run as root "
            "(in a container with --cap-add SYS_ADMIN)"
        )
    if not _may_allow_other():
        problems.append("other users cannot use the mount: set user_allow_other in /etc/fuse.conf")
    return problems
