"""Paths of notes: what a name may be, checked once (SEMANTICS: Names).

Only `parse` and `join` make a `NotePath`. Every error here is an `InvalidPath`; a name is shown
escaped and shortened, so that it can stand in a log line.
"""

import re
import unicodedata
from collections.abc import Container
from itertools import count

from memfs.errors import InvalidEncoding, InvalidPath, NameTooLong
from memfs.limits import PATH_BYTES, PATH_SEGMENTS, SEGMENT_BYTES
from memfs.types import NotePath

RESERVED = ".memfs"  # the store's own folder in the mount; no note may be at or below it

_NOT_NAMES = frozenset(("", ".", ".."))
# control, format, surrogate, line separator, paragraph separator
_FORBIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_NOT_SHORT = re.compile(r"[^a-z0-9]+")


def parse(path: str) -> NotePath:
    """Return *path* as the path of a note.

    Raises: InvalidPath, InvalidEncoding, NameTooLong.
    """
    names = path.split("/")
    if len(names) < 2 or names[0]:
        raise InvalidPath(f"path {_shown(path)} is not absolute; start it with '/'")
    del names[0]
    if path.isascii() and path.isprintable():
        size = len(path)
    else:
        _check_characters(path)
        size = len(path.encode())
    if not _NOT_NAMES.isdisjoint(names):
        raise InvalidPath(
            f"path {_shown(path)} has an empty, '.' or '..' segment; name every folder once, "
            "without '//' or a '/' at the end"
        )
    if size > PATH_BYTES:
        raise NameTooLong(f"the path has {size} bytes; shorten it to {PATH_BYTES}")
    if size > SEGMENT_BYTES:
        for name in names:
            _check_length(name.encode())
    if len(names) > PATH_SEGMENTS:
        raise InvalidPath(
            f"path {_shown(path)} has {len(names)} segments; use at most {PATH_SEGMENTS}"
        )
    if names[0] == RESERVED:
        raise InvalidPath(f"'/{RESERVED}' is memfs's own folder; choose another first segment")
    return NotePath(path)


def parse_prefix(prefix: str) -> tuple[str, ...]:
    """Return the segments of a folder prefix: () for '/', ('a', 'b') for '/a/b/'.

    Raises: InvalidPath, InvalidEncoding, NameTooLong.
    """
    if prefix == "/":
        return ()
    if not prefix.endswith("/"):
        raise InvalidPath(f"prefix {_shown(prefix)} names no folder; end it with '/'")
    return segments(parse(prefix[:-1]))


def check_name(name: bytes) -> str:
    """Return one name that the kernel passed as text.

    A name is not a path: the reserved name is refused only by `parse` and `join`, because it is
    reserved at a store's root only, and so are the limits of a whole path.
    Raises: NameTooLong (before anything else, as ext4 does), InvalidEncoding, InvalidPath.
    """
    _check_length(name)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise InvalidEncoding(f"name {_shown(name)} is not UTF-8; rename it in UTF-8") from None
    if not (text.isascii() and text.isprintable()):
        _check_characters(text)
    if text in _NOT_NAMES or "/" in text:
        raise InvalidPath(f"name {_shown(text)} cannot be used; give one name without '/'")
    return text


def segments(path: NotePath) -> tuple[str, ...]:
    """Return the names along *path*, the note's own last."""
    return tuple(path.split("/")[1:])


def join(*names: str) -> NotePath:
    """Return the path that runs through *names*.

    Raises: as `parse`; names that are fine alone can be too many or too long together.
    """
    return parse("/" + "/".join(names))


def short_name(store_name: str, store_id: str, taken: Container[str]) -> str:
    """Return a folder name for an attachment that is not in *taken* (DESIGN 2: short name)."""
    # cut: a lower-cased name can be longer than NAME_MAX lets a folder be
    stem = _NOT_SHORT.sub("-", store_name.lower()).strip("-")[:SEGMENT_BYTES].rstrip("-")
    stem = stem or store_id
    name = stem
    numbers = count(2)
    while name in taken:
        suffix = f"-{next(numbers)}"
        name = stem[: SEGMENT_BYTES - len(suffix)].rstrip("-") + suffix
    return name


def _check_length(name: bytes) -> None:
    if len(name) > SEGMENT_BYTES:
        raise NameTooLong(
            f"name {_shown(name)} has {len(name)} bytes; shorten it to {SEGMENT_BYTES}"
        )


def _check_characters(text: str) -> None:
    # isprintable is also False for harmless characters, such as a no-break space
    if not text.isprintable():
        for char in text:
            if unicodedata.category(char) in _FORBIDDEN_CATEGORIES:
                raise InvalidEncoding(
                    f"{_shown(text)} holds U+{ord(char):04X}; leave out control and format "
                    "characters, line separators and surrogates"
                )
    if not unicodedata.is_normalized("NFC", text):
        raise InvalidEncoding(f"{_shown(text)} is not in Unicode's NFC form; normalise it to NFC")


def _shown(name: str | bytes) -> str:
    text = name if isinstance(name, str) else name.decode(errors="backslashreplace")
    return ascii(text if len(text) <= 60 else text[:59] + "…")
