"""Extended attributes: what is known about a note, to be read by name with `getfattr -n`.

They are not listed: programs that copy with attributes set what is listed, and take away from the
target what the source does not list.
"""

import errno
from collections.abc import Callable

from pyfuse3 import ENOATTR, FUSEError

from memfs.engine import notes
from memfs.errors import Unsupported
from memfs.fs.inodes import Inode, Kind
from memfs.fs.mounted import Mounted
from memfs.types import NoteInfo

_PREFIX = b"user.memfs."
_SHOWN: dict[bytes, Callable[[NoteInfo], str]] = {
    b"user.memfs.id": lambda note: note.id,
    b"user.memfs.version": lambda note: note.version_id,
    b"user.memfs.sha256": lambda note: note.sha256,
    b"user.memfs.ordinal": lambda note: str(note.ordinal),
}


def no_such() -> FUSEError:
    """Return the error for an attribute that could be there and is not."""
    return FUSEError(ENOATTR)


def not_here() -> FUSEError:
    """Return the error for attributes that memfs does not have.

    The kernel asks for security.capability before each write: no rule is asked, nothing is read.
    """
    return FUSEError(errno.ENOTSUP)


def get(mounted: Mounted, inode: Inode, name: bytes) -> bytes:
    """Return the value of an attribute.

    Raises: no_such, not_here.
    """
    if not name.startswith(_PREFIX):
        raise not_here()
    shown = _SHOWN.get(name)
    if shown is None or inode.kind is not Kind.NOTE or inode.node == 0 or inode.gone:
        raise no_such()
    return shown(notes.note_of(mounted.head(inode))).encode()


def refuse(name: bytes) -> Unsupported:
    """Return the error for setting or removing an attribute."""
    return Unsupported(f"the attribute {name.decode(errors='replace')} cannot be set on a note")
