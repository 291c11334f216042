"""daemon.config and daemon.log: where things are, and what a line of the log looks like."""

import json
import logging
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import config as config_module
from daemon import log
from daemon.config import Config, check_socket_folder, find_workspace, parse_duration, socket_path
from memfs import errors

ROOT = Path(__file__).parents[1]


def test_paths_lie_in_the_workspace(tmp_path: Path) -> None:
    config = Config(tmp_path)
    assert config.data_dir == tmp_path / ".little-worker/memfs"
    assert config.tasks_dir == tmp_path / ".little-worker/tasks"
    assert config.mount_dir == config.data_dir / "mnt"
    assert config.socket_path == config.data_dir / "memfs.sock"
    assert not (tmp_path / ".little-worker").exists()


def test_paths_are_real_ones_as_the_mount_table_has_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "real/.little-worker").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    config = Config(tmp_path / "link")
    assert config.workspace == tmp_path / "real"
    assert config.tasks_dir == tmp_path / "elsewhere/tasks"


@pytest.mark.parametrize("size", [0, 2**20 - 1, 2**44 + 1])
def test_map_size_out_of_bounds_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(errors.Invalid, match="map size"):
        Config(tmp_path, map_size_bytes=size)


def test_map_size_is_64_gib_or_half_of_a_limited_address_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert config_module.default_map_size_bytes() == 2**36
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**33, 2**33))
    assert config_module.default_map_size_bytes() == 2**32


def test_negative_retention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid):
        Config(tmp_path, keep_versions_ns=-1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * 10**9


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "1d2h", "1y", "٣d", "9999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="not a duration"):
        parse_duration(text)


def test_workspace_is_the_option_then_the_environment_then_the_nearest(tmp_path: Path) -> None:
    for name in ("outer/.little-worker", "outer/inner/.little-worker", "outer/inner/a/b", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outer/inner/a/.little-worker").touch()  # a file is not one
    cwd = tmp_path / "outer/inner/a/b"
    env = {"MEMFS_WORKSPACE": str(tmp_path / "outer")}
    assert find_workspace("../../../../other", env, cwd) == tmp_path / "other"
    assert find_workspace(None, env, cwd) == tmp_path / "outer"
    assert find_workspace(None, {"MEMFS_WORKSPACE": ""}, cwd) == tmp_path / "outer/inner"
    assert find_workspace(None, {}, tmp_path / "outer") == tmp_path / "outer"


def test_no_workspace_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match=r"--workspace or MEMFS_WORKSPACE"):
        find_workspace(None, {}, tmp_path)
    with pytest.raises(errors.NotFound, match=r"--workspace names .*/nowhere"):
        find_workspace("nowhere", {}, tmp_path)
    with pytest.raises(errors.NotFound, match="MEMFS_WORKSPACE names"):
        find_workspace(None, {"MEMFS_WORKSPACE": "nowhere"}, tmp_path)


def deep(tmp_path: Path) -> Path:
    return tmp_path / ("d" * 60) / ("e" * 60)


@pytest.mark.parametrize(("length", "inside"), [(107, True), (108, False)])
def test_socket_leaves_the_data_dir_only_when_the_kernel_would_refuse(
    length: int, inside: bool
) -> None:
    data_dir = Path("/" + "x" * (length - 1 - len("/memfs.sock")))
    path = socket_path(data_dir)
    assert (path.parent == data_dir) == inside
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError):
        client.connect(str(path))  # too long would be OSError("AF_UNIX path too long")


def test_long_names_in_bytes_count_for_the_socket() -> None:
    assert socket_path(Path("/" + "ü" * 50)).parent != Path("/" + "ü" * 50)


def test_short_socket_differs_by_data_dir_and_follows_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = deep(tmp_path) / "1", deep(tmp_path) / "2"
    assert socket_path(one) != socket_path(two)
    one.mkdir(parents=True)
    monkeypatch.setattr(config_module, "_owner", lambda _: 1234)
    assert socket_path(one).parent == Path("/tmp/memfs-1234")
    monkeypatch.setattr(config_module, "_owner", lambda _: 0)
    assert socket_path(one).parent == Path("/run/memfs")


def test_socket_folder_must_be_private_and_the_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memfs-0"
    monkeypatch.setattr(config_module, "socket_path", lambda _: folder / "x.sock")
    config = Config(deep(tmp_path))
    with pytest.raises(errors.NotFound, match="memfs serve"):
        check_socket_folder(config, make=False)
    check_socket_folder(config, make=True)
    assert folder.stat().st_mode & 0o777 == 0o700
    check_socket_folder(config, make=False)
    folder.chmod(0o770)
    with pytest.raises(errors.Conflict, match="private folder"):
        check_socket_folder(config, make=True)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(errors.Conflict, match="private folder"):
        check_socket_folder(config, make=True)
    folder.unlink()
    folder.mkdir(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 1234, 1234)
        with pytest.raises(errors.Conflict, match="private folder"):
            check_socket_folder(config, make=True)


def test_log_is_one_json_object_a_line_on_stderr() -> None:
    code = """
import logging
from pathlib import Path
from daemon import log
log.setup("info"); log.setup("INFO")
log_ = logging.getLogger("memfs.x")
log_.debug("hidden")
log_.warning("busy %s", "a\\x1b[2Jb\\nc", extra={"path": Path("/p"), "n": 3, "time": 1})
log_.info("no text", extra={"raw": b"secret", "what": {"deep": object()}})
try:
    1 / 0
except ZeroDivisionError:
    log_.exception("bug")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert "secret" not in done.stderr
    busy, plain, bug = (json.loads(line) for line in done.stderr.splitlines())
    assert busy["time"].endswith("Z")
    assert "T" in busy["time"]
    del busy["time"]
    assert busy == {
        "level": "warning",
        "logger": "memfs.x",
        "message": "busy a\x1b[2Jb\nc",
        "path": "/p",
        "n": 3,
        "time_": 1,
    }
    assert (plain["raw"], plain["what"]) == ("<bytes>", {"deep": "<object>"})
    assert "ZeroDivisionError" in bug["traceback"]


def test_log_level_must_be_known() -> None:
    with pytest.raises(errors.Invalid, match="debug, info, warning, error"):
        log.setup("loud")
    assert logging.getLogger().handlers  # pytest's own: nothing was replaced


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8765", ("127.0.0.1", 8765)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_listen_takes_host_and_port_and_is_shown_as_given(text: str, address: tuple[str, int]):
    assert config_module.parse_listen(text) == address
    assert config_module.format_listen(*address) == text


@pytest.mark.parametrize("text", ["", "8765", ":8765", "::1:80", "h:65536", "h:-1", "a b:1", "h:x"])
def test_listen_that_is_not_host_and_port_is_refused(text: str):
    with pytest.raises(errors.Invalid, match="HOST:PORT"):
        config_module.parse_listen(text)
