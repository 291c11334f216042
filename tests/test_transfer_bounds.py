"""What one export, import or tar may cost, whatever is sent."""

import sys
import tarfile
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import tar
from memfs.errors import Invalid


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def header(kind: bytes, data: bytes, name: str = "x") -> bytes:
    """An entry of any type."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.GNU_FORMAT) + block(data)


def record(key: bytes, value: bytes) -> bytes:
    """A line of a pax header."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def pax(**fields: bytes) -> bytes:
    data = b"".join(record(key.encode(), value) for key, value in fields.items())
    return header(tarfile.XHDTYPE, data)


FILE = header(tarfile.REGTYPE, b"text", "a")


# The tar ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "at"),
    [
        (b"1.5", 1_500_000_000),
        (b"-1.000000001", -1_000_000_001),
        (b"9223372036.854775807", 2**63 - 1),
        (b"9223372036.854775808", None),
        (b"1E+999999999999", None),
        (b"1e-999999999999", 0),
        (b"0e999999999999", None),
        (b"1e900000", None),  # as a number it has 900,000 digits
        (b"9" * 60_000, None),
        (b"NaN", None),
        (b"-Infinity", None),
        (b"soon", None),
        (b"", None),
    ],
)
def test_an_mtime_that_is_no_time_is_left_out_and_costs_nothing(
    said: bytes, at: int | None
) -> None:
    reader = tar.Reader(lambda member: 10)
    [(member, content)] = reader.feed(pax(mtime=said) + FILE + tar.END)
    assert (member.mtime, content) == (at, b"text")


def kept(reader: tar.Reader) -> int:
    """Return the bytes of what a reader holds."""

    def size(one: object) -> int:
        inside: Iterable[object] = ()
        if isinstance(one, dict):
            inside = [*one, *one.values()]
        elif isinstance(one, list | tuple | set):
            inside = one
        return sys.getsizeof(one) + sum(size(part) for part in inside)

    return size(vars(reader))


EXTENDED = st.one_of(
    st.builds(
        lambda kind, data: header(kind, data),
        st.sampled_from([tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME]),
        st.one_of(
            st.builds(record, st.sampled_from([b"path", b"comment", b"k" * 9_000]), st.just(b"v")),
            st.builds(lambda n: record(b"path", b"v" * n), st.integers(1, 64_000)),
            st.builds(lambda n: b"".join(record(b"%d" % k, b"v") for k in range(n)), st.just(900)),
            st.builds(lambda n: b"n" * n, st.integers(1, 65_536)),
        ),
    ),
    st.just(FILE),
)


@given(st.lists(EXTENDED, max_size=12), st.integers(300, 70_000))
def test_a_reader_keeps_the_headers_of_one_entry_at_most(parts: list[bytes], step: int) -> None:
    reader = tar.Reader(lambda member: 10)
    data = b"".join(parts)
    try:
        for start in range(0, len(data), step):
            list(reader.feed(data[start : start + step]))
            assert kept(reader) < 80 * 1024
    except Invalid:
        assert kept(reader) < 80 * 1024


X, L = tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME


@pytest.mark.parametrize(
    "headers",
    [
        [pax(path=b"b"), pax(path=b"c")],
        [pax(a=b"1"), pax(b=b"1")],
        [header(L, b"b"), header(L, b"c")],
        [header(tarfile.XGLTYPE, record(b"a", b"1"))] * 2,
        [pax(a=b"1"), header(L, b"b"), pax(c=b"1")],
        [pax(a=b"v" * 40_000), header(L, b"b" * 40_000)],
    ],
)
def test_extended_headers_that_no_program_writes_are_refused(headers: list[bytes]) -> None:
    reader = tar.Reader(lambda member: 10)
    with pytest.raises(Invalid, match="extended header"):
        list(reader.feed(FILE + b"".join(headers) + FILE + tar.END))


def test_each_entry_has_extended_headers_of_its_own() -> None:
    reader = tar.Reader(lambda member: 10)
    most = pax(path=b"b", comment=b"v" * 60_000)
    global_one = header(tarfile.XGLTYPE, record(b"comment", b"1" * 60_000))
    skipped = header(tarfile.DIRTYPE, b"")
    data = (global_one + skipped + most + FILE + header(L, b"c") + FILE) * 3 + tar.END
    names = [member.name for member, _ in reader.feed(data)]
    assert names == ["x", "b", "c"] * 3


def test_attributes_that_are_no_text_do_not_matter() -> None:
    reader = tar.Reader(lambda member: 10)
    data = header(X, record(b"SCHILY.xattr.user.k", b"\xff=\n\0") + record(b"path", b"b"))
    [(member, _)] = reader.feed(data + FILE + tar.END)
    assert member.name == "b"


@given(st.dictionaries(st.text("abc=\n 0é", min_size=1), st.text("v =\n9é", max_size=120)))
def test_pax_records_are_read_as_the_standard_library_writes_them(fields: dict[str, str]) -> None:
    fields = {key: value for key, value in fields.items() if "=" not in key} | {"path": "b"}
    info = tarfile.TarInfo("a")
    info.pax_headers = fields
    reader = tar.Reader(lambda member: 10)
    [(member, _)] = reader.feed(info.tobuf(tarfile.PAX_FORMAT) + tar.END)
    assert member.name == "b"


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"0 a=\n",
            b"5 a=",
            b"5 a=x",
            b"6 a=\n",
            b"4 a=\n",
            b"5\na=\n",
            b"5 ab\n",
            b" a=\n",
            b"a",
        ),
        *(b"-5 a=\n", b"5 a=\n ", b"5 a=\n6 b=\n", b"9999999 a=\n", b"5 a=\n" * 900 + b"5 a="),
        *(b"6 a=b\nabcdefghi", b"6 a=b\n9999999999 ", b"6 a=b\n00000 a"),
        *(b"9" * 65_536, b" " * 65_536, b"=" * 65_536),
    ],
)
def test_a_damaged_pax_header_is_refused(data: bytes) -> None:
    reader = tar.Reader(lambda member: 10)
    with pytest.raises(Invalid, match="extended header"):
        list(reader.feed(header(X, data) + FILE + tar.END))
