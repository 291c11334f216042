"""Every promise about texts at paths, once for each door; a plain directory is the oracle."""

import errno
import random
import unicodedata

import pytest

from memfs import limits
from tests.doors import (
    CAS,
    FOLDERS,
    HISTORY,
    LIMITS,
    REPLACE,
    Door,
    Folder,
    Http,
    Mount,
    failing,
)
from tests.mount import until

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5"
DOORS = ["plain directory", "mount", "mount of another task", "HTTP"]


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Door:
    get = request.getfixturevalue
    match request.param:
        case "plain directory":
            return Folder(get("X"), get("X"))
        case "mount":
            return Mount(get("S"), get("S"), get("api"))
        case "mount of another task":
            return Mount(get("S"), get("T"), get("api"))
        case _:
            return Http(get("api"))


# Which door lacks what, so that a gap that closes or opens is noticed.
def test_the_doors_lack_what_they_say():
    assert {kind.__name__: set(kind.LACKS) for kind in (Folder, Mount, Http)} == {
        "Folder": {HISTORY, LIMITS, CAS},
        "Mount": {CAS},
        "Http": {FOLDERS, REPLACE},
    }


TEXTS = {
    "empty": b"",
    "one byte": b"x",
    "a line": b"line\n",
    "CRLF": b"crlf\r\n\r\n",
    "NUL": b"nul \0 nul",
    "Unicode": "grüße 日本 🙂".encode(),
    "largest": b"a" * limits.NOTE_BYTES,
}


@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_comes_back_byte_exact(door: Door, data: bytes):
    door.put("/n.md", data)
    assert door.get("/n.md") == data
    assert door.paths() == ["/n.md"]


def test_the_last_text_counts(door: Door):
    for text in (b"a longer first text", b"short", b"", b"grown again"):
        door.put("/n.md", text)
        assert door.get("/n.md") == text


def test_a_text_in_folders_makes_them(door: Door):
    door.put("/a/b/c/n.md", b"deep")
    assert door.get("/a/b/c/n.md") == b"deep"
    assert door.paths() == ["/a/b/c/n.md"]


def test_what_is_not_there_is_enoent(door: Door):
    door.put("/d/there", b"x")
    assert failing(lambda: door.get("/none")) == errno.ENOENT
    assert failing(lambda: door.get("/d/none")) == errno.ENOENT
    assert failing(lambda: door.delete("/none")) == errno.ENOENT
    assert failing(lambda: door.rename("/none", "/x")) == errno.ENOENT
    assert door.paths() == ["/d/there"]


def test_a_deleted_text_is_gone_and_can_be_made_again(door: Door):
    door.put("/n", b"one")
    door.delete("/n")
    assert failing(lambda: door.get("/n")) == errno.ENOENT
    assert door.paths() == []
    door.put("/n", b"two")
    assert door.get("/n") == b"two"


def test_a_renamed_text_is_at_its_new_path_only(door: Door):
    door.put("/a/n", b"text")
    door.rename("/a/n", "/b/m")
    assert door.get("/b/m") == b"text"
    assert failing(lambda: door.get("/a/n")) == errno.ENOENT
    assert door.paths() == ["/b/m"]
    door.put("/a/n", b"other")
    assert door.paths() == ["/a/n", "/b/m"]


def test_a_rename_to_itself_changes_nothing(door: Door):
    door.put("/n", b"text")
    door.rename("/n", "/n")
    assert door.get("/n") == b"text"


def test_a_text_cannot_be_below_another(door: Door):
    door.put("/n", b"text")
    assert failing(lambda: door.put("/n/below", b"x")) in (errno.EEXIST, errno.ENOTDIR)
    door.put("/m", b"text")
    assert failing(lambda: door.rename("/m", "/n/below")) in (errno.EEXIST, errno.ENOTDIR)
    assert door.paths() == ["/m", "/n"]


def test_a_text_cannot_be_above_another(door: Door):
    door.put("/d/n", b"text")
    assert failing(lambda: door.put("/d", b"x")) in (errno.EEXIST, errno.EISDIR)
    door.put("/m", b"text")
    assert failing(lambda: door.rename("/m", "/d")) in (errno.EEXIST, errno.EISDIR)
    assert door.paths() == ["/d/n", "/m"]


def test_a_rename_over_a_text_replaces_it_or_is_a_conflict(door: Door):
    door.put("/a", b"new")
    door.put("/b", b"old")
    code = failing(lambda: door.rename("/a", "/b"))
    if door.has(REPLACE):
        assert code is None
        assert door.paths() == ["/b"]
        assert door.get("/b") == b"new"
    else:
        assert code == errno.EEXIST
        assert door.paths() == ["/a", "/b"]
        assert door.get("/b") == b"old"


def test_names_that_differ_in_case_are_different(door: Door):
    for path in ("/Finance/n", "/finance/n", "/finance/N"):
        door.put(path, path.encode())
    for path in ("/Finance/n", "/finance/n", "/finance/N"):
        assert door.get(path) == path.encode()
    assert door.paths() == ["/Finance/n", "/finance/N", "/finance/n"]


@pytest.mark.parametrize(
    "name", ["a" * 255, "ä" * 127, " lead", "-rf", "$(id)", "quote'\"", "a\\b", "*?[", "%2F"]
)
def test_unusual_names_are_names(door: Door, name: str):
    door.put(f"/{name}", b"x")
    assert door.paths() == [f"/{name}"]
    assert door.get(f"/{name}") == b"x"
    door.rename(f"/{name}", f"/d/{name}")
    door.delete(f"/d/{name}")
    assert door.paths() == []


