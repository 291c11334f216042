"""What is done to the data with no daemon running: each function takes its lock for itself."""

import os
import shutil
from pathlib import Path

from daemon.config import Config
from memfs.errors import NotFound
from memfs.store import check as checker
from memfs.store.env import Env

_DATA = "data.mdb"
_COPY = "compact.new"


def check(config: Config) -> list[str]:
    """Return what is wrong with the data, a sentence each; [] is well.

    Raises: NotFound (no data yet), InUse (a daemon runs), FormatTooNew, Corrupt.
    """
    env = _open(config)
    try:
        return list(checker.check(env))
    finally:
        env.close()


def compact(config: Config) -> tuple[int, int]:
    """Replace the data file by one without free pages; return the sizes before and after.

    A crash leaves the old file or the new one. Nothing of what was deleted or redacted is in the
    new one; the old one's blocks are the disk's to overwrite.
    Raises: NotFound (no data yet), InUse (a daemon runs), FormatTooNew, Corrupt, NoSpace.
    """
    env = _open(config)
    copy = config.data_dir / _COPY
    data = config.data_dir / _DATA
    try:
        shutil.rmtree(copy, ignore_errors=True)  # of a run that was interrupted
        copy.mkdir(mode=0o700)
        env.copy(copy)
        fresh = copy / _DATA
        fresh.chmod(0o600)
        _sync(fresh)
        before, after = data.stat().st_size, fresh.stat().st_size
        fresh.replace(data)  # while we hold the lock, so that no daemon opens it in between
        _sync(config.data_dir)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        env.close()
    return before, after


def _open(config: Config) -> Env:
    if not (config.data_dir / _DATA).exists():
        raise NotFound(f"{config.workspace} has no data yet: start `memfs serve` once")
    return Env(config.data_dir, config.map_size_bytes)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
