"""`.memfs/` on a real mount: looking back, what was refused, what is known (DESIGN 4)."""

import errno
import json
import os
from pathlib import Path

import pytest

from memfs.engine.secrets import refusal
from tests.mount import Api, errno_is, names, note_id, refused, sh, sh_ok, task_of

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse


def test_it_is_there_and_not_listed(S: Path, R: Path):
    for root in (S, R):
        assert names(root) == []
        assert set(names(root / ".memfs")) >= {
            "archived", "at", "context.md", "log", "refused", "status.json", "versions",
        }  # fmt: skip
        assert (root / ".memfs").is_dir()


def test_it_is_not_listed_nor_present_in_other_folders(S: Path):
    (S / "d").mkdir()
    assert not (S / "d" / ".memfs").exists()
    assert sh_ok('find "$S" -name .memfs', S=S) == ""
    assert sh_ok('grep -rl created "$S" || true', S=S) == ""


def test_nothing_in_it_can_be_changed(S: Path):
    (S / "n").write_text("x")
    (S / "d").mkdir()
    folder = S / ".memfs"
    version = folder / "versions" / "n" / names(folder / "versions" / "n")[0]
    for call in (
        lambda: os.open(folder / "log", os.O_WRONLY),
        lambda: os.open(folder / "log", os.O_RDONLY | os.O_TRUNC),
        lambda: os.open(folder / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.open(version, os.O_WRONLY | os.O_APPEND),
        lambda: os.truncate(version, 0),
        lambda: version.unlink(),
        lambda: (folder / "d").mkdir(),
        lambda: (folder / "versions").rmdir(),
        lambda: version.rename(S / "m"),
        lambda: (S / "n").rename(folder / "n"),
        lambda: version.chmod(0o600),
        lambda: os.utime(version),
        lambda: os.symlink("x", folder / "l"),
        lambda: os.link(S / "n", folder / "l"),
        lambda: os.mkfifo(folder / "p"),
        lambda: folder.rename(S / "x"),
        lambda: folder.rename(S / "d"),
        lambda: (S / "d").rename(folder),
        lambda: folder.rmdir(),
        lambda: folder.chmod(0o700),
        lambda: os.utime(folder),
    ):
        with errno_is(errno.EROFS):
            call()
    assert version.read_text() == "x"


def test_its_name_is_taken(S: Path):
    (S / "n").write_text("x")
    folder = S / ".memfs"
    for code, call in (
        (errno.EEXIST, lambda: folder.mkdir()),
        (errno.EEXIST, lambda: os.open(folder, os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
        (errno.EEXIST, lambda: os.mknod(folder)),
        (errno.EEXIST, lambda: os.symlink("x", folder)),
        (errno.EEXIST, lambda: os.link(S / "n", folder)),
        (errno.EISDIR, lambda: os.open(folder, os.O_WRONLY | os.O_CREAT)),
        (errno.EISDIR, lambda: (S / "n").rename(folder)),
        (errno.EISDIR, lambda: folder.unlink()),
    ):
        with errno_is(code):
            call()
    assert names(S) == ["n"]


def test_shell_commands_that_would_change_it_say_read_only(S: Path, api: Api):
    (S / "n").write_text("x")
    for command in (
        'mv "$S/n" "$S/.memfs"',
        'mv "$S/.memfs" "$S/y"',
        'cp "$S/n" "$S/.memfs"',
        'rmdir "$S/.memfs"',
        'rm -rf "$S/.memfs"',
        'ln "$S/n" "$S/.memfs"',
        'touch "$S/.memfs/x"',
        'echo x > "$S/.memfs/log"',
    ):
        done = sh(command, S=S)
        assert done.returncode != 0, command
        assert "Read-only file system" in done.stderr, done
    assert api.history("/n") == [("created", "x")]


def test_rm_rf_takes_all_notes_and_leaves_the_folder_and_memfs(S: Path, api: Api):
    for command in ('rm -rf "$S"/*', 'rm -rf "$S"'):
        (S / "d").mkdir()
        (S / "d" / "n").write_text("x")
        (S / "n").write_text("x")
        done = sh(command, S=S)
        if "*" in command:
            assert (done.returncode, done.stderr) == (0, "")
        else:
            assert "Device or resource busy" in done.stderr
        assert names(S) == api.ls() == []
        assert (S / ".memfs" / "log").is_file()


def test_sizes_are_zero_and_every_way_of_reading_works(S: Path, X: Path):
    text = "long " * 5000
    (S / "n").write_text(text)
    folder = S / ".memfs" / "versions" / "n"
    (name,) = names(folder)
    path = folder / name
    assert path.stat().st_size == 0
    assert path.read_text() == text
    assert sh_ok('cat "$F"', F=path) == text
    sh_ok('cp "$F" "$X/copy"; cmp "$X/copy" "$S/n"; grep -q long "$F"', F=path, X=X, S=S)
    assert sh_ok('head -c 9 "$F"; tail -c 5 "$F"', F=path) == "long long" + "long "
    fd = os.open(path, os.O_RDONLY)
    assert os.pread(fd, 4, 5) == b"long"
    os.close(fd)


def test_each_version_is_a_file_and_restoring_is_cp(S: Path, T: Path, api: Api):
    for text in ("one", "two", "three"):
        (S / "n").write_text(text)
    note = note_id(S / "n")
    folder = T / ".memfs" / "versions" / "n"
    found = names(folder)
    assert [name.split("-")[:2] for name in found] == [
        ["0001", "created"], ["0002", "modified"], ["0003", "modified"],
    ]  # fmt: skip
    assert [(folder / name).read_text() for name in found] == ["one", "two", "three"]
    assert [name.rsplit("-", 1)[1][:-3] for name in found] == [v["id"] for v in api.versions("/n")]
    sh_ok('cp "$F" "$S/n"', F=S / ".memfs" / "versions" / "n" / found[0], S=S)
    assert note_id(S / "n") == note
    assert [text for _, text in api.history(note)] == ["one", "two", "three", "one"]


def test_versions_of_a_note_in_folders_and_of_a_deleted_one_are_kept(S: Path, api: Api):
    (S / "a").mkdir()
    (S / "a" / "n").write_text("deep")
    (S / "a" / "n").unlink()
    folder = S / ".memfs" / "versions" / "a" / "n"
    assert "deep" in [(folder / name).read_text() for name in names(folder)]
    sh_ok('cp "$F" "$S/a/n"', F=folder / names(folder)[0], S=S)
    assert (S / "a" / "n").read_text() == "deep"


def test_at_a_time_shows_the_store_as_it_was(S: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("then")
    at = str(api.versions("/d/n")[0]["created_at"])
    at = at.replace("Z", "999Z")  # what is below a microsecond was cut
    (S / "d" / "n").write_text("now")
    (S / "new").write_text("later")
    past = S / ".memfs" / "at" / at
    assert names(past) == ["d"]
    assert (past / "d" / "n").read_text() == "then"
    assert names(S / ".memfs" / "at" / "1971-01-01") == []
    assert (S / ".memfs" / "at" / "2999-01-01T00:00:00Z" / "new").read_text() == "later"
    assert names(S / ".memfs" / "at") == []
    with errno_is(errno.ENOENT):
        os.stat(S / ".memfs" / "at" / "yesterday")


def test_archived_notes_can_be_read(S: Path, api: Api):
    (S / "n").write_text("put away")
    note = api.note_id("/n")
    api.request("POST", f"/memories/{note}/archive", json={"reason": "old"}).raise_for_status()
    assert names(S) == []
    assert names(S / ".memfs" / "archived") == [f"{note}.md"]
    assert (S / ".memfs" / "archived" / f"{note}.md").read_text() == "put away"
    api.request("POST", f"/memories/{note}/unarchive").raise_for_status()
    assert names(S / ".memfs" / "archived") == []
    assert (S / "n").read_text() == "put away"


def test_a_refused_text_can_be_copied_back(S: Path, api: Api):
    (S / "n").write_text("base")
    fd = os.open(S / "n", os.O_RDWR)
    os.pwrite(fd, b"MINE", 0)
    api.put("/n", "theirs")
    with errno_is(errno.ESTALE):
        os.close(fd)
    (kept,) = refused(S)
    (S / "n").read_text()
    sh_ok('cp "$F" "$S/n"', F=kept, S=S)
    assert api.get("/n") == "MINE"


def test_the_log_says_why_something_was_refused(S: Path, T: Path, api: Api):
    (S / "n").write_text("base")
    api.put("/n", "theirs")
    assert "Stale" in sh('echo mine > "$S/n"', S=S).stderr
    log = (S / ".memfs" / "log").read_text()
    assert "/n" in log
    assert "read it again" in log
    sh('head -c 200000 /dev/zero | tr "\\0" a > "$S/long"', S=S)
    assert "split it" in (S / ".memfs" / "log").read_text()


def test_the_log_holds_no_texts_and_no_secrets(S: Path, api: Api):
    (S / "n").write_text("unmistakable words")
    token = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5"
    sh('echo "$TOKEN" > "$S/s"', S=S, TOKEN=token)
    log = (S / ".memfs" / "log").read_text()
    assert "unmistakable" not in log
    assert token not in log
    assert str(refusal("GitHub token")) in log  # one spelling at every door


def test_status_and_context_speak_of_this_attachment(S: Path, R: Path, api: Api):
    (S / "n").write_text("x")
    status = json.loads((S / ".memfs" / "status.json").read_text())
    assert status["store"]["id"] == api.store_id
    assert status["store"]["notes"] == 1
    assert status["attachment"]["task_id"] == task_of(S)
    assert status["limits"]["note_bytes"] == 102_400
    context = (S / ".memfs" / "context.md").read_text()
    assert api.store_id in context
    assert "read_only" in (R / ".memfs" / "context.md").read_text()


def test_what_it_shows_is_never_stale(S: Path, T: Path):
    for number in range(10):
        (S / "n").write_text(f"{number}")
        folder = T / ".memfs" / "versions" / "n"
        assert len(names(folder)) == number + 1
        assert (folder / names(folder)[-1]).read_text() == f"{number}"
        assert json.loads((T / ".memfs" / "status.json").read_text())["store"]["notes"] == 1


def test_names_that_are_nothing_are_enoent(S: Path):
    for name in ("none", "versions/none", "versions/n/0001-x.md", "refused/000001-n", "at/x",
                 "archived/mem_x.md", "status.json/x"):  # fmt: skip
        with errno_is(errno.ENOENT, errno.ENOTDIR):
            os.stat(S / ".memfs" / name)
    for raw in (b"\xff", b"a" * 256):
        with errno_is(errno.ENOENT, errno.EILSEQ, errno.ENAMETOOLONG):
            os.stat(os.fsencode(S / ".memfs") + b"/" + raw)


def test_xattrs_of_it_are_no_bug(S: Path):
    for path in (S / ".memfs", S / ".memfs" / "log"):
        assert os.listxattr(path) == []
        with errno_is(errno.ENODATA, errno.ENOTSUP):
            os.getxattr(path, "user.memfs.id")
    sh_ok('ls -la "$S/.memfs" > /dev/null', S=S)