def test_paths_are_listed_in_order(door: Door):
    wanted = ["/a", "/a-b", "/a.md", "/b/1", "/b/2/x", "/b-c", "/B"]
    for path in wanted:
        door.put(path, b"x")
    in_order = sorted(wanted, key=lambda path: [part.encode() for part in path.split("/")])
    assert door.paths() == in_order


def test_a_name_of_256_bytes_is_too_long_everywhere(door: Door):
    assert failing(lambda: door.put("/" + "a" * 256, b"x")) == errno.ENAMETOOLONG
    assert door.paths() == []


def test_folders_are_kept_where_there_are_folders(door: Door):
    if not door.has(FOLDERS):
        door.put("/d/n", b"x")
        door.delete("/d/n")
        assert door.paths() == []
        return
    assert isinstance(door, Folder)
    door.mkdir("/d")
    door.mkdir("/d/e")
    door.put("/d/n", b"x")
    door.delete("/d/n")
    assert door.folders() == ["/d", "/d/e"]
    door.remove_all()
    assert door.folders() == door.paths() == []


BAD = {
    "too long": ("/n", b"a" * (limits.NOTE_BYTES + 1), errno.EFBIG),
    "not UTF-8": ("/n", b"\xff\xfe", errno.EILSEQ),
    "half a character": ("/n", "€".encode()[:2], errno.EILSEQ),
    "secret": ("/n", f"token {TOKEN}".encode(), errno.EACCES),
    "NFD name": ("/" + unicodedata.normalize("NFD", "é"), b"x", errno.EILSEQ),
    "control character": ("/a\x01b", b"x", errno.EILSEQ),
    "21 segments": ("/" + "/".join("abcdefghijklmnopqrstu"), b"x", errno.EINVAL),
    "long path": ("/" + "/".join(["d" * 200] * 6), b"x", errno.ENAMETOOLONG),
}


@pytest.mark.parametrize("what", BAD)
def test_what_memfs_refuses_is_refused_at_every_door_and_changes_nothing(door: Door, what: str):
    path, data, code = BAD[what]
    if not door.has(LIMITS):
        assert failing(lambda: door.put(path, data)) is None, "a plain directory takes it"
        return
    door.put("/n", b"head")
    assert failing(lambda: door.put(path, data)) == code
    assert door.paths() == ["/n"]
    if what == "half a character":  # while its handle lives it may be completed; release is later
        until(lambda: door.get("/n") == b"head", "the head")
    assert door.get("/n") == b"head"


def test_each_change_is_a_version_and_same_text_is_none(door: Door):
    if not door.has(HISTORY):
        door.put("/n", b"one")
        return
    assert isinstance(door, Mount | Http)
    door.put("/n", b"one")
    note = door.api.note_id("/n")
    door.put("/n", b"two")
    door.put("/n", b"two")
    door.rename("/n", "/m")
    door.rename("/m", "/m")
    door.delete("/m")
    assert [(v["operation"], v["path"], v["content"]) for v in door.api.versions(note)] == [
        ("created", "/n", "one"),
        ("modified", "/n", "two"),
        ("modified", "/m", "two"),
        ("deleted", "/m", None),
    ]


def test_a_write_can_name_the_text_it_expects(door: Door):
    door.put("/n", b"one")
    if not door.has(CAS):
        return  # on a mount the handle's base and the guard do this: test_mount_conflicts
    assert isinstance(door, Http)
    assert failing(lambda: door.put("/n", b"two", expected=b"other")) == errno.ESTALE
    assert door.get("/n") == b"one"
    door.put("/n", b"two", expected=b"one")
    door.put("/n", b"two", expected=b"stale, but it is as asked")
    assert door.get("/n") == b"two"


def test_random_operations_agree_with_a_dictionary(door: Door):
    rng = random.Random(20_261_201)
    names = ["a", "b", "c.md", "d"]
    model: dict[str, bytes] = {}

    def path() -> str:
        return "/" + "/".join(rng.choice(names) for _ in range(rng.randint(1, 3)))

    for number in range(150):
        one, two = path(), path()
        match rng.choice(["put", "put", "put", "delete", "rename", "get"]):
            case "put":
                if not _in_the_way(model, one):
                    door.put(one, b"%d" % number)
                    model[one] = b"%d" % number
            case "delete":
                code = failing(lambda one=one: door.delete(one))
                assert (code is None) == (model.pop(one, None) is not None), one
            case "rename" if two not in model and one in model:
                if not _in_the_way({p: t for p, t in model.items() if p != one}, two) and not (
                    two.startswith(f"{one}/")
                ):
                    door.rename(one, two)
                    model[two] = model.pop(one)
            case "get" if one in model:
                assert door.get(one) == model[one]
        if isinstance(door, Folder):  # the oracle keeps emptied folders, which are in the way
            _prune(door)
    assert door.paths() == sorted(model, key=lambda p: [s.encode() for s in p.split("/")])
    assert {p: door.get(p) for p in door.paths()} == model


def _in_the_way(model: dict[str, bytes], path: str) -> bool:
    """Whether a text is above or below *path*."""
    return any(p.startswith(f"{path}/") or path.startswith(f"{p}/") for p in model)


def _prune(door: Folder) -> None:
    for folder in reversed(door.folders()):
        failing(lambda folder=folder: (door.writes / folder[1:]).rmdir())
