"""The command line against a real HTTP door, in process; a few commands as processes."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from daemon import config, mount, run
from daemon.cli import output
from daemon.cli.main import cli
from tests.test_http import Served, serving, sha

ROOT = Path(__file__).parents[1]


class Shell:
    """Runs memfs on one workspace."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.workspace = served.config.workspace

    def run(self, *args: str, stdin: bytes | str = b"", code: int = 0) -> Result:
        env = {"MEMFS_WORKSPACE": str(self.workspace), "TZ": "UTC"}
        with self.served.other_clients():
            done = CliRunner().invoke(cli, args, input=stdin, env=env)
        assert done.exit_code == code, (done.output, done.exception)
        assert not done.exception or isinstance(done.exception, SystemExit)
        assert code == 1 or (done.stderr == "") == (code == 0)
        return done

    def __call__(self, *args: str, **rest: Any) -> str:
        return self.run(*args, **rest).stdout

    def json(self, *args: str, **rest: Any) -> Any:
        return json.loads(self("--json", *args, **rest))

    def rows(self, *args: str) -> list[dict[str, Any]]:
        page = self.json(*args)
        assert page["next_page"] is None
        return page["data"]

    def process(self, *args: str, **rest: Any) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "daemon.cli", "--workspace", str(self.workspace), *args]
        with self.served.other_clients():
            return subprocess.run(command, cwd=ROOT, timeout=60, **rest)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws")) as one:
        yield one


@pytest.fixture
def memfs(served: Served) -> Shell:
    return Shell(served)


@pytest.fixture
def store(memfs: Shell) -> str:
    return memfs("store", "create", "notes").strip()


# Stores, tasks, workers -------------------------------------------------------------------------


def test_stores_are_named_by_name_or_id(memfs: Shell) -> None:
    made = memfs.json("store", "create", "Team notes", "--description", "d", "--metadata", "a=b=c")
    assert made["metadata"] == {"a": "b=c"}
    assert memfs.json("store", "show", "Team notes") == memfs.json("store", "show", made["id"])
    changed = memfs.json(
        *("store", "update", "Team notes", "--name", "Crew", "--description", ""),
        *("--metadata", "a=", "--metadata", "x=1"),
    )
    assert (changed["name"], changed["description"], changed["metadata"]) == (
        "Crew",
        "",
        {"x": "1"},
    )
    assert "Crew" in memfs("store", "list")
    memfs("store", "archive", "Crew")
    assert "Crew" not in [row["name"] for row in memfs.rows("store", "list")]
    assert "Crew" in [row["name"] for row in memfs.rows("store", "list", "--archived")]
    memfs("store", "update", "Crew", "--name", "late", code=5)
    # a living store goes before an archived one of the same name
    fresh = memfs("store", "create", "Crew").strip()
    assert memfs.json("store", "show", "Crew")["id"] == fresh
    memfs("store", "create", "Crew")
    assert fresh in memfs.run("store", "show", "Crew", code=9).stderr
    memfs("store", "delete", fresh)
    memfs("store", "show", fresh, code=4)


def test_a_task_attaches_stores_by_name(memfs: Shell, store: str) -> None:
    memfs("store", "create", "a: b")
    task = memfs.json(
        *("task", "create", "t-1", "--worker", "Ada", "--store", "a: b:ro", "--store", store),
        *("--instructions", "a: b=look only", "--owner", "1000:1000", "--no-guard"),
    )
    own, first, second = task["resources"]
    assert (own["name"], own["guard"]) == ("Ada", True)
    assert (first["access"], first["instructions"], first["guard"]) == (
        *("read_only", "look only"),
        False,
    )
    assert (second["access"], second["memory_store_id"]) == ("read_write", store)
    assert task["owner"] == {"uid": 1000, "gid": 1000}
    assert first["mount_path"] in memfs("task", "show", "t-1")
    assert memfs.json("worker", "show", "Ada")["id"] == task["worker_id"]
    assert "Ada" in memfs("worker", "list")
    assert "t-1" in [row["id"] for row in memfs.rows("task", "list")]
    memfs("task", "end", "t-1")
    assert "t-1" not in [row["id"] for row in memfs.rows("task", "list")]
    assert "t-1" in memfs("task", "list", "--all")
    memfs("store", "delete", own["memory_store_id"], code=9)
    memfs("task", "create", "t-1", code=9)
    memfs("task", "show", "t-2", code=4)
    memfs("worker", "show", "Bob", code=4)
    memfs("task", "create", "--owner", "root", code=2)
    memfs("task", "create", "--instructions", "x=y", code=2)
    memfs("task", "create", "--store", "nope", code=4)


# Notes ------------------------------------------------------------------------------------------


