"""Copies with extended attributes, in, out and between mounts (SEMANTICS: Mount, xattrs)."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.mount import Api, errno_is, names, note_id, sh, sh_ok

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

COPIES = {
    "rsync": 'rsync -aX --checksum "$A/" "$B/"',
    "cp": 'cp -r --preserve=xattr,mode,timestamps "$A/." "$B/"',
    "cp -a": 'cp -a "$A/." "$B/"',
    "tar": 'tar -C "$A" --xattrs -cf - . | tar -C "$B" --xattrs --xattrs-include="*" -xf -',
}


@pytest.fixture(params=COPIES)
def copy(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param.split()[0]) is None:
        pytest.skip(f"needs {request.param}")
    return COPIES[request.param]


def fill(folder: Path, word: str) -> dict[str, str]:
    (folder / "d").mkdir(exist_ok=True)
    texts = {"n": f"{word} one\n", "d/m": f"{word} two\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_attributes_are_not_listed_and_answer_by_name(S: Path, api: Api):
    (S / "n").write_text("x")
    assert os.listxattr(S / "n") == os.listxattr(S) == []
    assert note_id(S / "n") == api.note_id("/n")
    wanted = sh_ok('getfattr --absolute-names --only-values -n user.memfs.sha256 "$S/n"', S=S)
    assert wanted == api.memory("/n")["content_sha256"]


def test_a_copy_into_the_mount_succeeds_also_onto_notes(S: Path, X: Path, api: Api, copy: str):
    for word in ("old", "new"):
        made = fill(X, word)
        sh_ok(copy, A=X, B=S)
        assert texts(S) == made
        assert {path: api.get(path) for path in api.ls()} == {f"/{n}": t for n, t in made.items()}


def test_a_copy_out_of_the_mount_and_back_succeeds(S: Path, X: Path, api: Api, copy: str):
    made = fill(S, "old")
    sh_ok(copy, A=S, B=X)
    assert texts(X) == made
    fill(S, "changed")
    sh_ok(copy, A=X, B=S)
    assert texts(S) == made


def test_a_copy_between_mounts_succeeds_also_onto_notes(S: Path, api: Api, copy: str):
    own = next(path for path in S.parent.iterdir() if path.name != S.name) / S.parts[-3]
    own.mkdir()
    for word in ("old", "new"):
        made = fill(S, word)
        sh_ok(copy, A=S, B=own)
        assert texts(own) == made
    shutil.rmtree(own)


def test_a_file_with_attributes_is_copied_and_the_program_says_what_was_left_out(S, X, copy):
    made = fill(X, "text")
    try:
        os.setxattr(X / "n", "user.tag", b"v")
    except OSError:
        pytest.skip("the disk has no extended attributes")
    for _ in range(2):  # onto nothing, then onto notes
        done = sh(copy, A=X, B=S)
        assert not done.stderr or "not supported" in done.stderr
        assert texts(S) == made


def test_mknod_makes_an_empty_note_and_nothing_else(S: Path, T: Path, api: Api):
    os.mknod(S / "n", stat.S_IFREG | 0o640)
    assert api.history("/n") == [("created", "")]
    assert (S / "n").stat().st_mode & 0o777 == 0o640
    assert (S / "n").read_text() == (T / "n").read_text() == ""
    (S / "n").write_text("x")
    assert (T / "n").read_text() == "x"
    with errno_is(17):
        os.mknod(S / "n", stat.S_IFREG | 0o640)
    os.mknod(S / "n.tmp", stat.S_IFREG | 0o600)
    (S / "n.tmp").write_bytes(b"\xff")
    assert names(T) == ["n"]
    for kind in (stat.S_IFIFO, stat.S_IFSOCK):
        with errno_is(1):
            os.mknod(S / "other", kind | 0o600)
    with errno_is(30):
        os.mknod(S / ".memfs" / "n", stat.S_IFREG | 0o600)
