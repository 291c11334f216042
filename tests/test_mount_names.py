"""Names on a real mount: listing, folders, rename, unlink (DESIGN 3: readdir … rmdir, names)."""

import ctypes
import errno
import os
import unicodedata
from hashlib import sha256
from pathlib import Path

import pytest

from memfs import limits
from tests.mount import Api, errno_is, names, note_id, opened, refused, sh, sh_ok, until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NEW = os.O_WRONLY | os.O_CREAT
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = -100, 1, 2, 4
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(old: Path, new: Path, flags: int) -> None:
    if _libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(old))


def deleted(api: Api, note: str) -> bool:
    return api.versions(note)[-1]["operation"] == "deleted"


# ------------------------------------------------------------------------------ what names may be


@pytest.mark.parametrize(
    "name",
    ["a" * 255, "ä" * 127, " lead", "-rf", "$(id)", "quote'\"", "trail ", "…", "a\\b", "*", "é"],
    ids=range(11),
)
def test_names_of_every_allowed_shape_are_kept_byte_exact(S: Path, T: Path, api: Api, name: str):
    (S / name).write_text("x")
    assert names(S) == names(T) == [name]
    assert (T / name).read_text() == "x"
    assert api.ls() == [f"/{name}"]
    (S / name).rename(S / "plain")
    (S / "plain").rename(S / name)
    (S / name).unlink()
    (S / name).mkdir()
    (S / name / name).write_text("y")
    assert api.ls() == [f"/{name}/{name}"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (b"a" * 256, errno.ENAMETOOLONG),
        ("ä".encode() * 128, errno.ENAMETOOLONG),
        (b"caf\xe9.md", errno.EILSEQ),
        (b"\xff\xfe", errno.EILSEQ),
        (unicodedata.normalize("NFD", "é").encode(), errno.EILSEQ),
        (b"a\x01b", errno.EILSEQ),
        (b"tab\there", errno.EILSEQ),
        (b"new\nline", errno.EILSEQ),
        ("zero\u200bwidth".encode(), errno.EILSEQ),
        ("right\u202eleft".encode(), errno.EILSEQ),
        ("line\u2028sep".encode(), errno.EILSEQ),
    ],
    ids=range(11),
)
def test_bad_names_are_refused_when_made_and_never_when_listed(S: Path, name: bytes, code: int):
    (S / "good").write_text("ok")
    path = os.path.join(os.fsencode(S), name)
    with errno_is(code):
        os.open(path, NEW)
    with errno_is(code):
        os.mkdir(path)
    with errno_is(code):
        os.rename(os.fsencode(S / "good"), path)
    for there in (os.stat, os.unlink, os.rmdir, os.listdir):
        with errno_is(code, errno.ENOENT):
            there(path)
    assert names(S) == ["good"]
    assert (S / "good").read_text() == "ok"


def test_a_path_has_at_most_20_segments(S: Path, api: Api):
    deep = S.joinpath(*"abcdefghijklmnopqrs")
    deep.mkdir(parents=True)
    (deep / "t").write_text("20")
    assert api.get("/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t") == "20"
    (deep / "u").mkdir()
    with errno_is(errno.EINVAL, errno.ENAMETOOLONG):
        os.open(deep / "u" / "v", NEW)
    with errno_is(errno.EINVAL, errno.ENAMETOOLONG):
        (deep / "u" / "v").mkdir()
    with errno_is(errno.EINVAL, errno.ENAMETOOLONG):
        (deep / "t").rename(deep / "u" / "v")


def test_a_path_has_at_most_1024_bytes(S: Path, api: Api):
    deep = S / ("d" * 255) / ("d" * 255) / ("d" * 255)
    deep.mkdir(parents=True)
    longest = 1024 - 3 * 256 - 1
    (deep / ("f" * longest)).write_text("x")
    with errno_is(errno.ENAMETOOLONG):
        os.open(deep / ("f" * (longest + 1)), NEW)
    assert len(api.ls()[0]) == 1024


def test_a_folder_cannot_be_moved_to_where_its_notes_would_be_too_deep(S: Path, api: Api):
    deep = S.joinpath(*["d"] * 18)
    deep.mkdir(parents=True)
    (S / "f" / "g").mkdir(parents=True)
    (S / "f" / "g" / "n").write_text("x")
    with errno_is(errno.EINVAL, errno.ENAMETOOLONG):
        (S / "f").rename(deep / "f")
    assert api.ls() == ["/f/g/n"]


