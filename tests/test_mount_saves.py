"""Atomic saves through names that are not scratch: one history, the target's (SEMANTICS: Saving).

Each way makes a file beside the note, writes, fsyncs, closes and renames it over the note, with the
flags, modes and names of the program it is called after.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount import Api, names, note_id, opened, sh_ok

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

EXCL = os.O_RDWR | os.O_CREAT | os.O_EXCL


def _through(name: str, flags: int, mode: int) -> Callable[[Path, str], None]:
    def save(path: Path, text: str) -> None:
        temporary = path.with_name(name.format(path.name))
        with opened(temporary, flags, mode) as fd:
            os.write(fd, text.encode())
            os.fsync(fd)
        temporary.replace(path)

    return save


def _named_temporary_file(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".md", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


SAVES: dict[str, Callable[[Path, str], None]] = {
    "Go os.CreateTemp": _through("{}123456789", EXCL, 0o600),
    "Go os.CreateTemp, pattern": _through("save-1234567890.md", EXCL, 0o600),
    "QSaveFile": _through("{}.XyzAbC", EXCL, 0o666),
    "NamedTemporaryFile": _named_temporary_file,
    "atomicwrites": _through("tmpab12cd_x", EXCL, 0o600),
    "write-file-atomic": _through("{}.1234567890", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666),
    "renameio": _through(".{}1234567890", EXCL, 0o600),
    "dot": _through(".{}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
}


@pytest.fixture(params=SAVES)
def save(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    return SAVES[request.param]


def notes_in_history(api: Api) -> set[object]:
    return {version["memory_id"] for version in api.all_versions()}


def test_atomic_saves_are_versions_of_the_target_and_of_nothing_else(S, T, api, save):
    (S / "n.md").write_text("0")
    note = note_id(S / "n.md")
    for number in range(1, 4):
        save(S / "n.md", f"{number}")
        assert (S / "n.md").read_text() == (T / "n.md").read_text() == f"{number}"
    assert names(S) == names(T) == ["n.md"]
    assert note_id(S / "n.md") == note_id(T / "n.md") == note
    assert [text for _, text in api.history(note)] == ["0", "1", "2", "3"]
    assert notes_in_history(api) == {note}
    assert names(S / ".memfs" / "versions") == ["n.md"]


def test_an_atomic_save_of_a_new_note_is_one_note(S, T, api, save):
    save(S / "n.md", "text")
    assert (S / "n.md").read_text() == (T / "n.md").read_text() == "text"
    assert names(S) == names(T) == ["n.md"]
    assert notes_in_history(api) == {note_id(S / "n.md")}


def test_a_note_with_such_a_name_stays(S: Path, T: Path, api: Api, save, monkeypatch):
    """Made in the same way and not renamed: what the name says does not take it away."""
    made: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, target: made.append(self))
        save(S / "n.md", "text")
    (temporary,) = made
    assert temporary.read_text() == "text"
    if temporary.name in names(T):  # scratch is promised to be in memory only
        assert api.get(f"/{temporary.name}") == "text"
        temporary.write_text("edited")
        temporary.rename(S / "n.md")
        assert [text for _, text in api.history("/n.md")] == ["text", "edited", "edited"]


def test_a_note_with_a_history_keeps_it_when_it_is_renamed_over_another(S, T, api):
    (S / "n.md").write_text("old")
    (S / "n.md.1").write_text("one")
    (S / "n.md.1").write_text("two")
    source = note_id(S / "n.md.1")
    (S / "n.md.1").rename(S / "n.md")
    assert [operation for operation, _ in api.history(source)] == ["created", "modified", "deleted"]
    (S / "n.md.2").write_text("another's")
    source = note_id(S / "n.md.2")
    (T / "n.md.2").rename(T / "n.md")
    assert [operation for operation, _ in api.history(source)] == ["created", "deleted"]
    (S / "n.md").read_text()
    (S / "draft").write_text("a name of its own")
    source = note_id(S / "draft")
    (S / "draft").rename(S / "n.md")
    assert [operation for operation, _ in api.history(source)] == ["created", "deleted"]
    assert api.get("/n.md") == "a name of its own"


# ------------------------------------------------------------------------------ backups


@pytest.mark.parametrize("backup", ["backup", "nobackup"])
@pytest.mark.parametrize("copy", ["auto", "no", "yes"])
def test_vim_with_a_backupext_saves_versions_of_the_same_note(S, T, api, backup, copy):
    if shutil.which("vim") is None:
        pytest.skip("needs vim")
    (S / "n.md").write_text("one\n")
    note = note_id(S / "n.md")
    for word in ("two", "three"):
        sh_ok(
            'timeout 20 vim -u NONE -N -i NONE -es -c "set $BACKUP backupext=.bak" '
            '-c "set backupcopy=$COPY backupskip= writebackup" -c "normal Go$WORD" -c wq '
            '"$F" < /dev/null',
            BACKUP=backup,
            COPY=copy,
            WORD=word,
            F=S / "n.md",
        )
        assert note_id(S / "n.md") == note_id(T / "n.md") == note
    assert (S / "n.md").read_text() == (T / "n.md").read_text() == "one\ntwo\nthree\n"
    texts = [text for _, text in api.history(note)]
    assert list(dict.fromkeys(texts)) == ["one\n", "one\ntwo\n", "one\ntwo\nthree\n"]
    if backup == "backup":
        assert names(S) == names(T) == ["n.md", "n.md.bak"]
        assert (S / "n.md.bak").read_text() == (T / "n.md.bak").read_text() == "one\ntwo\n"
    else:
        assert names(S) == names(T) == ["n.md"]


@pytest.mark.parametrize("program", ["sed -i.bak", "perl -i.bak -pe"])
def test_editing_with_a_backup_saves_a_version_of_the_same_note(S, T, api, program):
    (S / "n.md").write_text("TODO\n")
    note = note_id(S / "n.md")
    sh_ok(f'{program} s/TODO/DONE/ "$S/n.md"', S=S)
    assert note_id(S / "n.md") == note_id(T / "n.md") == note
    assert (S / "n.md").read_text() == (T / "n.md").read_text() == "DONE\n"
    assert (S / "n.md.bak").read_text() == (T / "n.md.bak").read_text() == "TODO\n"
    assert notes_in_history(api) == {note, note_id(S / "n.md.bak")}
    for number in range(3):
        backup = note_id(S / "n.md.bak")
        sh_ok(f'{program} "s/\\$/{number}/" "$S/n.md"', S=S)
        assert note_id(S / "n.md") == note_id(T / "n.md") == note
        assert note_id(S / "n.md.bak") == note_id(T / "n.md.bak") != backup
    assert (S / "n.md").read_text() == (T / "n.md").read_text() == "DONE012\n"
    assert (S / "n.md.bak").read_text() == (T / "n.md.bak").read_text() == "DONE01\n"
    texts = [text for _, text in api.history(note)]
    assert list(dict.fromkeys(texts)) == ["TODO\n", "DONE\n", "DONE0\n", "DONE01\n", "DONE012\n"]


def test_a_backup_that_somebody_writes_in_or_changed_stays_what_it_was(S, T, api):
    (S / "n.md").write_text("one")
    note = note_id(S / "n.md")
    with opened(S / "n.md", os.O_WRONLY | os.O_APPEND) as fd:
        (S / "n.md").rename(S / "n.md.bak")
        os.write(fd, b" more")
        (S / "n.md").write_text("two")
    assert note_id(S / "n.md.bak") == note_id(T / "n.md.bak") == note
    assert (T / "n.md.bak").read_text() == "one more"
    assert (T / "n.md").read_text() == "two"


def test_who_reads_a_backup_that_becomes_a_note_of_its_own_goes_on_reading(S, T, api):
    (S / "n.md").write_text("one" * 3000)
    with opened(S / "n.md", os.O_RDONLY) as fd:
        (S / "n.md").rename(S / "n.md.bak")
        (S / "n.md").write_text("two")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 10_000, 0) == b"one" * 3000
    for root in (S, T):
        assert (root / "n.md.bak").read_text() == "one" * 3000
        assert (root / "n.md.bak").stat().st_size == 9000
    (S / "n.md.bak").write_text("edited")
    assert api.get("/n.md.bak") == (T / "n.md.bak").read_text() == "edited"


def test_a_note_moved_to_a_backup_name_is_moved_until_something_takes_its_place(S, T, api):
    (S / "n.md").write_text("one")
    note = note_id(S / "n.md")
    (S / "n.md").rename(S / "n.md.bak")
    assert note_id(S / "n.md.bak") == note_id(T / "n.md.bak") == note
    assert names(S) == names(T) == ["n.md.bak"]
    (S / "n.md.bak").write_text("edited, so a note of its own")
    (S / "n.md").write_text("two")
    assert note_id(S / "n.md.bak") == note
    assert note_id(S / "n.md") != note
