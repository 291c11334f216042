"""A small process that outlives a killed daemon by a moment, to free those who wait for its mount.

SIGKILL ends a thread only once it is out of the kernel. If the notifier is just waiting there for
a folder's lock that a client holds, and the client waits for the daemon's answer, then neither the
daemon nor the client ever ends, and the data directory stays locked. The kernel tells this process
when the daemon's main thread is gone (PR_SET_PDEATHSIG); it then aborts the FUSE connection: the
clients get errors, the locks are released, and the daemon's last thread ends.

Run as a script of its own, so that it needs little memory and none of our modules.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_GONE = signal.SIGRTMIN  # not one that a service manager sends to all processes
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(mount_dir: Path) -> subprocess.Popen[bytes]:
    """Start a guardian for the mount at *mount_dir*. Call it from the main thread: that is watched.

    The caller kills it after an orderly end.
    """
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(mount_dir)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _lives(daemon: int) -> bool:
    """Whether the daemon's main thread has not ended; its other threads may hold on to its pid."""
    state = Path(f"/proc/{daemon}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    return state not in "ZX"


def _main(daemon: int, mount_dir: str) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [_GONE])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, int(_GONE))
    if os.getppid() == daemon and _lives(daemon):  # else it died before it could be watched
        signal.sigwait([_GONE])
    # what is mounted there is the dead daemon's: the next one needs longer to start than this
    libc.umount2(os.fsencode(mount_dir), _MNT_FORCE | _MNT_DETACH | _UMOUNT_NOFOLLOW)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
