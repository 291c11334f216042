"""What all tests share: profiles, loud skips, leak checks, and an engine on a clock they move."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from memfs.engine import secrets
from memfs.errors import MemfsError
from memfs.store.check import check
from memfs.store.env import MAP_SIZE_BYTES, Env, Txn
from memfs.types import Actor, Caller, Text, Time

P = ParamSpec("P")
R = TypeVar("R")

USER = Caller(Actor("user_actor", "user"))
API = Caller(Actor("api_actor", "key"))
NO_SECRETS = secrets.Scanner(())
SECOND = 1_000_000_000

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=_RELAXED
)
settings.register_profile(
    "deep", deadline=None, max_examples=2_000, suppress_health_check=_RELAXED, print_blob=True
)


def text(data: bytes | str) -> Text:
    """Return *data* as a text that may be stored."""
    return secrets.screen(data.encode() if isinstance(data, str) else data, NO_SECRETS)


class Engine:
    """Runs rules as the service does, one write transaction each, on a clock that tests move."""

    def __init__(self, path: Path, map_size_bytes: int = MAP_SIZE_BYTES) -> None:
        self.path = path
        self.map_size_bytes = map_size_bytes
        self.env = Env(path, map_size_bytes)
        self.clock = 1_700_000_000 * SECOND

    def commit(
        self,
        rule: Callable[Concatenate[Txn, Caller, Time, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        return self.commit_as(USER, rule, *args, **kwargs)

    def commit_as(
        self,
        caller: Caller,
        rule: Callable[Concatenate[Txn, Caller, Time, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Commit a rule a second later; one that raises must have written nothing."""
        self.clock += SECOND
        with self.env.write() as txn:
            puts = txn.puts
            try:
                return rule(txn, caller, Time(self.clock), *args, **kwargs)
            except MemfsError:
                assert txn.puts == puts, f"{rule.__name__} wrote before it raised"
                raise

    def view(self, rule: Callable[Concatenate[Txn, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self.env.read() as txn:
            return rule(txn, *args, **kwargs)

    def reopen(self) -> None:
        self.env.close()
        self.env = Env(self.path, self.map_size_bytes)

    def close(self) -> None:
        self.env.close()


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Env]:
    with closing(Env(tmp_path / "data")) as env:
        yield env


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine whose data is sound at the end, whatever the test did."""
    with closing(Engine(tmp_path / "data")) as engine:
        yield engine
        assert check(engine.env) == []


# ------------------------------------------------------------------------------------ leaks

_LAZY = ("/dev/urandom", "/dev/null")  # opened once by the interpreter or a library


def _open_files() -> dict[str, str]:
    found: dict[str, str] = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


@pytest.fixture(autouse=True)
def no_leaked_files() -> Iterator[None]:
    """A test leaves no file, socket or pipe open."""
    before = _open_files()
    yield
    leaked = _leaked(before)
    if leaked:
        gc.collect()  # what only a cycle holds
        leaked = _leaked(before)
    assert not leaked, f"left open: {leaked}"


def _leaked(before: dict[str, str]) -> dict[str, str]:
    return {
        fd: name
        for fd, name in _open_files().items()
        if before.get(fd) != name and name not in _LAZY
    }


def _mounts_below(folder: Path) -> list[str]:
    """Return the mount points below *folder*; dead ones, too, which os.path would not show."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point.startswith(f"{folder}/")]


# ------------------------------------------------------------------------- options and summary

_skipped_fuse = pytest.StashKey[int]()
_mounts_left = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="2,000 examples for each property")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("deep" if config.getoption("--slow") else "ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK):
        return
    fuse = [item for item in items if item.get_closest_marker("fuse")]
    for item in fuse:
        item.add_marker(pytest.mark.skip(reason="no /dev/fuse or not root"))
    config.stash[_skipped_fuse] = len(fuse)


def pytest_sessionfinish(session: pytest.Session) -> None:
    factory = getattr(session.config, "_tmp_path_factory", None)
    left = _mounts_below(factory.getbasetemp()) if factory is not None else []
    if left:
        session.config.stash[_mounts_left] = left
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skipped = config.stash.get(_skipped_fuse, 0)
    if skipped:
        line = f"SKIPPED {skipped} fuse tests: no /dev/fuse or not root"
        terminalreporter.write_line(line, red=True, bold=True)
    for point in config.stash.get(_mounts_left, []):
        terminalreporter.write_line(f"FAILED: still mounted: {point}", red=True, bold=True)