def test_put_cat_ls_mv_rm(memfs: Shell, store: str) -> None:
    text = "caf\u00e9\r\n\x1b[31mred\x1b[0m\n\n"
    memfs("put", store, "a/b.md", stdin=text.encode())
    assert memfs.run("cat", store, "/a/b.md").stdout_bytes == text.encode()
    first = memfs.json("cat", store, "a/b.md")
    assert first["content"] == text
    second = memfs.json("put", store, "/a/b.md", stdin="two")
    assert second["id"] == first["id"]
    memfs("put", store, "c.md", stdin="c")
    assert memfs("ls", store) == "/a/\n/c.md\n"
    assert memfs("ls", store, "-r") == "/a/b.md\n/c.md\n"
    assert memfs("ls", store, "a") == memfs("ls", store, "/a/b.md") == "/a/b.md\n"
    assert [row["path"] for row in memfs.rows("ls", store)] == ["/a/", "/c.md"]
    assert first["id"] in memfs("ls", store, "-l", "a/")
    memfs("ls", store, "nowhere", code=4)
    memfs("mv", store, "a/b.md", "d/")
    assert memfs.json("cat", store, "d/b.md")["id"] == first["id"]
    memfs("mv", store, "d/b.md", "c.md", code=9)
    memfs("cat", store, "a/b.md", code=4)
    memfs("rm", store, "c.md", "--if-sha256", sha("x"), code=9)
    memfs("rm", store, "c.md", "--if-sha256", sha("c"))
    memfs("rm", store, "c.md", code=4)


def test_put_has_preconditions(memfs: Shell, store: str) -> None:
    memfs("put", store, "a", "--if-absent", stdin="one")
    memfs("put", store, "a", "--if-absent", stdin="two", code=9)
    memfs("put", store, "a", "--if-sha256", "0000", stdin="two", code=9)
    memfs("put", store, "a", "--if-sha256", sha("one"), stdin="two")
    memfs("put", store, "a", "--if-sha256", sha("one"), stdin="two")  # a retry
    memfs("put", store, "b", "--if-sha256", sha("one"), stdin="two", code=4)
    memfs("put", store, "a/b", stdin="two", code=9)
    memfs("put", store, "a", "--if-absent", "--if-sha256", "0", code=2)
    assert memfs("cat", store, "a") == "two"
    for bad in (b"\xff", b"x" * 102_401, b"x" * 2**21, b"password = hunter2hunter2!"):
        assert "hunter2" not in memfs.run("put", store, "a", stdin=bad, code=5).stderr
    memfs("put", store, "a//b", code=5)
    assert memfs("cat", store, "a") == "two"


def test_each_of_many_puts_that_race_to_create_a_note_succeeds(memfs: Shell, store: str) -> None:
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "daemon.cli", "--workspace", str(memfs.workspace)),
                *("put", store, "race"),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    with memfs.served.other_clients():
        for number, process in enumerate(processes):
            _, error = process.communicate(b"%d" % number, timeout=60)
            assert process.returncode == 0, error
    assert len({row["memory_id"] for row in memfs.rows("log", store)}) == 1


def test_notes_are_archived_and_purged_by_path(memfs: Shell, store: str) -> None:
    memfs("put", store, "a", stdin="one")
    memfs("note", "archive", store, "a", "--reason", "stale")
    assert "stale" in memfs("note", "archived", store)
    assert memfs("ls", store) == ""
    assert len(memfs.rows("log", store, "a")) == 1
    memfs("note", "unarchive", store, "a")
    assert memfs("cat", store, "a") == "one"
    memfs("note", "unarchive", store, "a", code=4)
    memfs("rm", store, "a")
    memfs("note", "purge", store, "a", "--yes")
    assert memfs.rows("log", store) == []
    memfs("note", "purge", store, "a", code=4)


# History ----------------------------------------------------------------------------------------


def test_log_shows_a_note_also_after_its_deletion_or_move(memfs: Shell, store: str) -> None:
    for text in ("1", "2", "3"):
        memfs("put", store, "a", stdin=text)
    memfs("put", store, "b", stdin="b")
    assert [row["operation"] for row in memfs.rows("log", store, "a")] == [
        *("modified", "modified", "created"),
    ]
    assert len(memfs.rows("log", store)) == 4
    assert len(memfs.rows("log", store, "a", "-n", "2")) == 2
    memfs("rm", store, "a")
    lines = memfs("log", store, "a").splitlines()
    assert len(lines) == 5
    assert "deleted" in lines[1]
    assert re.search(r" \d\d:\d\d:\d\d [+-]\d{4} ", lines[1])
    memfs("mv", store, "b", "c")
    assert len(memfs.rows("log", store, "b")) == len(memfs.rows("log", store, "c")) == 2
    memfs("log", store, "d", code=4)


