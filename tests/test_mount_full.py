"""A mount whose map is full: ENOSPC is told, reads and deletes go on (DESIGN 6; bugs 45)."""

import errno
import os
import random
from pathlib import Path

import httpx
import pytest

from tests.mount import Api, Daemon, errno_is, names, opened, sh, until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

PATCH = """
from functools import partial
Config = partial(Config, map_size_bytes=4 * 2**20)
"""
NEW = os.O_WRONLY | os.O_CREAT


def noise(size: int, seed: int) -> bytes:
    """Return text that does not compress."""
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"
    return "".join(random.Random(seed).choices(letters, k=size)).encode()


@pytest.fixture
def full(S: Path, api: Api) -> dict[str, bytes]:
    """Fill the map through the mount; return what was accepted."""
    kept: dict[str, bytes] = {}
    for number in range(200):
        data = noise(60_000, number)
        try:
            with opened(S / f"{number}", NEW) as fd:
                os.write(fd, data)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - any save may be the first
            until(lambda number=number: not (S / f"{number}").exists(), "no half note is left")
            return kept
        kept[f"{number}"] = data
    raise AssertionError("it was never full")


def test_a_full_map_is_enospc_and_reads_and_deletes_go_on(S, T, api, full, daemon: Daemon, client):
    daemon.expected = ["could not be committed", "full"]
    first, second = sorted(full)[:2]
    assert names(S) == names(T) == sorted(full)
    for name, data in full.items():
        assert (T / name).read_bytes() == data
    fd = os.open(S / first, os.O_WRONLY | os.O_TRUNC)
    with errno_is(errno.ENOSPC):  # at the write: shells do not look at what close says
        os.write(fd, noise(60_000, 1000))
    with errno_is(errno.ENOSPC):
        os.close(fd)
    until(lambda: (S / first).read_bytes() == full[first], "the head shows again")
    assert (T / first).read_bytes() == full[first]
    done = sh('rev < "$S/$A" > "$T/new"', S=S, T=T, A=second)
    assert "No space left" in done.stderr
    (S / "n.tmp").write_bytes(noise(60_000, 1001))
    with errno_is(errno.ENOSPC):
        os.rename(S / "n.tmp", S / second)
    assert (S / "n.tmp").stat().st_size == 60_000
    assert (S / second).read_bytes() == full[second]
    with pytest.raises(httpx.HTTPStatusError, match="507"):
        api.put("/api", noise(60_000, 1002).decode())
    assert os.statvfs(S).f_bavail * os.statvfs(S).f_frsize < 2**20
    for name in full:
        (S / name).unlink()
    (S / "n.tmp").unlink()
    assert names(S) == names(T) == api.ls() == []
    assert client.get("/healthz").status_code == 200
