"""Where a workspace's daemon keeps its things, and the numbers it was started with."""

import hashlib
import os
import re
import resource
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memfs import errors

FOLDER = ".little-worker"
SOCKET_BYTES = 107  # sun_path is 108 bytes with its NUL (unix(7))
MAP_SIZE_MIN_BYTES = 2**20
MAP_SIZE_MAX_BYTES = 2**44  # 16 TiB, the largest file ext4 has; x86-64 has 128 TiB of addresses

_SECOND_NS = 10**9
_UNITS_NS = {
    "s": _SECOND_NS,
    "m": 60 * _SECOND_NS,
    "h": 3_600 * _SECOND_NS,
    "d": 86_400 * _SECOND_NS,
    "w": 604_800 * _SECOND_NS,
}


def default_map_size_bytes() -> int:
    """Return 64 GiB, or half the address space where that is smaller.

    The map is reserved addresses, not disk: LMDB's file grows only as it is written.
    """
    size = 2**36 if sys.maxsize > 2**32 else 2**30
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return size if soft == resource.RLIM_INFINITY else min(size, soft // 2 // 4096 * 4096)


@dataclass(frozen=True, slots=True)
class Config:
    """What one daemon serves and how. The folders need not exist yet.

    Paths are resolved once, here: the kernel's mount table names real paths only, and resolving
    later could walk into a dead mount.
    Raises: Invalid for a number out of bounds.
    """

    workspace: Path
    map_size_bytes: int = field(default_factory=default_map_size_bytes)
    keep_versions_ns: int | None = None  # None: all versions are kept
    log_level: str = "info"
    scratch_patterns: tuple[str, ...] = ()  # besides the built-in ones
    listen: tuple[str, int] | None = None  # host and port of TCP; None: the unix socket only
    data_dir: Path = field(init=False)
    tasks_dir: Path = field(init=False)
    mount_dir: Path = field(init=False)
    socket_path: Path = field(init=False)

    def __post_init__(self) -> None:
        """Derive the paths and check the numbers."""
        if not MAP_SIZE_MIN_BYTES <= self.map_size_bytes <= MAP_SIZE_MAX_BYTES:
            raise errors.Invalid(f"map size {self.map_size_bytes} is not within 1 MiB and 16 TiB")
        if self.keep_versions_ns is not None and self.keep_versions_ns < 0:
            raise errors.Invalid("versions cannot be kept for a negative time")
        workspace = Path(os.path.realpath(self.workspace))
        data_dir = Path(os.path.realpath(workspace / FOLDER / "memfs"))
        paths = {
            "workspace": workspace,
            "data_dir": data_dir,
            "tasks_dir": Path(os.path.realpath(workspace / FOLDER / "tasks")),
            "mount_dir": data_dir / "mnt",
            "socket_path": socket_path(data_dir),
        }
        for name, path in paths.items():
            object.__setattr__(self, name, path)  # frozen for everyone else

    def settings(self) -> dict[str, object]:
        """Return what `memfs serve` can be told, by its options' names and in their words."""
        return {
            "map-size": format_size(self.map_size_bytes),
            "keep-versions": format_duration(self.keep_versions_ns),
            "log-level": self.log_level,
            "scratch": list(self.scratch_patterns),
            "listen": None if self.listen is None else format_listen(*self.listen),
        }


def format_listen(host: str, port: int) -> str:
    """Return an address as --listen takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_size(size_bytes: int) -> str:
    """Return a size as --map-size takes it, such as 64G."""
    for unit, factor in (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def format_duration(time_ns: int | None) -> str:
    """Return a time as --keep-versions takes it, such as 30d; `all` where nothing ends."""
    if time_ns is None:
        return "all"
    for unit, factor in sorted(_UNITS_NS.items(), key=lambda item: -item[1]):
        if time_ns % factor == 0 and (time_ns or unit == "s"):
            return f"{time_ns // factor}{unit}"
    return f"{time_ns}ns"


def find_workspace(explicit: str | None, env: Mapping[str, str], cwd: Path) -> Path:
    """Return the resolved workspace: *explicit*, else MEMFS_WORKSPACE, else found above *cwd*.

    Found is the nearest folder, *cwd* included, that holds a .little-worker folder.
    Raises: NotFound.
    """
    for said, by in ((explicit, "--workspace"), (env.get("MEMFS_WORKSPACE"), "MEMFS_WORKSPACE")):
        if said:
            path = Path(os.path.realpath(cwd / Path(said).expanduser()))
            if not os.path.isdir(path):
                raise errors.NotFound(f"{by} names {path}, which is not a folder: make it first")
            return path
    # Not Path.is_dir: it raises where a parent is a dead mount (ENOTCONN) or is forbidden.
    for path in (cwd, *cwd.parents):
        if os.path.isdir(path / FOLDER):
            return Path(os.path.realpath(path))
    raise errors.NotFound(
        f"no workspace: neither {cwd} nor a folder above it holds {FOLDER}/. "
        "Go into one, name it with --workspace or MEMFS_WORKSPACE, or make one with "
        "`memfs --workspace DIR serve`"
    )


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as 90s, 30m, 12h, 30d or 4w.

    Raises: Invalid.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip())
    if not match:
        raise errors.Invalid(f"{text!r} is not a duration: write a whole number and s, m, h, d, w")
    return int(match[1]) * _UNITS_NS[match[2]]


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address stands in brackets, port 0 is any.

    Raises: Invalid.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\s\[\]]+)):([0-9]{1,5})", text.strip())
    if not match or int(match[3]) > 65_535:
        raise errors.Invalid(f"{text!r} is not HOST:PORT: write for example 127.0.0.1:8765")
    return match[1] or match[2], int(match[3])


def socket_path(data_dir: Path) -> Path:
    """Return where the daemon of *data_dir* listens; clients ask the same function.

    memfs.sock in the data directory; where that is too long for a socket's address, a short path
    that depends on the data directory and its owner alone. Not XDG_RUNTIME_DIR: it goes at logout,
    and cron, sudo and containers do not have it, so that a client would look elsewhere.
    """
    path = data_dir / "memfs.sock"
    if len(os.fsencode(path)) <= SOCKET_BYTES:
        return path
    uid = _owner(data_dir)
    # Nobody else can take a name in /run first; others must share /tmp (see check_socket_folder).
    folder = Path("/run/memfs") if uid == 0 else Path(f"/tmp/memfs-{uid}")
    return folder / f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}.sock"


def check_socket_folder(config: Config, *, make: bool) -> None:
    """Be sure that only the data directory's owner, or root, can have put the socket there.

    make: create the folder (mode 0700) where it is missing; the server does, clients do not. The
    server gives the socket itself mode 0600.
    Raises: Conflict when another user holds the folder, NotFound.
    """
    folder = config.socket_path.parent
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        raise errors.NotFound(f"no daemon serves {config.workspace}: start `memfs serve`") from None
    private = folder == config.data_dir or not stat.S_IMODE(found.st_mode) & 0o077
    trusted = found.st_uid in (0, _owner(config.data_dir))
    if not (stat.S_ISDIR(found.st_mode) and trusted and private):
        raise errors.Conflict(
            f"{folder} is not a private folder of the user who owns {config.data_dir}: remove it"
        )


def _owner(data_dir: Path) -> int:
    """Return the uid that owns *data_dir*, or will once this process makes it."""
    try:
        return os.stat(data_dir).st_uid
    except FileNotFoundError:
        return os.geteuid()