def test_memfs_is_reserved_at_the_root_only(S: Path, api: Api):
    for make in (lambda: os.open(S / ".memfs", NEW), lambda: (S / ".memfs").mkdir()):
        with errno_is(errno.EEXIST, errno.EISDIR, errno.EINVAL, errno.EROFS):
            make()
    (S / "n").write_text("x")
    with errno_is(errno.EINVAL, errno.EISDIR, errno.EROFS, errno.EPERM, errno.EACCES):
        (S / "n").rename(S / ".memfs")
    assert names(S) == ["n"]
    (S / "d").mkdir()
    (S / "d" / ".memfs").write_text("y")
    assert api.ls() == ["/d/.memfs", "/n"]


def test_names_that_differ_in_case_are_different(S: Path, api: Api):
    for name, text in (("Finance/n", "A"), ("finance/n", "B"), ("finance/N", "C")):
        (S / name).parent.mkdir(exist_ok=True)
        (S / name).write_text(text)
    assert [(S / name).read_text() for name in ("Finance/n", "finance/n", "finance/N")] == [*"ABC"]
    (S / "finance/N").rename(S / "finance/nN")
    (S / "Finance").rename(S / "Fin")
    assert api.ls() == ["/Fin/n", "/finance/n", "/finance/nN"]


# ------------------------------------------------------------------------------ listing


def test_a_listing_shows_every_entry_once_while_others_come_and_go(S: Path, T: Path, api: Api):
    stay = {f"stay{number:03}" for number in range(150)}
    for name in stay:
        (S / name).touch()
        (S / f"go-{name}").touch()
    until(lambda: len(api.ls()) == 300, "all are committed")
    seen = []
    with os.scandir(T) as found:
        for number, entry in enumerate(found):
            seen.append(entry.name)
            if number % 10 == 0:
                gone = S / f"go-stay{number % 150:03}"
                gone.unlink(missing_ok=True)
                (S / f"come{number:03}").write_text("x")
                (S / f"{number:03}").write_text("x")
    assert len(seen) == len(set(seen))
    assert stay <= set(seen)


def test_a_listing_is_in_byte_order_and_resumes_where_it_was(S: Path):
    made = [f"{number:03}" for number in range(200)]
    for name in made:
        (S / name).touch()
    with os.scandir(S) as found:
        assert [entry.name for entry in found] == made


def test_a_name_is_listed_as_soon_as_it_is_made_and_not_once_it_is_gone(S: Path):
    for number in range(40):
        path = S / f"w{number}"
        path.write_text("x")
        assert path.name in os.listdir(S)
        if number % 3 == 0:
            path.unlink()
            assert path.name not in os.listdir(S)
    assert len(os.listdir(S)) == 26


def test_rm_rf_of_a_large_folder_leaves_nothing(S: Path, api: Api):
    (S / "d" / "e").mkdir(parents=True)
    for number in range(150):
        (S / "d" / f"{number}").touch()
        (S / "d" / "e" / f"{number}").touch()
    sh_ok('rm -rf "$S/d"', S=S)
    assert names(S) == api.ls() == []


