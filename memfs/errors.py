"""What can go wrong, once for all doors.

MemfsError
├── Invalid                     the request has the wrong shape
│   ├── InvalidPath · NameTooLong · InvalidText · TextTooLong
│   ├── SecretRefused           the text holds a credential
│   └── StoreArchived
├── NotFound · NotAFolder · IsAFolder · FolderNotEmpty
├── PathConflict                another note is at, above or below the path
├── PreconditionFailed          the note is not what the caller last saw
├── Conflict                    the state forbids it (own store, living head, live task)
├── LimitReached · NoSpace · ReadOnly · Unsupported · CrossStore
├── Unauthenticated · RateLimited · Forbidden (ReadOnlyKey · ScopeDenied)
└── Unavailable (InUse)         the daemon is stopping, or another one holds the data

Rules raise these and nothing else. Each class carries the errno a program on the mount sees, the
HTTP status and the `error.type` of the API; a message names the thing and the remedy and never
holds a note's text or a secret.
"""

import errno as _errno
from typing import ClassVar


class MemfsError(Exception):
    """Base of every error that a door may show."""

    errno: ClassVar[int] = _errno.EIO
    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    code: ClassVar[str | None] = None  # finer than type, for programs


class Invalid(MemfsError):
    """The request has the wrong shape."""

    errno, status, type = _errno.EINVAL, 400, "invalid_request_error"


class InvalidPath(Invalid):
    """The path or name breaks a rule of SEMANTICS: Names."""


class InvalidEncoding(InvalidPath):
    """The name is not valid UTF-8, or holds characters that names may not hold."""

    errno = _errno.EILSEQ


class NameTooLong(InvalidPath):
    """The path or one of its segments is too long."""

    errno = _errno.ENAMETOOLONG


class InvalidText(Invalid):
    """The bytes are not UTF-8 text."""

    errno = _errno.EILSEQ


class TextTooLong(Invalid):
    """The text is larger than its kind allows."""

    errno = _errno.EFBIG


class SecretRefused(Invalid):
    """The text holds something that looks like a credential."""

    errno = _errno.EACCES


class StoreArchived(Invalid):
    """The store is archived: it can be read, its notes deleted, its versions redacted."""

    errno = _errno.EROFS


class NotFound(MemfsError):
    """No such thing in this workspace, or not for this caller."""

    errno, status, type = _errno.ENOENT, 404, "not_found_error"


class NotAFolder(Invalid):
    """A note stands where a folder is needed."""

    errno = _errno.ENOTDIR


class IsAFolder(Invalid):
    """A folder stands where a note is needed."""

    errno = _errno.EISDIR


class FolderNotEmpty(Invalid):
    """The folder still holds notes or folders."""

    errno = _errno.ENOTEMPTY


class PathConflict(MemfsError):
    """Another note is at the path, above it or below it."""

    errno, status, type = _errno.EEXIST, 409, "memory_path_conflict_error"

    def __init__(self, message: str, conflicting_id: str = "", conflicting_path: str = "") -> None:
        super().__init__(message)
        self.conflicting_id = conflicting_id
        self.conflicting_path = conflicting_path


class PreconditionFailed(MemfsError):
    """The note's text is not the one the caller last saw."""

    errno, status, type = _errno.ESTALE, 409, "memory_precondition_failed_error"


class Conflict(MemfsError):
    """The state of the thing forbids the request."""

    errno, status, type = _errno.EBUSY, 409, "conflict_error"


class LimitReached(Invalid):
    """A count is used up; deletes, reads and edits of what exists go on."""

    errno = _errno.EDQUOT


class NoSpace(MemfsError):
    """The disk or the reserved map is full; reads and deletes go on."""

    errno, status, type = _errno.ENOSPC, 507, "api_error"


class ReadOnly(MemfsError):
    """The attachment is read-only."""

    errno, status, type = _errno.EROFS, 403, "permission_error"


class Forbidden(MemfsError):
    """The caller may not do this."""

    errno, status, type = _errno.EPERM, 403, "permission_error"


class ReadOnlyKey(Forbidden):
    """The caller's key only reads."""

    code = "read_only_key"


class ScopeDenied(Forbidden):
    """The caller's key lacks the scope that this needs."""

    code = "scope_denied"


class Unauthenticated(MemfsError):
    """No key, or none that is valid, where one is needed."""

    errno, status, type = _errno.EACCES, 401, "authentication_error"


class RateLimited(MemfsError):
    """Too many failures lately; retry_after_s says when to come again."""

    errno, status, type = _errno.EAGAIN, 429, "rate_limit_error"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unsupported(MemfsError):
    """memfs does not have this operation."""

    errno, status, type = _errno.ENOTSUP, 400, "invalid_request_error"


class CrossStore(MemfsError):
    """The two paths are in different stores; programs then copy."""

    errno, status, type = _errno.EXDEV, 400, "invalid_request_error"


class Unavailable(MemfsError):
    """The daemon is stopping, or another process holds the data directory."""

    errno, status, type = _errno.EAGAIN, 503, "api_error"


class InUse(Unavailable):
    """A daemon holds the data directory, which only one process may have open."""

    errno, status, type = _errno.EBUSY, 409, "conflict_error"


class Corrupt(MemfsError):
    """A record on disk does not match its checksum; `memfs check` names all of them."""

    errno, status, type = _errno.EIO, 500, "api_error"


class FormatTooNew(MemfsError):
    """The data directory was written by a newer memfs."""

    errno, status, type = _errno.EPROTO, 500, "api_error"