def test_diff_compares_the_newest_two_or_what_is_named(memfs: Shell, store: str) -> None:
    for text in ("one\ntwo\n", "one\nTWO\n", "one\nTWO\nthree"):
        memfs("put", store, "a", stdin=text)
    newest, middle, oldest = [row["id"] for row in memfs.rows("log", store, "a")]
    body = memfs("diff", store, "a").split("\n", 2)[2]
    assert body == "@@ -1,2 +1,3 @@\n one\n TWO\n+three\n\\ No newline at end of file\n"
    assert memfs("diff", store, "a", middle) == memfs("diff", store, "a")
    assert "-two\n+TWO\n" in memfs("diff", store, "a", oldest, middle)
    assert memfs.json("diff", store, "a", newest, newest)["diff"] == ""
    memfs("put", store, "new", stdin="x\n")
    assert "+x\n" in memfs("diff", store, "new")
    memfs("diff", store, "a", "memver_no", code=4)
    memfs("diff", store, "a", "1", "2", "3", code=2)


def test_restore_takes_a_version_a_path_or_both(memfs: Shell, store: str) -> None:
    for text in ("one", "two", "three"):
        memfs("put", store, "a", stdin=text)
    oldest = memfs.rows("log", store, "a")[-1]["id"]
    memfs("restore", store, "a")
    assert memfs("cat", store, "a") == "two"
    memfs("restore", store, "/a", oldest)
    assert memfs("cat", store, "a") == "one"
    memfs("rm", store, "a")
    memfs("restore", store, "a")
    assert memfs("cat", store, "a") == "one"
    memfs("restore", store, oldest, code=9)  # its note is gone and another is at the path
    memfs("put", store, "b", stdin="b")
    memfs("restore", store, "b", code=4)
    memfs("restore", store, "b", oldest, code=5)


def test_redact_empties_an_old_version(memfs: Shell, store: str) -> None:
    for text in ("one", "two", "three"):
        memfs("put", store, "a", stdin=text)
    newest, middle, oldest = [row["id"] for row in memfs.rows("log", store, "a")]
    memfs("redact", store, middle)
    memfs("redact", store, "a", "--version", oldest)
    memfs("redact", store, "a", "--version", newest, code=9)
    memfs("redact", store, "a", code=2)
    assert memfs("log", store, "a").count("(redacted)") == 2


def test_secrets_are_read_from_standard_input_and_only_named(memfs: Shell, store: str) -> None:
    memfs("secret", "add", "bank/pin", stdin="correct horse battery\n")
    assert "bank/pin" in memfs("secret", "list")
    assert "horse" not in memfs("--json", "secret", "list")
    memfs("put", store, "a", stdin="my correct horse battery", code=5)
    memfs("secret", "add", "bank/pin", stdin="correct horse battery\n", code=9)
    memfs("secret", "rm", "bank/pin")
    memfs("secret", "rm", "bank/pin", code=4)
    memfs("secret", "add", "x", stdin="", code=5)


# The daemon and the data ------------------------------------------------------------------------


def test_status_and_doctor_fail_on_a_dead_mount(
    memfs: Shell, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount, "check_machine", lambda: list[str]())
    assert "version" in memfs("status")
    assert "nothing is wrong" in memfs("doctor")
    alive = {"path": "/x/alive", "alive": True}
    dead = {"path": "/x/dead", "alive": False}
    monkeypatch.setattr(served, "status", lambda: {"mounts": [alive, dead], "problems": ["p: q"]})
    found = memfs.run("status", code=1)
    assert "/x/dead" in found.stderr
    assert "/x/alive" not in found.stderr
    assert "DEAD" in found.stdout
    assert memfs.json("doctor", code=1)["findings"] == [
        "the mount at /x/dead is dead: restart the daemon",
        "p: q",
    ]


def test_without_a_daemon_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMFS_WORKSPACE", raising=False)
    for args in (["status"], ["cat", "s", "p"], ["task", "list"]):
        done = CliRunner().invoke(cli, ["--workspace", str(tmp_path), *args])
        assert done.exit_code == 3
        assert f"memfs --workspace {tmp_path} serve" in done.stderr
    (config.Config(tmp_path).data_dir).mkdir(parents=True)
    done = CliRunner().invoke(cli, ["status", "--json", "--workspace", str(tmp_path)])
    assert done.exit_code == 3
    assert json.loads(done.stderr)["type"] == "error"
    monkeypatch.chdir(tmp_path.parents[-1])
    done = CliRunner().invoke(cli, ["status"])
    assert done.exit_code == 4
    assert "--workspace" in done.stderr


