import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memfs.engine.path import (
    RESERVED,
    check_name,
    join,
    parse,
    parse_prefix,
    segments,
    short_name,
)
from memfs.errors import InvalidEncoding, InvalidPath, MemfsError, NameTooLong
from memfs.limits import PATH_BYTES, PATH_SEGMENTS, SEGMENT_BYTES

examples = settings(derandomize=True, deadline=None, max_examples=500, database=None)
# characters that come close to the rules
CHARS = st.one_of(
    st.sampled_from("/a.Z é\u0301\u00ad\u200d\u2028\u00a0\ud800\x00\x7f\ue000\U0001f600"),
    st.characters(exclude_categories=[]),
)
PATHS = st.text(CHARS, max_size=30).map(lambda text: "/" + text) | st.text(CHARS, max_size=30)

GOOD = [
    "/a",
    "/projects/foo/notes.md",
    "/.hidden/..x/...",
    "/a b/c  d",
    "/größe/日本語/😀.md",
    "/no\u00a0break",
    "/private\ue000use",
    "/a/.memfs",
    "/.memfs2",
    "/" + "a" * SEGMENT_BYTES,
    "/a" * PATH_SEGMENTS,
    "/" + "/".join(["b" * 203] * 5) + "/123",
]
BAD = [
    ("", InvalidPath),
    ("a", InvalidPath),
    ("a/b", InvalidPath),
    ("/", InvalidPath),
    ("//", InvalidPath),
    ("/a/", InvalidPath),
    ("/a//b", InvalidPath),
    ("/./a", InvalidPath),
    ("/a/..", InvalidPath),
    ("/.memfs", InvalidPath),
    ("/.memfs/log", InvalidPath),
    ("/a" * (PATH_SEGMENTS + 1), InvalidPath),
    ("/" + "a" * (SEGMENT_BYTES + 1), NameTooLong),
    ("/" + "é" * 128, NameTooLong),
    ("/" + "/".join(["b" * 203] * 5) + "/1234", NameTooLong),
    ("/a\nb", InvalidEncoding),
    ("/a\0", InvalidEncoding),
    ("/a\x7f", InvalidEncoding),
    ("/a\x85b", InvalidEncoding),
    ("/a\u200db", InvalidEncoding),
    ("/a\u202eb", InvalidEncoding),
    ("/\ufeffa", InvalidEncoding),
    ("/a\u2028b", InvalidEncoding),
    ("/a\u2029b", InvalidEncoding),
    ("/a\ud800b", InvalidEncoding),
    ("/e\u0301", InvalidEncoding),
]


@pytest.mark.parametrize("path", GOOD)
def test_good_path_is_kept_as_it_is(path: str) -> None:
    assert parse(path) == path
    assert join(*segments(parse(path))) == path
    assert parse_prefix(path + "/") == segments(parse(path))


@pytest.mark.parametrize(("path", "error"), BAD)
def test_bad_path_is_refused(path: str, error: type[MemfsError]) -> None:
    with pytest.raises(MemfsError) as caught:
        parse(path)
    assert type(caught.value) is error
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@examples
@given(PATHS)
@example("/" + "\U0001f600" * 63 + "/\ud800")
def test_parse_raises_only_its_own_errors_and_is_idempotent(path: str) -> None:
    try:
        parsed = parse(path)
    except InvalidPath as error:
        str(error).encode()
    else:
        assert parse(parsed) == path
        assert obeys_the_rules(path)
        assert all(check_name(name.encode()) == name for name in segments(parsed))
        return
    assert not obeys_the_rules(path)


def obeys_the_rules(path: str) -> bool:
    """The rules once more, written for reading and not for speed."""
    names = path.split("/")[1:]
    return (
        path.startswith("/")
        and not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in path)
        and unicodedata.normalize("NFC", path) == path
        and len(path.encode()) <= PATH_BYTES
        and len(names) <= PATH_SEGMENTS
        and all(name not in ("", ".", "..") for name in names)
        and all(len(name.encode()) <= SEGMENT_BYTES for name in names)
        and names[0] != RESERVED
    )


def test_prefix_is_a_folder() -> None:
    assert parse_prefix("/") == ()
    assert parse_prefix("/a/b/") == ("a", "b")


@pytest.mark.parametrize("prefix", ["", "a/", "/a", "//", "/a//", "/./", "/.memfs/", "/a\n/"])
def test_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidPath):
        parse_prefix(prefix)


@examples
@given(PATHS)
def test_prefix_raises_only_its_own_errors(prefix: str) -> None:
    try:
        names = parse_prefix(prefix)
    except InvalidPath:
        return
    assert prefix == "".join(f"/{name}" for name in names) + "/"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (b"", InvalidPath),
        (b".", InvalidPath),
        (b"..", InvalidPath),
        (b"a/b", InvalidPath),
        (b"a" * 256, NameTooLong),
        (b"\xff" * 256, NameTooLong),
        (b"\xff", InvalidEncoding),
        (b"a\xc3", InvalidEncoding),
        (b"\xed\xa0\x80", InvalidEncoding),
        (b"a\n", InvalidEncoding),
        (b"a\0", InvalidEncoding),
        ("e\u0301".encode(), InvalidEncoding),
        ("\u200b".encode(), InvalidEncoding),
    ],
)
def test_bad_name_is_refused(name: bytes, error: type[MemfsError]) -> None:
    with pytest.raises(MemfsError) as caught:
        check_name(name)
    assert type(caught.value) is error


def test_good_name_is_text() -> None:
    assert check_name("größe 日本.md".encode()) == "größe 日本.md"
    assert check_name(b".memfs") == ".memfs"  # reserved at a store's root only


@examples
@given(st.binary(max_size=300))
def test_name_raises_only_its_own_errors(name: bytes) -> None:
    try:
        text = check_name(name)
    except InvalidPath as error:
        message = str(error)
    else:
        assert text.encode() == name
        return
    assert message.isprintable()


def test_join_checks_the_whole_path() -> None:
    assert join("a", "b") == "/a/b"
    for names in ([], [""], [".memfs", "a"], ["a"] * 21, ["b" * 250] * 5):
        with pytest.raises(InvalidPath):
            join(*names)


@pytest.mark.parametrize(
    ("store", "short"),
    [
        ("Notes", "notes"),
        ("  My Notes (2026)! ", "my-notes-2026"),
        ("a__b--c", "a-b-c"),
        ("Größe", "gr-e"),
        ("日本語", "memstore_1"),
        ("---", "memstore_1"),
        ("x" * 255, "x" * 255),
        ("İ" * 255, "i-" * 127 + "i"),
    ],
)
def test_short_name_of_a_store(store: str, short: str) -> None:
    assert short_name(store, "memstore_1", ()) == short


def test_taken_short_name_gets_a_number() -> None:
    assert short_name("Notes", "memstore_1", {"notes"}) == "notes-2"
    assert short_name("Notes", "memstore_1", {"notes", "notes-2", "notes-3"}) == "notes-4"
    assert short_name("", "memstore_1", {"memstore_1"}) == "memstore_1-2"


@examples
@given(st.text(min_size=1, max_size=255), st.integers(0, 12))
def test_short_names_are_distinct_folder_names(store: str, count: int) -> None:
    taken: list[str] = []
    for _ in range(count):
        name = short_name(store, "memstore_1", taken)
        assert name not in taken
        assert check_name(name.encode()) == name
        taken.append(name)
