"""The command line against a real HTTP door, in process; a few commands as processes."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from daemon import config, mount, run
from daemon.cli import output
from daemon.cli.exits import MEANING
from daemon.cli.main import cli
from memfs.engine import notes, refused, stores
from memfs.engine import path as paths
from memfs.types import Actor, Caller
from tests.conftest import text as as_text
from tests.served import Served, serving
from tests.test_http import sha

pytest_plugins = ("tests.served",)

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
        said = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        assert code == 1 or (said == []) == (code == 0)
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
    twin = memfs.run("store", "create", "Crew")
    assert f"note: other living stores are called 'Crew', too ({fresh})" in twin.stderr
    assert f"memfs store update {twin.stdout.strip()} --name" in twin.stderr
    assert fresh in memfs.run("store", "show", "Crew", code=9).stderr
    memfs("store", "delete", fresh, "--yes")
    memfs("store", "show", fresh, code=4)


def test_a_task_attaches_stores_by_name(memfs: Shell, store: str) -> None:
    memfs("store", "create", "a: b")
    task = memfs.json(
        *(
            "task",
            "create",
            "t-1",
            "--worker",
            "Ada",
            "--store",
            "a: b:ro",
            "--store",
            store,
        ),
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
    assert re.search(r"^t-1 +Ada ", memfs("task", "list"), re.MULTILINE)
    memfs("task", "end", "t-1")
    assert "t-1" not in [row["id"] for row in memfs.rows("task", "list")]
    assert "t-1" in memfs("task", "list", "--all")
    memfs("store", "delete", own["memory_store_id"], "--yes", code=9)
    memfs("task", "create", "t-1", code=9)
    memfs("task", "show", "t-2", code=4)
    memfs("worker", "show", "Bob", code=4)
    memfs("task", "create", "--owner", "root", code=2)
    memfs("task", "create", "--instructions", f"{store}=y", code=2)
    memfs("task", "create", "--instructions", "no equals sign", code=2)
    memfs("task", "create", "--instructions", "nope=y", code=4)
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
    memfs("put", store, "a", "--if-sha256", sha("zero"), stdin="two", code=9)
    memfs("put", store, "a", "--if-sha256", "0000", stdin="two", code=5)
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


def test_put_says_what_it_waits_for_on_a_terminal(memfs: Shell, store: str) -> None:
    leader, follower = pty.openpty()
    os.write(leader, b"typed\n\x04")
    try:
        done = memfs.process(
            *("put", store, "a"), stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 0
    assert b"Ctrl-D" in done.stderr
    assert memfs("cat", store, "a") == "typed\n"


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
    memfs("diff", store, "a", "memver_no", code=2)
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
    memfs("redact", store, middle, "--yes")
    said = memfs.run("diff", store, "a", middle).stderr
    assert said == f"note: version {middle} was redacted: its text is gone, and counts as empty\n"
    said = memfs.run("restore", store, "a", middle, code=5).stderr
    assert "was redacted" in said
    assert "restore another version" in said
    memfs("redact", store, "a", oldest, "--yes")
    memfs("redact", store, "a", "3", "--yes", code=9)
    memfs("redact", store, "a", "--yes", code=2)
    memfs("redact", store, newest, oldest, "--yes", code=2)
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


def test_a_new_secret_names_what_holds_it_already_and_the_remedy(memfs: Shell, store: str) -> None:
    words = "a battery of horses"
    memfs("put", store, "old.md", stdin=words)
    memfs("put", store, "old.md", stdin="clean")
    for n in range(101):
        memfs.served.call(
            *("POST", f"memory_stores/{store}/memories"), {"path": f"/n{n:03}", "content": words}
        )
    said = memfs("secret", "add", "late", stdin=words)
    assert "102 hold it already:" in said
    assert re.search(r"^notes +/n000 +now$", said, re.MULTILINE)
    assert "and 2 more" in said
    assert "redact" in said
    assert "memfs compact" in said
    memfs("secret", "rm", "late")
    found = memfs.json("secret", "add", "late", stdin=words)
    assert (len(found["held_by"]), found["held_by_count"]) == (100, 102)
    assert found["held_by"][0] == {
        "memory_store_id": store,
        "memory_store_name": "notes",
        "path": "/n000",
        "memory_id": memfs.json("cat", store, "/n000")["id"],
        "current": True,
        "older_versions": 0,
        "refused_text": None,
    }
    memfs("secret", "rm", "late")
    memfs("store", "delete", store, "--yes")
    assert memfs.json("secret", "add", "late", stdin=words)["remedy"] is None
    memfs("secret", "rm", "late")


def test_log_numbers_and_ids_are_what_cat_diff_and_restore_take(memfs: Shell, store: str) -> None:
    for text in ("one\n", "two\n", "three\n"):
        memfs("put", store, "a", stdin=text)
    head, *lines = memfs("log", store, "a").splitlines()
    assert head.split() == ["NO", "VERSION", "TIME", "CHANGE", "BYTES", "BY", "PATH"]
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    oldest = lines[2].split()[1]
    for named in ([store, "a", "1"], [store, "/a", oldest], [store, oldest]):
        assert memfs("cat", *named) == "one\n"
    note = memfs.json("cat", store, "a")["id"]
    assert memfs("cat", store, note, "2") == "two\n"
    assert "-one\n+three\n" in memfs("diff", store, "a", "1", "3")
    assert memfs("diff", store, "a", "1") == memfs("diff", store, "a", oldest)
    assert "+one\n" in memfs("diff", store, oldest)
    assert "-one\n+two\n" in memfs("diff", store, lines[1].split()[1])
    memfs("restore", store, "a", "1")
    assert memfs("cat", store, "a") == "one\n"
    assert "`memfs log" in memfs.run("cat", store, "a", "9", code=4).stderr
    for bad in ("0x1", "-", "\u0663"):
        assert "`memfs log" in memfs.run("cat", store, "a", "--", bad, code=2).stderr
    memfs("rm", store, "a")
    memfs("cat", store, "a", "5", code=4)  # the deletion has no text
    memfs("restore", store, "a", "2")
    assert memfs("cat", store, "a") == "two\n"


def test_log_says_who_in_words(memfs: Shell, store: str) -> None:
    memfs("task", "create", "who-1", "--worker", "Grace H")
    no = memfs.served.service.view(stores.get, store).no
    us, other = f"user_{os.getuid()}", "user_4294967200"
    actors = [("session_actor", "who-1"), ("session_actor", "elsewhere"), ("user_actor", us)]
    actors += [("user_actor", other), ("api_actor", "key_1"), ("system_actor", "review")]
    for type_, id_ in actors:
        caller = Caller(Actor(type_, id_))
        memfs.served.commit(notes.create, caller, store, paths.parse(f"/{id_}"), as_text("x"))
        memfs.served.commit(refused.keep, caller, no, f"/{id_}", as_text("x"), "changed", None)
    shown = ["Grace H (task who-1)", "task elsewhere", "you", "user 4294967200", "key key_1"]
    shown += ["memfs"]
    for lines in (memfs("log", store), memfs("refused", "list", store)):
        for line, who in zip(lines.splitlines()[1:], reversed(shown), strict=True):
            assert f"  {who}  " in line


def test_a_path_of_several_notes_is_logged_whole_and_never_purged_by_guess(
    memfs: Shell, store: str
) -> None:
    found: list[str] = []
    for text in ("first", "second", "third"):
        memfs("put", store, "a", stdin=text)
        found.append(memfs.json("cat", store, "a")["id"])
        memfs("rm", store, "a")
    memfs("put", store, "a", stdin="fourth")
    found.append(memfs.json("cat", store, "a")["id"])
    rows = memfs.rows("log", store, "a")
    assert [row["memory_id"] for row in rows] == [found[3]] + [
        note for note in reversed(found[:3]) for _ in range(2)
    ]
    lines = memfs("log", store, "a").splitlines()
    assert lines[0].split()[-1] == "NOTE"
    assert [line.split()[0] for line in lines[1:]] == ["1", *"------"]
    assert [line.split()[-1] for line in lines[1:]] == [row["memory_id"] for row in rows]
    assert len(memfs.rows("log", store, "a", "-n", "2")) == 2
    assert len(memfs.rows("log", store, found[0])) == 2
    said = memfs.run("note", "purge", store, "a", "--yes", code=9).stderr
    assert f"{found[3]} at /a" in said
    assert all(f"{note} deleted" in said for note in found[:3])
    for note in found[1:]:
        memfs("note", "purge", store, note, "--yes")
    assert len(memfs.rows("log", store, "a")) == 2
    memfs("note", "purge", store, "/a", "--yes")  # only one is left
    memfs("log", store, "a", code=4)


def test_a_path_that_a_note_left_does_not_purge_it_elsewhere(memfs: Shell, store: str) -> None:
    memfs("put", store, "a", stdin="text")
    memfs("mv", store, "a", "b")
    assert "/b" in memfs.run("note", "purge", store, "a", "--yes", code=9).stderr
    assert memfs("cat", store, "b") == "text"
    memfs("note", "archive", store, "b")
    memfs("note", "purge", store, "b", "--yes")
    assert memfs.rows("log", store) == []


def test_an_id_goes_wherever_a_name_or_path_goes(memfs: Shell, store: str) -> None:
    twin = memfs("store", "create", "notes").strip()
    assert store in memfs.run("ls", "notes", code=9).stderr
    memfs("put", twin, "a", stdin="one")
    note = memfs.json("cat", twin, "a")["id"]
    memfs("put", twin, note, stdin="two")
    assert memfs("cat", twin, note) == "two"
    assert note in memfs("ls", twin, "-l", note)
    memfs("mv", twin, note, "b")
    assert len(memfs.rows("log", twin, note)) == 3
    memfs("restore", twin, note)
    assert memfs("cat", twin, "b") == "one"
    memfs("note", "archive", twin, note)
    memfs("note", "unarchive", twin, note)
    memfs("rm", twin, note)
    gone = note[:-1] + ("0" if note[-1] != "0" else "1")
    for command in (["cat"], ["rm"], ["log"], ["note", "archive"]):
        assert gone in memfs.run(*command, twin, gone, code=4).stderr
    assert gone in memfs.run("put", twin, gone, stdin="x", code=4).stderr
    worker = memfs.json("task", "create", "ids-1", "--worker", "By id")["worker_id"]
    task = memfs.json(
        *("task", "create", "ids-2", "--worker", worker, "--store", f"{twin}:ro"),
        *("--instructions", f"{twin}=by id"),
    )
    assert task["resources"][1]["instructions"] == "by id"
    assert memfs.json("worker", "show", worker)["name"] == "By id"


def test_a_folder_is_no_note_and_the_message_says_so(memfs: Shell, store: str) -> None:
    memfs("put", store, "a/b", stdin="x")
    for command in ("cat", "rm"):
        assert "is a folder" in memfs.run(command, store, "a", code=4).stderr
    assert "is a folder" in memfs.run("mv", store, "a", "c", code=4).stderr


# Refused texts ----------------------------------------------------------------------------------


def test_refused_texts_are_listed_shown_kept_and_discarded(memfs: Shell, store: str) -> None:
    no = memfs.served.service.view(stores.get, store).no
    for data in ("one\n", "two\n", "three\n"):
        caller = Caller(Actor("session_actor", "t"))
        memfs.served.commit(refused.keep, caller, no, "/a", as_text(data), "was changed", None)
    lines = memfs("refused", "list", store).splitlines()
    assert [line.split()[0] for line in lines] == ["NUMBER", "3", "2", "1"]
    assert lines[1].endswith("/a    was changed")
    other = memfs("store", "create", "also").strip()
    also = memfs.served.service.view(stores.get, other).no
    memfs.served.commit(refused.keep, caller, also, "/b", as_text("x"), "was changed", None)
    lines = [line.split()[:2] for line in memfs("refused", "list").splitlines()]
    assert lines[:5] == [["STORE", "NUMBER"], ["also", "1"], *(["notes", n] for n in "321")]
    ours = memfs.rows("refused", "list")[:4]
    assert [row["memory_store_id"] for row in ours] == [other, store, store, store]
    memfs("store", "delete", other, "--yes")
    assert memfs("refused", "show", store, "2") == "two\n"
    assert memfs.json("refused", "show", store, "2")["reason"] == "was changed"
    memfs("put", store, "taken", stdin="x")
    memfs("refused", "keep", store, "2", "taken", code=9)
    assert memfs("refused", "keep", store, "2", "b/two").startswith("/b/two memver_")
    assert memfs("cat", store, "b/two") == "two\n"
    memfs("refused", "show", store, "2", code=4)
    memfs("refused", "discard", store, "3", code=2)
    assert len(memfs.rows("refused", "list", store)) == 2
    memfs("refused", "discard", store, "3", "--yes")
    memfs("refused", "discard", store, "3", "--yes", code=4)
    memfs("refused", "show", store, "0", code=2)
    assert [row["number"] for row in memfs.rows("refused", "list", store)] == [1]


# What cannot be undone --------------------------------------------------------------------------


def destroyers(memfs: Shell, store: str) -> list[list[str]]:
    """Every command that destroys for good, on something there is."""
    no = memfs.served.service.view(stores.get, store).no
    caller = Caller(Actor("user_actor", "u"))
    memfs.served.commit(refused.keep, caller, no, "/a", as_text("x"), "changed", None)
    memfs("put", store, "a", stdin="one")
    memfs("put", store, "a", stdin="two")
    return [
        ["refused", "discard", store, "1"],
        ["redact", store, "a", "1"],
        ["note", "purge", store, "a"],
        ["store", "delete", store],
    ]


def test_what_destroys_for_good_needs_yes_without_a_terminal(memfs: Shell, store: str) -> None:
    commands = destroyers(memfs, store)
    before = memfs.served.service.feed.seq
    for command in commands:
        assert "--yes" in memfs.run(*command, code=2).stderr
        assert "--yes" in memfs.run(*command, stdin="y\n", code=2).stderr
    assert memfs.served.service.feed.seq == before
    for command in commands:
        memfs(*command, "--yes")
    memfs("store", "show", store, code=4)


def test_what_destroys_for_good_asks_on_a_terminal(memfs: Shell, store: str) -> None:
    commands = destroyers(memfs, store)
    for command in commands:
        for answer, code in ((b"n\n", 1), (b"y\n", 0)):
            leader, follower = pty.openpty()
            os.write(leader, answer)
            try:
                done = memfs.process(
                    *command, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            finally:
                os.close(leader)
                os.close(follower)
            assert done.returncode == code, done.stderr
            assert b"cannot be undone" in done.stderr
            assert (done.stdout != b"") == (code == 0)
    memfs("store", "show", store, code=4)


def test_an_archived_store_can_be_deleted(memfs: Shell, store: str) -> None:
    memfs("put", store, "a", stdin="x")
    memfs("store", "archive", store)
    memfs("note", "purge", store, "a", "--yes")
    memfs("store", "delete", store, "--yes")
    memfs("store", "show", store, code=4)


def test_a_worker_that_was_made_is_named_with_the_one_that_may_be_meant(memfs: Shell) -> None:
    said = memfs.run("task", "create", "w-1", "--worker", "Hopper").stderr
    assert "made the worker 'Hopper'" in said
    said = memfs.run("task", "create", "w-2", "--worker", "Hoper").stderr
    assert "made the worker 'Hoper'" in said
    assert "meant 'Hopper'" in said
    before = memfs.rows("worker", "list")
    assert memfs.run("task", "create", "w-3", "--worker", "Hopper").stderr == ""
    assert memfs.rows("worker", "list") == before
    memfs("task", "create", "w-4")
    assert [row["name"] for row in memfs.rows("worker", "list")][-1] == "worker"


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_is_gone_is_a_place_to_work_from(memfs: Shell, named: bool) -> None:
    inside = memfs.workspace / ".little-worker" / "gone"
    inside.mkdir(parents=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env |= {"MEMFS_WORKSPACE": str(memfs.workspace)} if named else {}
    script = f'cd "{inside}"; rmdir "{inside}"; exec "{sys.executable}" -P -m daemon.cli store list'
    with memfs.served.other_clients():
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


# Keys -------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(memfs: Shell) -> None:
    memfs("task", "create", "key-1", "--worker", "Keyed")
    secret = memfs("key", "create", "--as", "agent:Keyed", "--name", "laptop", "--scope", "stores")
    secret = secret.removesuffix("\n")
    assert re.fullmatch(r"memfs_[A-Za-z0-9_-]{43}", secret)
    listed = memfs("key", "list")
    assert secret not in listed
    assert secret not in memfs("--json", "key", "list")
    assert " agent:Keyed " in listed
    (row,) = memfs.rows("key", "list")
    assert (row["power"], row["name"], row["scopes"]) == ("agent", "laptop", ["stores"])
    assert listed.splitlines()[1].split()[-4:] == ["stores", "valid", row["id"], "laptop"]
    memfs("key", "revoke", row["id"])
    assert memfs.rows("key", "list")[0]["revoked_at"] is not None
    assert "revoked" in memfs("key", "list")
    memfs("key", "revoke", row["id"])
    memfs("key", "revoke", "apikey_x", code=4)
    for bad in ("agent", "agent:", "person:x", "root", "agent:Nobody"):
        memfs("key", "create", "--as", bad, code=4 if bad == "agent:Nobody" else 2)


def test_a_key_is_revoked_by_a_name_that_only_one_valid_key_has(memfs: Shell) -> None:
    def states() -> list[bool]:
        rows = [row for row in memfs.rows("key", "list") if row["name"] == "twice"]
        return [row["revoked_at"] is not None for row in rows]

    memfs("key", "create", "--as", "readonly", "--name", "twice")
    assert "revoked apikey_" in memfs("key", "revoke", "twice")
    memfs("key", "revoke", "twice")  # again: unchanged
    memfs("key", "create", "--as", "readonly", "--name", "twice")
    memfs("key", "revoke", "twice")
    assert states() == [True, True]
    for _ in range(2):
        memfs("key", "create", "--as", "readonly", "--name", "twice")
    assert "name one by its id" in memfs.run("key", "revoke", "twice", code=9).stderr
    assert states() == [True, True, False, False]
    memfs("key", "revoke", "", code=4)


# Completion -------------------------------------------------------------------------------------


def complete(memfs: Shell, *words: str, workspace: Path | None = None) -> list[str]:
    env = {
        "MEMFS_WORKSPACE": str(workspace or memfs.workspace),
        "_MEMFS_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["memfs", *words[:-1]]) + f" {words[-1]}",
        "COMP_CWORD": str(len(words)),
    }
    with memfs.served.other_clients():
        done = CliRunner().invoke(cli, [], prog_name="memfs", env=env)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_names_are_completed(memfs: Shell) -> None:
    plain = memfs("store", "create", "completes").strip()
    spaced = memfs("store", "create", "completes too").strip()
    for path in ("a/b/c.md", "a/b/d.md", "e.md", "e f.md"):
        memfs("put", plain, path, stdin="x")
    odd = memfs.json("cat", plain, "e f.md")["id"]
    memfs("task", "create", "complete-1", "--worker", "Completer")
    assert sorted(complete(memfs, "ls", "compl")) == ["completes", spaced]
    assert sorted(complete(memfs, "task", "create", "--store", "compl")) == ["completes", spaced]
    assert sorted(complete(memfs, "cat", "completes", "")) == ["a/", "e.md", odd]
    assert complete(memfs, "cat", "completes", "a") == ["a/b/c.md", "a/b/d.md"]
    assert complete(memfs, "log", plain, "/a/b/d") == ["/a/b/d.md"]
    assert complete(memfs, "task", "end", "complete-") == ["complete-1"]
    assert complete(memfs, "task", "create", "--worker", "Compl") == ["Completer"]
    assert complete(memfs, "worker", "show", "Compl") == ["Completer"]
    workspace = str(memfs.workspace)
    assert "completes" in complete(
        memfs, "--workspace", workspace, "ls", "compl", workspace=Path("/nowhere")
    )
    twin = memfs("store", "create", "completes").strip()
    assert sorted(complete(memfs, "ls", "completes")) == sorted([plain, twin, spaced])
    for store in (plain, spaced, twin):
        memfs("store", "delete", store, "--yes")


def test_completion_is_silent_without_a_daemon(memfs: Shell, tmp_path: Path) -> None:
    assert complete(memfs, "ls", "x", workspace=tmp_path) == []
    assert complete(memfs, "ls", "x", workspace=tmp_path / "none") == []
    assert complete(memfs, "cat", "no-such-store", "") == []


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


def test_doctor_names_mounts_that_nothing_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = mount.MountPoint(1, "0:1", "/", tmp_path / "left", frozenset(), mount.TYPE)
    other = mount.MountPoint(1, "0:1", "/", Path("/elsewhere"), frozenset(), mount.TYPE)
    monkeypatch.setattr(mount, "read_mounts", lambda: [left, other])
    done = CliRunner().invoke(cli, ["--json", "--workspace", str(tmp_path), "doctor"])
    assert done.exit_code == 1
    (found,) = [each for each in json.loads(done.stdout)["findings"] if "is mounted" in each]
    assert str(left.path) in found


def test_config_shows_every_setting_its_default_and_source(
    memfs: Shell, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served.config.settings() | {"keep-versions": "30d", "scratch": ["*.bak", "x?"]}
    monkeypatch.setattr(served, "status", lambda: {"settings": settings})
    answer = memfs.json("config")
    found = {row["name"]: (row["value"], row["default"], row["source"]) for row in answer["data"]}
    assert answer["running"]
    assert found["workspace"][0::2] == (str(memfs.workspace), "MEMFS_WORKSPACE")
    assert found["keep-versions"] == ("30d", "all", "memfs serve --keep-versions")
    assert found["scratch"] == (["*.bak", "x?"], [], "memfs serve --scratch")
    assert found["map-size"][0::2] == ("64M", "memfs serve --map-size")
    assert found["log-level"] == ("info", "info", "default")
    assert {f"--{name}" for name in found} - {"--workspace"} == {
        option.opts[0]
        for option in cli.commands["serve"].params
        if option.opts[0] not in ("--json", "--workspace")
    }
    assert re.search(r"^listen +- +- +default$", memfs("config"), re.MULTILINE)
    assert re.search(r"^keep-versions +30d +all ", memfs("config"), re.MULTILINE)


def test_config_without_a_daemon_shows_the_defaults(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["--workspace", str(tmp_path), "config"])
    assert done.exit_code == 0, done.output
    assert "no daemon runs" in done.stdout
    assert re.search(r"^keep-versions +all +all +default$", done.stdout, re.MULTILINE)


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
        memfs("redact", store, memfs.rows("log", store, "a")[-1]["id"], "--yes")
        for command in ("check", "compact"):
            assert "stop the daemon first" in memfs.run(command, code=9).stderr
        second = memfs.process("serve", stderr=subprocess.PIPE)
        assert second.returncode == 9
        assert f"in use by process {os.getpid()}: stop the daemon first" in second.stderr.decode()

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
    for wrong in (["--keep-versions", "soon"], ["--map-size", "1"], ["--map-size", "big"]):
        done = CliRunner().invoke(cli, ["serve", *wrong, "--workspace", workspace])
        assert done.exit_code == 2, done.output
    assert len(served) == 1


# The command as a whole -------------------------------------------------------------------------


def test_help_and_readme_show_one_table_of_exit_codes(memfs: Shell) -> None:
    text = memfs("--help")
    readme = (ROOT / "README.md").read_text()
    for code, meaning in MEANING.items():
        assert re.search(rf"^ +{code.value}  +{re.escape(meaning)}$", text, re.MULTILINE), code
        assert f"| {code.value} | {meaning} |" in readme
    assert len(re.findall(r"^\| [0-9]+ \| ", readme, re.MULTILINE)) == len(MEANING)
    assert "_MEMFS_COMPLETE" in text
    assert re.fullmatch(r"memfs \S+\n", memfs("--version"))


def test_the_help_of_every_command_is_one_whole_line() -> None:
    groups = [name for name, command in cli.commands.items() if isinstance(command, click.Group)]
    for words in [[], *([name] for name in groups)]:
        text = CliRunner().invoke(cli, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        listed = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        assert len(listed) == len(cli.commands if not words else cli.commands[words[0]].commands)  # pyright: ignore
        assert [line for line in listed if "..." in line or len(line) > 80] == []


@pytest.mark.parametrize(
    "args",
    [
        ["--json", "nonsense"],
        ["--json"],
        ["store", "--json"],
        ["store", "create", "--json"],
        ["store", "create", "x", "--no-such", "--json"],
        ["--no-such", "--json"],
        ["task", "create", "--owner", "root", "--json"],
        ["log", "s", "-n", "0", "--json"],
        ["diff", "s", "p", "1", "1", "1", "--json"],
    ],
)
def test_wrong_usage_is_json_where_json_is_asked_for(memfs: Shell, args: list[str]) -> None:
    if args[0] == "diff":
        memfs("store", "create", "s")
        memfs("put", "s", "p", stdin="x")
    done = memfs.run(*args, code=2)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert (error["type"], error["error"]["type"]) == ("error", "usage_error")


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


def test_json_holds_no_character_that_a_terminal_obeys(memfs: Shell, store: str) -> None:
    text = "\x1b[31m \x7f \x9b2J \u00e9"
    memfs("put", store, "a", stdin=text)
    shown = memfs("--json", "cat", store, "a")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    assert "\u00e9" in shown
    assert json.loads(shown)["content"] == text


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