def test_check_and_compact_need_the_daemon_down(tmp_path: Path) -> None:
    secret = b"zebra crossing at noon"
    with serving(tmp_path) as served:
        memfs = Shell(served)
        store = memfs("store", "create", "s").strip()
        memfs("put", store, "a", stdin=secret)
        memfs("put", store, "a", stdin="two")
        memfs("redact", store, memfs.rows("log", store, "a")[-1]["id"])
        for command in ("check", "compact"):
            assert "is in use by process" in memfs.run(command, code=1).stderr

    def offline(command: str) -> Any:
        done = CliRunner().invoke(cli, ["--json", "--workspace", str(tmp_path), command])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert offline("check")["problems"] == []
    assert offline("compact")["after_bytes"] > 0
    assert offline("check")["problems"] == []
    data_dir = served.config.data_dir
    assert not any(secret in file.read_bytes() for file in data_dir.iterdir())
    assert sorted(file.name for file in data_dir.iterdir()) == [
        *("cursor.key", "daemon.lock", "data.mdb", "lock.mdb"),
    ]
    with serving(tmp_path) as served:
        assert Shell(served)("cat", store, "a") == "two"


def test_check_says_that_there_is_nothing_yet(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["--workspace", str(tmp_path), "check"])
    assert done.exit_code == 4
    assert list(tmp_path.iterdir()) == []


def test_serve_makes_the_workspace_and_passes_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[config.Config] = []
    monkeypatch.setattr(run, "serve", served.append)
    workspace = str(tmp_path / "new" / "ws")
    args = ["serve", "--keep-versions", "30d", "--map-size", "8G", "--log-level", "warning"]
    args += ["--scratch", "*.bak", "--scratch", "x?", "--workspace", workspace]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    (found,) = served
    assert str(found.workspace) == workspace
    assert found.keep_versions_ns == 30 * 86_400 * 10**9
    assert found.map_size_bytes == 8 * 2**30
    assert (found.log_level, found.scratch_patterns) == ("warning", ("*.bak", "x?"))
    for wrong in (["--keep-versions", "soon"], ["--map-size", "1"]):
        done = CliRunner().invoke(cli, ["serve", *wrong, "--workspace", workspace])
        assert done.exit_code == 5, done.output
    done = CliRunner().invoke(cli, ["serve", "--map-size", "big", "--workspace", workspace])
    assert done.exit_code == 2
    assert len(served) == 1


# The command as a whole -------------------------------------------------------------------------


def test_help_documents_exit_codes_and_completion(memfs: Shell) -> None:
    text = memfs("--help")
    for code in (0, 1, 2, 3, 4, 5, 9, 28):
        assert re.search(rf"^ +{code}  ", text, re.MULTILINE), code
    assert "_MEMFS_COMPLETE" in text
    assert re.fullmatch(r"memfs \S+\n", memfs("--version"))
    memfs("nonsense", code=2)


def test_json_and_workspace_stand_anywhere(memfs: Shell, served: Served) -> None:
    workspace = str(served.config.workspace)
    for args in (
        ["--json", "store", "list"],
        ["store", "--json", "list"],
        ["store", "list", "--json"],
        ["store", "list", "--json", "--workspace", workspace],
        ["store", "--workspace", workspace, "list", "--json"],
    ):
        assert json.loads(memfs(*args)).keys() == {"data", "next_page"}
    error = json.loads(memfs.run("store", "show", "no such", "--json", code=4).stderr)
    assert error["type"] == "error"
    assert error["error"].keys() >= {"type", "message"}


def test_small_commands_load_no_server(memfs: Shell) -> None:
    code = (
        "import sys; from daemon.cli.main import cli; "
        "sys.exit(', '.join({'fastapi', 'trio', 'lmdb', 'pyfuse3', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, timeout=60
    )
    assert done.stderr.decode().strip() == ""
    done = memfs.process("--version", stdout=subprocess.PIPE)
    assert done.stdout.startswith(b"memfs ")


def test_a_terminal_sees_no_escape_codes_and_a_pipe_sees_every_byte(
    memfs: Shell, store: str
) -> None:
    text = b"\x1b]0;owned\x07\x1b[31mred\x1b[0m \x9b tab\t\xc2\x9b2J end\n".replace(b" \x9b", b"")
    memfs("put", store, "a", stdin=text)
    piped = memfs.process("cat", store, "a", stdout=subprocess.PIPE)
    assert piped.stdout == text
    leader, follower = pty.openpty()
    try:
        done = memfs.process("cat", store, "a", stdout=follower)
        shown = os.read(leader, 4096)
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 0
    assert shown == b"red tab\t end\r\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é\t\n", "plain é\t\n"),
        ("\x1b[1;31mx\x1b[m", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1bPq#0\x1b\\a\x1b(Bb\x1bc", "ab"),
        ("a\x08\r\x7fb", "a\ufffd\ufffd\ufffdb"),
        ("\x1b[", ""),
        ("\x9b31mx\x9d0;t\x9cy", "xy"),
    ],
)
def test_escape_codes_are_taken_out(text: str, shown: str) -> None:
    assert output.clean(text) == shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", output.clean(text))