def test_nothing_can_be_made_in_a_folder_that_was_removed(S: Path):
    (S / "d").mkdir()
    fd = os.open(S / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        (S / "d").rmdir()
        with errno_is(errno.ENOENT):
            os.open("new", NEW, dir_fd=fd)
        with errno_is(errno.ENOENT):
            os.listdir(fd)
    finally:
        os.close(fd)
    assert names(S) == []


# ------------------------------------------------------------------------------ folders


def test_a_folder_stays_when_its_last_note_goes(S: Path, T: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("x")
    (S / "d" / "n").unlink()
    assert names(S) == names(T) == ["d"]
    assert api.ls() == []
    (S / "d").rmdir()
    assert names(S) == names(T) == []


def test_a_folder_emptied_by_unlink_stays_even_if_the_api_made_it(S: Path, T: Path, api: Api):
    api.put("/d/n", "x")
    (S / "d" / "n").unlink()
    assert names(S) == names(T) == ["d"]


def test_the_api_does_not_list_empty_folders(S: Path, api: Api):
    (S / "d" / "e").mkdir(parents=True)
    answer = api.request("GET", "/memories", params={"path_prefix": "/", "depth": 1})
    assert answer.json()["data"] == []


def test_rmdir_of_a_folder_that_holds_something_is_refused(S: Path, T: Path):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("x")
    with errno_is(errno.ENOTEMPTY):
        (T / "d").rmdir()
    (S / "d" / "n").unlink()
    with opened(S / "d" / "new", NEW), errno_is(errno.ENOTEMPTY):
        (S / "d").rmdir()


def test_making_a_folder_twice_is_refused(S: Path, T: Path):
    (S / "d").mkdir()
    for path in (S / "d", T / "d"):
        with errno_is(errno.EEXIST):
            path.mkdir()


def test_a_note_made_by_api_where_an_empty_folder_stands_replaces_it(S: Path, T: Path, api: Api):
    (S / "d" / "e").mkdir(parents=True)
    api.put("/d", "note")
    assert (S / "d").read_text() == (T / "d").read_text() == "note"
    assert names(S) == ["d"]


def test_a_note_made_by_api_where_a_full_folder_stands_is_a_conflict(S: Path, api: Api):
    (S / "d").mkdir()
    (S / "d" / "n").write_text("x")
    answer = api.request("POST", "/memories", json={"path": "/d", "content": "note"})
    assert answer.status_code == 409
    assert answer.json()["error"]["type"] == "memory_path_conflict_error"


def test_a_folder_has_no_id(S: Path):
    (S / "d").mkdir()
    with errno_is(errno.ENODATA, errno.ENOTSUP):
        os.getxattr(S / "d", "user.memfs.id")


# ------------------------------------------------------------------------------ unlink


def test_unlink_is_a_deleted_version_and_a_new_file_is_a_new_note(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    old = api.note_id("/n")
    (S / "n").unlink()
    assert not (T / "n").exists()
    assert [operation for operation, _ in api.history(old)] == ["created", "deleted"]
    (S / "n").write_text("two")
    assert api.note_id("/n") != old
    assert len(api.history("/n")) == 1


def test_closing_a_file_that_was_removed_brings_nothing_back(S: Path, T: Path, api: Api):
    (S / "n").write_text("one")
    old = api.note_id("/n")
    with opened(S / "n", os.O_RDWR) as fd:
        os.unlink(S / "n")
        os.pwrite(fd, b"ONE and more", 0)
        os.fsync(fd)
        assert os.pread(fd, 99, 0) == b"ONE and more"
        assert os.fstat(fd).st_nlink == 0
        assert os.fstat(fd).st_size == 12
        os.ftruncate(fd, 3)
        assert os.pread(fd, 99, 0) == b"ONE"
    assert names(S) == names(T) == api.ls() == []
    assert deleted(api, old)


def test_closing_a_file_that_was_removed_before_its_first_commit_brings_nothing(S, T, api):
    with opened(S / "n", NEW) as fd:
        os.write(fd, b"text")
        os.unlink(S / "n")
        os.write(fd, b"more")
    assert names(S) == names(T) == api.ls() == []
    assert api.all_versions() == []


def test_a_new_file_where_an_open_one_was_removed_is_another_note(S: Path, api: Api):
    (S / "n").write_text("one")
    with opened(S / "n", os.O_RDWR) as fd:
        os.unlink(S / "n")
        (S / "n").write_text("two")
        os.pwrite(fd, b"ORPHAN", 0)
        os.fsync(fd)
        assert (S / "n").read_text() == "two"
    assert api.history("/n") == [("created", "two")]


def test_a_reader_keeps_the_text_of_a_note_that_is_removed_anywhere(S: Path, T: Path, api: Api):
    for remove in (lambda: (S / "n").unlink(), lambda: (T / "n").unlink(), lambda: api.rm("/n")):
        (S / "n").write_text("text" * 3000)
        with opened(S / "n", os.O_RDONLY) as fd:
            remove()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 20_000, 0) == b"text" * 3000
            assert not (S / "n").exists()


def test_unlinking_twice_is_enoent(S: Path, T: Path):
    (S / "n").write_text("x")
    (S / "n").unlink()
    for path in (S / "n", T / "n"):
        with errno_is(errno.ENOENT):
            path.unlink()


# ------------------------------------------------------------------------------ rename


def test_rename_to_a_free_path_keeps_the_note_with_one_version(S: Path, T: Path, api: Api):
    (S / "a").write_text("text")
    before = note_id(S / "a")
    (S / "d").mkdir()
    (S / "a").rename(S / "d" / "b")
    assert note_id(S / "d" / "b") == note_id(T / "d" / "b") == before
    versions = api.versions(before)
    assert [(v["operation"], v["path"]) for v in versions] == [
        ("created", "/a"),
        ("modified", "/d/b"),
    ]
    assert names(S) == names(T) == ["d"]


def test_rename_over_a_note_keeps_the_targets_id_and_history(S: Path, T: Path, api: Api):
    (S / "a").write_text("new")
    (S / "b").write_text("old")
    source, target = note_id(S / "a"), note_id(S / "b")
    (S / "a").rename(S / "b")
    assert note_id(S / "b") == note_id(T / "b") == target
    assert (S / "b").read_text() == (T / "b").read_text() == "new"
    assert api.history(target) == [("created", "old"), ("modified", "new")]
    assert deleted(api, source)
    assert names(S) == names(T) == ["b"]


def test_rename_of_an_uncommitted_file_over_a_note_commits_it_there(S: Path, T: Path, api: Api):
    (S / "b").write_text("old")
    target = note_id(S / "b")
    with opened(S / "a", NEW) as fd:
        os.write(fd, b"new")
        os.rename(S / "a", S / "b")
        os.write(fd, b" text")
    assert api.get("/b") == (T / "b").read_text() == "new text"
    assert api.note_id("/b") == target
    assert names(S) == names(T) == ["b"]


def test_rename_over_a_note_leaves_its_open_readers_their_text(S: Path):
    (S / "a").write_text("new")
    (S / "b").write_text("old")
    with opened(S / "b", os.O_RDONLY) as fd:
        (S / "a").rename(S / "b")
        assert os.pread(fd, 9, 0) == b"old"
        assert (S / "b").read_text() == "new"


def test_a_handle_open_on_a_replaced_note_does_not_write_over_its_successor(S: Path, api: Api):
    (S / "a").write_text("new")
    (S / "b").write_text("old")
    with opened(S / "b", os.O_RDWR) as fd:
        (S / "a").rename(S / "b")
        os.pwrite(fd, b"OLD", 0)
        os.fsync(fd)
    assert (S / "b").read_text() == "new"
    assert api.get("/b") == "new"


def test_a_file_renamed_while_open_goes_on_under_its_new_name(S: Path, api: Api):
    (S / "a").mkdir()
    (S / "b").mkdir()
    with opened(S / "a" / "f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"one")
        os.rename(S / "a" / "f", S / "b" / "g")
        os.write(fd, b"two")
        os.ftruncate(fd, 5)
        assert os.pread(fd, 9, 0) == b"onetw"
        os.fsync(fd)
        os.rename(S / "b", S / "c")
        os.write(fd, b"!")
    assert (S / "c" / "g").read_bytes() == b"onetw\0!"
    assert names(S / "a") == []
    assert api.ls() == ["/c/g"]


def test_a_dirty_note_renamed_to_a_free_path_is_one_note(S: Path, api: Api):
    (S / "a").write_text("one")
    note = note_id(S / "a")
    with opened(S / "a", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b" two")
        os.rename(S / "a", S / "b")
        os.write(fd, b" three")
    assert api.get("/b") == "one two three"
    assert api.note_id("/b") == note
    assert api.ls() == ["/b"]


def test_a_folder_rename_takes_every_note_along_with_a_version(S: Path, T: Path, api: Api):
    (S / "d" / "e").mkdir(parents=True)
    (S / "d" / "empty").mkdir()
    for name in ("d/1", "d/2", "d/e/3"):
        (S / name).write_text(name)
    ids = {name: note_id(S / name) for name in ("d/1", "d/2", "d/e/3")}
    assert (T / "d" / "e" / "3").read_text() == "d/e/3"
    (S / "d").rename(S / "new")
    for name, note in ids.items():
        moved = name.replace("d/", "new/", 1)
        assert note_id(S / moved) == note_id(T / moved) == note
        assert [v["path"] for v in api.versions(note)] == [f"/{name}", f"/{moved}"]
    assert names(T) == ["new"]
    assert names(T / "new") == ["1", "2", "e", "empty"]


def test_a_folder_rename_is_one_atomic_change(S: Path, api: Api):
    (S / "d").mkdir()
    for number in range(50):
        (S / "d" / f"{number}").write_text(f"{number}")
    (S / "d").rename(S / "new")
    assert {path.split("/")[1] for path in api.ls()} == {"new"}
    assert len(api.ls()) == 50


def test_a_folder_over_an_empty_folder_replaces_it(S: Path, T: Path, api: Api):
    (S / "a").mkdir()
    (S / "a" / "n").write_text("x")
    (S / "b").mkdir()
    (S / "a").rename(S / "b")
    assert names(S) == names(T) == ["b"]
    assert api.ls() == ["/b/n"]


def test_renames_that_posix_refuses_are_refused_alike(S: Path, api: Api):
    (S / "a" / "b").mkdir(parents=True)
    (S / "full").mkdir()
    (S / "full" / "n").write_text("x")
    (S / "f").write_text("y")
    before = api.all_versions()
    for old, new, codes in [
        ("a", "full", (errno.ENOTEMPTY, errno.EEXIST)),
        ("a", "a/b/c", (errno.EINVAL,)),
        ("a", "a/b", (errno.EINVAL, errno.ENOTEMPTY)),
        ("a/b", "a", (errno.ENOTEMPTY, errno.EEXIST)),
        ("a", "f", (errno.ENOTDIR,)),
        ("f", "a", (errno.EISDIR,)),
        ("none", "g", (errno.ENOENT,)),
        ("f", "none/g", (errno.ENOENT,)),
        ("f", "f/g", (errno.ENOTDIR,)),
    ]:
        with errno_is(*codes):
            os.rename(S / old, S / new)
    assert api.all_versions() == before
    assert names(S) == ["a", "f", "full"]


def test_rename_to_itself_does_nothing(S: Path, api: Api):
    (S / "a").write_text("x")
    (S / "d").mkdir()
    os.rename(S / "a", S / "a")
    os.rename(S / "d", S / "d")
    assert len(api.versions("/a")) == 1


def test_noreplace_is_honoured_and_exchange_is_not_known(S: Path, api: Api):
    (S / "a").write_text("a")
    (S / "b").write_text("b")
    with errno_is(errno.EEXIST):
        renameat2(S / "a", S / "b", RENAME_NOREPLACE)
    for flags in (RENAME_EXCHANGE, RENAME_WHITEOUT):
        with errno_is(errno.EINVAL, errno.EPERM):
            renameat2(S / "a", S / "b", flags)
    renameat2(S / "a", S / "c", RENAME_NOREPLACE)
    assert {name: (S / name).read_text() for name in names(S)} == {"b": "b", "c": "a"}


def test_noreplace_is_honoured_for_a_note_that_another_task_just_made(S: Path, T: Path):
    (S / "a").write_text("a")
    assert not (S / "b").exists()
    (T / "b").write_text("b")
    with errno_is(errno.EEXIST):
        renameat2(S / "a", S / "b", RENAME_NOREPLACE)
    assert (S / "b").read_text() == "b"


def test_rename_into_another_store_is_exdev_and_mv_copies(S: Path, client, api: Api):
    own = next(path for path in S.parent.iterdir() if path.name != S.name)
    (S / "a").write_text("x")
    with errno_is(errno.EXDEV):
        os.rename(S / "a", own / f"a{os.getpid()}")
    sh_ok('mv "$S/a" "$O/moved"; cat "$O/moved"; rm "$O/moved"', S=S, O=own)
    assert api.ls() == []


def test_mv_keeps_the_note_and_mv_n_does_not_overwrite(S: Path, api: Api):
    (S / "a").write_text("a")
    (S / "b").write_text("b")
    note = note_id(S / "a")
    sh('mv -n "$S/a" "$S/b"', S=S)
    assert (S / "b").read_text() == "b"
    sh_ok('mv "$S/a" "$S/c"', S=S)
    assert note_id(S / "c") == note


def test_the_text_moves_with_the_note_exactly(S: Path, T: Path, api: Api):
    text = "".join(f"line {number}\n" for number in range(3000))
    (S / "a").write_text(text)
    (S / "a").rename(S / "b")
    assert (S / "b").read_text() == (T / "b").read_text() == text
    assert api.memory("/b")["content_sha256"] == sha256(text.encode()).hexdigest()
    assert refused(S) == []


@pytest.mark.slow
def test_a_store_of_10_000_notes_is_full_and_can_be_listed(S: Path, T: Path, api: Api):
    for number in range(limits.NOTES_PER_STORE):
        (S / f"{number:05}").write_text("x")
    with errno_is(errno.EDQUOT):
        os.open(S / "more", NEW)
    assert names(T) == names(S) == [f"{number:05}" for number in range(limits.NOTES_PER_STORE)]
    with os.scandir(T) as found:
        assert {entry.stat().st_size for entry in found} == {1}
    (T / "00000").write_text("edits go on")
    (T / "00001").unlink()
    (S / "more").write_text("fits again")
    assert api.get("/00000") == "edits go on"
