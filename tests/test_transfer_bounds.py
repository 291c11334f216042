"""What one export, import or tar may cost, whatever is sent."""

import tarfile

import pytest

from daemon import tar


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
