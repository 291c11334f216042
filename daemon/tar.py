"""Tars, read as they come in and written as they go out; only what notes need (tar(5), pax).

The reader takes anything for hostile: it holds one member's bytes at most, and what it does not
know it refuses. It touches no file.
"""

import tarfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import NamedTuple

from memfs.errors import Invalid
from memfs.types import Time

_BLOCK = 512
_RECORD = 20 * _BLOCK  # tar pads to it
_HEADER_BYTES = 65_536  # of one extended header
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
_OVERRIDES = ("path", "size", "linkpath", "GNU.sparse")


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
        self._extended: dict[str, str] = {}  # for the next member
        self._wanted: tuple[bytes, int] | None = None  # extended header: type and size
        self._zeros = 0
        self._read = 0

    def feed(self, data: bytes) -> Iterator[tuple[Member, bytes]]:
        """Yield the members that are whole now, with their bytes. Exhaust it before the next call.

        Raises: Invalid.
        """
        self._read += len(data)
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
            where = "this is no tar, or it is compressed" if self._read < _RECORD else "damaged tar"
            raise Invalid(
                f"{where} ({error}): send a plain, uncompressed tar with names in UTF-8"
            ) from None
        if raw.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            if not 0 < raw.size <= _HEADER_BYTES:
                raise Invalid(f"an extended header of {raw.size} bytes: no name needs so many")
            self._wanted = raw.type, raw.size
            return None
        extended, self._extended = self._extended, {}
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

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind == tarfile.GNUTYPE_LONGNAME:
            self._extended["path"] = _text(data.rstrip(b"\0"))
            return
        found = dict(_records(data))
        if kind == tarfile.XHDTYPE:
            self._extended |= found
        elif any(key.startswith(_OVERRIDES) for key in found):
            raise Invalid("a global header that names or sizes every entry: leave it out")


def _member(raw: tarfile.TarInfo, extended: dict[str, str]) -> Member:
    name = extended.get("path", raw.name)
    if any(key.startswith("GNU.sparse") for key in extended):
        raise Invalid(f"{name!a} is a sparse file: a tar of plain files is needed")
    if raw.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        what = _REFUSED.get(raw.type, f"of type {raw.type!r}")
        raise Invalid(f"{name!a} is {what}: only plain files can be notes")
    size = extended.get("size", str(raw.size))
    if not (size.isascii() and size.isdigit() and len(size) < 19):
        raise Invalid(f"{name!a} has an impossible size")
    return Member(
        name=name,
        size=int(size),
        mode=raw.mode & 0o777,
        mtime=_time(extended.get("mtime", str(raw.mtime))),
        is_folder=raw.type == tarfile.DIRTYPE,
    )


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a pax header: its lines are `LENGTH KEY=VALUE`."""
    while data:
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or len(digits) > 6:
            raise Invalid("a damaged extended header: make the tar again")
        length = int(digits)
        key, found, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if not found or length > len(data) or data[length - 1 : length] != b"\n":
            raise Invalid("a damaged extended header: make the tar again")
        yield _text(key), _text(value)
        data = data[length:]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid("a name that is not UTF-8: make the tar again with names in UTF-8") from None


def _time(text: str) -> Time | None:
    try:
        seconds = Decimal(text[:40])
    except ArithmeticError:
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
