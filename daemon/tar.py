"""Tars, read as they come in and written as they go out; only what notes need (tar(5), pax).

The reader takes anything for hostile: it holds one member's bytes at most and, whatever comes
before it, no more than its extended headers may have; what it does not know it refuses. It touches
no file.
"""

import tarfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import NamedTuple

from memfs.engine.secrets import can_become_utf8
from memfs.errors import Invalid
from memfs.types import Time

_BLOCK = 512
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)
_HEADER_BYTES = 65_536  # of all extended headers of one member
_LENGTH_DIGITS = 5  # of a line in it
# What somebody may send for a tar, by its first bytes, and the remedy.
_OTHERS = (
    (b"\x1f\x8b", "gzip", "gunzip it first"),
    (b"BZh", "bzip2", "bunzip2 it first"),
    (b"\xfd7zXZ\0", "xz", "unxz it first"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd it first"),
    (
        b"PK\x03\x04",
        "a zip",
        "unzip it into a folder, then pack that with `tar -cf x.tar -C FOLDER .`",
    ),
    (b"PK\x05\x06", "an empty zip", "there is nothing in it to import"),
    (
        b"7z\xbc\xaf\x27\x1c",
        "7z",
        "unpack it, then pack the folder with `tar -cf x.tar -C FOLDER .`",
    ),
)
_MTIME_MOST = 2**63 - 1
_SECONDS_DIGITS = 9  # after the first one of its seconds
_REFUSED = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_KEPT = (b"path", b"size", b"mtime")
_SPARSE = b"GNU.sparse"  # begins the keys of sparse files
_OVERRIDES = (b"path", b"size", b"linkpath", _SPARSE)


class Member(NamedTuple):
    """One entry; mtime None: not given, or not one."""

    name: str
    size: int
    mode: int
    mtime: Time | None
    is_folder: bool


class Reader:
    """Takes a tar in parts of any size and gives its members.

    most: is asked at each regular file's header for how many bytes it may have, and may raise;
    None: its bytes do not matter.
    """

    def __init__(self, most: Callable[[Member], int | None]) -> None:
        self._most = most
        self._buffer = bytearray()
        self._skip = 0  # bytes to pass over
        self._member: Member | None = None  # whose bytes are collected
        self._extended: dict[bytes, bytes] = {}  # for the next member
        self._sizes: dict[bytes, int] = {}  # of its extended headers, by type
        self._wanted: tuple[bytes, int] | None = None  # extended header: type and size
        self._zeros = 0
        self._begun = False  # a header was one

    def feed(self, data: bytes) -> Iterator[tuple[Member, bytes]]:
        """Yield the members that are whole now, with their bytes. Exhaust it before the next call.

        Raises: Invalid.
        """
        start = 0
        while start < len(data) or self._buffer:
            if self._skip:
                passed = min(self._skip, len(data) - start)
                self._skip -= passed
                start += passed
                if start == len(data):
                    return
            need = self._need()
            taken = data[start : start + need - len(self._buffer)]
            self._buffer += taken
            start += len(taken)
            if len(self._buffer) < need:
                return
            block, self._buffer = bytes(self._buffer), bytearray()
            found = self._take(block)
            if found is not None:
                yield found

    def close(self) -> None:
        """Check that the tar was whole.

        Raises: Invalid.
        """
        if not self._begun and self._zeros == 0:
            raise Invalid(_not_a_tar(bytes(self._buffer)))
        if self._zeros < 2:
            raise Invalid("the tar is cut off: send all of it")

    def _need(self) -> int:
        if self._wanted is not None:
            return _padded(self._wanted[1])
        if self._member is not None:
            return _padded(self._member.size)
        return _BLOCK

    def _take(self, block: bytes) -> tuple[Member, bytes] | None:
        if self._wanted is not None:
            (kind, size), self._wanted = self._wanted, None
            self._extend(kind, block[:size])
        elif self._member is not None:
            member, self._member = self._member, None
            return member, block[: member.size]
        elif self._zeros >= 2:
            pass  # padding after the end
        elif not any(block):
            self._zeros += 1
        else:
            self._zeros = 0
            return self._header(block)
        return None

    def _header(self, block: bytes) -> tuple[Member, bytes] | None:
        try:
            raw = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            if not self._begun:
                raise Invalid(_not_a_tar(block)) from None
            raise Invalid(
                f"damaged tar ({error}): send a plain, uncompressed tar with names in UTF-8"
            ) from None
        self._begun = True
        if raw.type in _EXTENDED:
            self._want(raw.type, raw.size)
            return None
        extended, self._extended, self._sizes = self._extended, {}, {}
        member = _member(raw, extended)
        if member.is_folder:
            self._skip = _padded(member.size)
            return member, b""
        most = self._most(member)
        if most is None:
            self._skip = _padded(member.size)
            return None
        if member.size > most:
            raise Invalid(f"{member.name!a} has {member.size} bytes, at most {most} fit")
        if member.size == 0:
            return member, b""
        self._member = member
        return None

    def _want(self, kind: bytes, size: int) -> None:
        """Collect an extended header next."""
        if kind in self._sizes:
            raise Invalid("two extended headers of a kind for one entry: make the tar again")
        if size <= 0 or sum(self._sizes.values()) + size > _HEADER_BYTES:
            raise Invalid(f"an extended header of {size} bytes: no name needs so many")
        self._sizes[kind] = size
        self._wanted = kind, size

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind == tarfile.GNUTYPE_LONGNAME:
            self._extended[b"path"] = data.rstrip(b"\0")
            return
        for key, value in _records(data):
            if kind == tarfile.XGLTYPE:
                if key.startswith(_OVERRIDES):
                    raise Invalid("a global header that names or sizes every entry: leave it out")
            elif key in _KEPT:
                self._extended[key] = value
            elif key.startswith(_SPARSE):
                self._extended[_SPARSE] = b""

        self._begun = True


def _not_a_tar(start: bytes) -> str:
    """Return what bytes are that do not begin a tar, and what to do."""
    if not start:
        return "nothing came: send a tar"
    for magic, name, remedy in _OTHERS:
        if start.startswith(magic):
            return f"this is {name}, not a tar: {remedy}"
    if b"\0" not in start and can_become_utf8(start):
        return "this is plain text, not a tar: write one note with `memfs put STORE PATH`"
    return "this is no tar, or a damaged one: send a plain tar with names in UTF-8"


def _member(raw: tarfile.TarInfo, extended: dict[bytes, bytes]) -> Member:
    name = _text(extended[b"path"]) if b"path" in extended else raw.name
    if _SPARSE in extended:
        raise Invalid(f"{name!a} is a sparse file: a tar of plain files is needed")
    if raw.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        what = _REFUSED.get(raw.type, f"of type {raw.type!r}")
        raise Invalid(f"{name!a} is {what}: only plain files can be notes")
    size = extended.get(b"size", b"%d" % raw.size)
    if not (size.isdigit() and len(size) < 19):
        raise Invalid(f"{name!a} has an impossible size")
    return Member(
        name=name,
        size=int(size),
        mode=raw.mode & 0o777,
        mtime=_time(extended.get(b"mtime", b"%d" % raw.mtime)),
        is_folder=raw.type == tarfile.DIRTYPE,
    )


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a pax header: its lines are `LENGTH KEY=VALUE`."""
    start = 0
    while start < len(data):
        space = data.find(b" ", start, start + _LENGTH_DIGITS + 1)
        digits = data[start : max(space, start)]
        end = start + int(digits) if digits.isdigit() else start
        equals = data.find(b"=", space + 1, end)
        if not start < space < equals < end <= len(data) or data[end - 1 : end] != b"\n":
            raise Invalid("a damaged extended header: make the tar again")
        yield data[space + 1 : equals], data[equals + 1 : end - 1]
        start = end


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid("a name that is not UTF-8: make the tar again with names in UTF-8") from None


def _time(data: bytes) -> Time | None:
    try:
        seconds = Decimal(data[:40].decode("ascii"))
    except (ArithmeticError, UnicodeDecodeError):
        return None
    # 1e900000 takes ten bytes here, and as an int half a minute in which no other thread runs
    if not seconds.is_finite() or seconds.adjusted() > _SECONDS_DIGITS:
        return None
    at = int(seconds.scaleb(9))
    return Time(at) if abs(at) <= _MTIME_MOST else None


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def pack(name: str, data: bytes, mode: int = 0o644, mtime: Time = Time(0)) -> bytes:  # noqa: B008 - a number
    """Return a regular file as bytes of a tar."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = mode
    info.mtime, rest = divmod(mtime, 10**9)
    if rest or info.mtime < 0:
        exact = Decimal(mtime).scaleb(-9)
        info.pax_headers = {"mtime": f"{exact:f}"}
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    return head + data + bytes(_padded(len(data)) - len(data))


END = bytes(2 * _BLOCK)  # of a tar
