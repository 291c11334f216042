"""The ways into a store, behind one small interface; a plain directory is the oracle.

A Door keeps texts at paths such as `/a/b.md`. Errors come as their errno, whatever the door calls
them. What a door cannot express is named in its `LACKS`, and the tests ask `door.has`, so that a
gap is written down here and is not a silent skip.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import httpx

from tests.mount import Api, until

# What a test may ask for beside put, get, delete, rename and paths:
FOLDERS = "empty folders of their own"
REPLACE = "a rename over what is there"
HISTORY = "ids and versions"
LIMITS = "the limits of memfs: text, UTF-8, names, secrets"
CAS = "a write with the sha256 that must be the head"


class Door:
    """One way in. Each method raises OSError with the errno that the mount has for it."""

    LACKS: ClassVar[frozenset[str]] = frozenset()

    def has(self, what: str) -> bool:
        """Return whether the door can express *what*."""
        return what not in self.LACKS

    def put(self, path: str, data: bytes) -> None:
        """Make *data* the text at *path*, creating folders and the note if they are missing."""
        raise NotImplementedError

    def get(self, path: str) -> bytes:
        raise NotImplementedError

    def delete(self, path: str) -> None:
        raise NotImplementedError

    def rename(self, path: str, new: str) -> None:
        """Move a note; the folders of *new* are made if they are missing."""
        raise NotImplementedError

    def paths(self) -> list[str]:
        """Return the paths of all texts, in byte order of path segments."""
        raise NotImplementedError


class Folder(Door):
    """A plain directory: written at one root and read at another (the same, for a plain disk)."""

    LACKS = frozenset({HISTORY, LIMITS, CAS})

    def __init__(self, writes: Path, reads: Path) -> None:
        self.writes, self.reads = writes, reads

    def put(self, path: str, data: bytes) -> None:
        target = Path(f"{self.writes}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def get(self, path: str) -> bytes:
        return Path(f"{self.reads}{path}").read_bytes()

    def delete(self, path: str) -> None:
        os.unlink(f"{self.writes}{path}")

    def rename(self, path: str, new: str) -> None:
        target = Path(f"{self.writes}{new}")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(f"{self.writes}{path}", target)

    def paths(self) -> list[str]:
        found = [
            f"/{Path(folder, name).relative_to(self.reads)}"
            for folder, _, names in os.walk(self.reads)
            for name in names
        ]
        return sorted(found, key=_order)

    def mkdir(self, path: str) -> None:
        os.mkdir(f"{self.writes}{path}")

    def folders(self) -> list[str]:
        found = [
            f"/{Path(folder, name).relative_to(self.reads)}"
            for folder, names, _ in os.walk(self.reads)
            for name in names
        ]
        return sorted(found, key=_order)

    def remove_all(self) -> None:
        for entry in list(self.writes.iterdir()):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class Mount(Folder):
    """A mounted store; versions are asked of the API, which is the same at every door."""

    LACKS = frozenset({CAS})

    def __init__(self, writes: Path, reads: Path, api: Api) -> None:
        super().__init__(writes, reads)
        self.api = api

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        if not data:  # committed by the release, which the kernel does not wait for
            until(lambda: self.api.get(path) == "", f"{path} is empty")


class Http(Door):
    """The memories API, by path."""

    LACKS = frozenset({FOLDERS, REPLACE})

    def __init__(self, api: Api) -> None:
        self.api = api

    def put(self, path: str, data: bytes, expected: bytes | None = None) -> None:
        with _errnos():
            content = data.decode()
            found = self.api.memory(path)
            if found is None:
                body: dict[str, object] = {"path": path, "content": content}
                self._ask("POST", "/memories", json=body)
                return
            body = {"content": content}
            if expected is not None:
                digest = sha256(expected).hexdigest()
                body["precondition"] = {"type": "content_sha256", "content_sha256": digest}
            self._ask("POST", f"/memories/{found['id']}", json=body)

    def get(self, path: str) -> bytes:
        with _errnos():
            return self._ask("GET", f"/memories/{self._id(path)}").json()["content"].encode()

    def delete(self, path: str) -> None:
        with _errnos():
            self._ask("DELETE", f"/memories/{self._id(path)}")

    def rename(self, path: str, new: str) -> None:
        with _errnos():
            self._ask("POST", f"/memories/{self._id(path)}", json={"path": new})

    def paths(self) -> list[str]:
        return self.api.ls()

    def _id(self, path: str) -> str:
        found = self.api.memory(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no note", path)
        return str(found["id"])

    def _ask(self, method: str, url: str, **kwargs: object) -> httpx.Response:
        return self.api.request(method, url, **kwargs).raise_for_status()


def _order(path: str) -> list[bytes]:
    return [segment.encode() for segment in path.split("/")]


# What the API says, in the words of its messages where the type is the same for several errors.
_STATUS: tuple[tuple[str, str, int], ...] = (
    ("memory_path_conflict_error", "", errno.EEXIST),
    ("memory_precondition_failed_error", "", errno.ESTALE),
    ("not_found_error", "", errno.ENOENT),
    ("invalid_request_error", "credential", errno.EACCES),
    ("invalid_request_error", "split it into notes", errno.EFBIG),
    ("invalid_request_error", "shorten", errno.ENAMETOOLONG),
    ("invalid_request_error", "is not in Unicode's NFC form", errno.EILSEQ),
    ("invalid_request_error", "leave out control and format", errno.EILSEQ),
    ("invalid_request_error", "", errno.EINVAL),
)


@contextmanager
def _errnos() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:  # JSON cannot carry it
        raise OSError(errno.EILSEQ, "not UTF-8") from error
    except httpx.HTTPStatusError as error:
        problem = error.response.json()["error"]
        for kind, words, code in _STATUS:
            if kind == problem["type"] and words in problem["message"]:
                raise OSError(code, problem["message"]) from None
        raise


def failing(call: Callable[[], object]) -> int | None:
    """Return the errno that *call* fails with, None if it does not."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None
