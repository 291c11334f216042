"""Calls to the daemon: one HTTP request each, over the workspace's unix socket."""

import json
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from daemon.cli.exits import Exit
from daemon.cli.session import Failure
from daemon.config import Config, check_socket_folder
from memfs import ids
from memfs.errors import NotFound

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]

STORE_PAGE, NOTE_PAGE, VERSION_PAGE = 100, 1_000, 100  # rows a page, the most that routes give
_TIMEOUT_S = 120  # of one request; a large commit waits for the disk


class Client:
    """Speaks to one daemon. Every failure of a call is a Failure with its exit code."""

    def __init__(self, config: Config, timeout_s: float = _TIMEOUT_S) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._http: httpx.Client | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()

    def get(self, *path: str, **query: object) -> Json:
        """Return what a GET of the path below /v1 answers; query values of None are left out."""
        return self._call("GET", path, query, None)

    def post(self, *path: str, body: Json | None = None, **query: object) -> Json:
        """Return what a POST answers; body values of None are left out."""
        return self._call("POST", path, query, body)

    def delete(self, *path: str, **query: object) -> Json:
        """Return what a DELETE answers."""
        return self._call("DELETE", path, query, None)

    def rows(self, *path: str, limit: int, **query: object) -> Iterator[Json]:
        """Yield every row of a listing, *limit* a page."""
        page: str | None = None
        while True:
            found = self.get(*path, limit=limit, page=page, **query)
            yield from found["data"]
            page = found["next_page"]
            if page is None:
                return

    def stream(
        self, *path: str, last_id: str | None, quiet_s: float, **query: object
    ) -> Iterator[dict[str, str]]:
        """Yield the blocks of a stream of server-sent events, each when it is whole.

        last_id: of the block to go on after.
        Raises: Failure; ConnectionError when the stream ended or nothing came for *quiet_s*.
        """
        import httpx

        headers = {"accept": "text/event-stream"}
        if last_id is not None:
            headers["last-event-id"] = last_id
        asked = self._connected().stream(
            "GET", _url(path), params=_given(query), headers=headers, timeout=httpx.Timeout(quiet_s)
        )
        try:
            with asked as response:
                if response.status_code == 503:  # it stops, or is full
                    raise ConnectionError("the daemon is busy")
                _check(response)
                block: dict[str, str] = {}
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if line:
                        block[name] = value
                    else:
                        yield block
                        block = {}
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from None
        raise ConnectionError("the stream ended")

    @contextmanager
    def download(
        self, *path: str, **query: object
    ) -> Generator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """Give the headers and the bytes that a GET answers."""
        with self._explained():
            asked = self._connected().stream("GET", _url(path), params=_given(query))
            with asked as response:
                _check(response)
                yield response.headers, response.iter_bytes()

    def upload(self, *path: str, parts: Iterable[bytes], **query: object) -> Json:
        """Return what a POST of bytes answers."""
        return self._request("POST", path, query, parts, "application/x-tar")

    def _call(
        self, method: str, path: tuple[str, ...], query: dict[str, object], body: Json | None
    ) -> Json:
        content = None if body is None else _encode(body)
        return self._request(method, path, query, content, "application/json")

    def _request(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, object],
        content: bytes | Iterable[bytes] | None,
        media_type: str,
    ) -> Json:
        with self._explained():
            response = self._connected().request(
                method,
                _url(path),
                params=_given(query),
                content=content,
                headers={} if content is None else {"content-type": media_type},
            )
            _check(response)
            return response.json()

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Say what a failed exchange means."""
        import httpx  # a tenth of a second, which --help and --version need not wait

        try:
            yield
        except httpx.ConnectError:
            raise self._not_running() from None
        except httpx.TimeoutException:
            raise Failure(
                Exit.ERROR, f"the daemon did not answer in {self._timeout_s:g} s: see its log"
            ) from None
        except httpx.TransportError:
            raise Failure(
                Exit.ERROR,
                "the daemon ended before it answered: see `memfs status`, then try again",
            ) from None
        except UnicodeEncodeError:
            raise Failure(Exit.REFUSED, "an argument is not UTF-8: write names in UTF-8") from None
        except ValueError:
            raise Failure(
                Exit.ERROR,
                f"what answers at {self._config.socket_path} is no memfs daemon: see who listens "
                "there with `ss -xlp`",
            ) from None

    def _not_running(self) -> Failure:
        return Failure(
            Exit.NOT_RUNNING,
            f"no daemon serves {self._config.workspace}: start it with "
            f"`memfs --workspace {self._config.workspace} serve`",
        )

    def _connected(self) -> "httpx.Client":
        """Return the client of a daemon that does answer, or say why there is none."""
        if self._http is None:
            self._http = self._connect()
        return self._http

    def _connect(self) -> "httpx.Client":
        import httpx

        path = str(self._config.socket_path)
        try:
            check_socket_folder(self._config, make=False)
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except PermissionError:
            raise Failure(
                Exit.NOT_RUNNING,
                f"{path} is another user's: run memfs as the one who runs the daemon",
            ) from None
        except (NotFound, OSError):
            raise self._not_running() from None
        return httpx.Client(
            # no TLS on a unix socket: reading the certificates would take most of a command's time
            transport=httpx.HTTPTransport(uds=path, verify=False),
            base_url="http://memfs/v1/",
            timeout=self._timeout_s,
        )

    # What commands name ----------------------------------------------------------------------

    def store_id(self, store: str) -> str:
        """Return the id of a store given by name or id; of several the one that lives."""
        if ids.has_shape(store, "memstore_"):
            return store
        found = list(
            self.rows("memory_stores", limit=STORE_PAGE, name=store, include_archived=True)
        )
        live = [row for row in found if row["archived_at"] is None] or found
        missing = f"no memory store is called {store!r}: list them with `memfs store list`"
        return the_id(live, missing, f"memory stores are called {store!r}")

    def others_called(self, name: str, store_id: str) -> list[str]:
        """Return the ids of the living stores that have the name of a store that was made."""
        rows = self.rows("memory_stores", limit=STORE_PAGE, name=name)
        return [row["id"] for row in rows if row["id"] != store_id]

    def find_note(self, store_id: str, path: str, *, view: str = "basic") -> Json | None:
        """Return the note at a path or with an id, or None."""
        memories = ("memory_stores", store_id, "memories")
        if is_note_id(path):
            try:
                return self.get(*memories, path, view=view)
            except Failure as failure:
                if failure.exit_code == Exit.NOT_FOUND:
                    return None
                raise
        found = self.get(*memories, path=path, view=view)["data"]
        return found[0] if found else None

    def note(self, store_id: str, path: str, *, view: str = "basic") -> Json:
        """Return the note at a path or with an id; there must be one."""
        found = self.find_note(store_id, path, view=view)
        if found is not None:
            return found
        if not is_note_id(path) and self._is_folder(store_id, path):
            raise Failure(
                Exit.NOT_FOUND,
                f"{path} is a folder, not a note: name a note below it (see `memfs ls`)",
            )
        raise no_note(path)

    def _is_folder(self, store_id: str, path: str) -> bool:
        below = f"{path.rstrip('/')}/"
        return bool(
            self.get("memory_stores", store_id, "memories", path_prefix=below, limit=1)["data"]
        )

    def notes_at(self, store_id: str, path: str) -> list[str]:
        """Return the ids of all notes that are or were at a path, first the one that it means.

        That is the living one, else an archived one, else the one that was there last.
        """
        found = self.find_note(store_id, path)
        ids_ = [] if found is None else [found["id"]]
        archived = self.rows(
            *("memory_stores", store_id, "memories"), limit=NOTE_PAGE, archived=True
        )
        ids_ += [row["id"] for row in archived if row["path"] == path][::-1]
        versions = self.rows(
            *("memory_stores", store_id, "memory_versions"), limit=VERSION_PAGE, path=path
        )
        ids_ += [row["memory_id"] for row in versions]
        return list(dict.fromkeys(ids_))

    def note_id(self, store_id: str, path: str) -> str:
        """Return the id of the note that a path means (see notes_at), or the id that it is."""
        if is_note_id(path):
            return path
        found = self.find_note(store_id, path)
        if found is not None:
            return found["id"]
        for each in self.notes_at(store_id, path):
            return each
        raise no_note(path)

    def versions(self, store_id: str, note_id: str | None) -> Iterator[Json]:
        """Yield the versions of a note, or of the whole store, newest first, without texts."""
        return self.rows(
            *("memory_stores", store_id, "memory_versions"), limit=VERSION_PAGE, memory_id=note_id
        )

    def version(self, store_id: str, version_id: str) -> Json:
        """Return a version with its text."""
        return self.get("memory_stores", store_id, "memory_versions", version_id, view="full")


def is_note_id(word: str) -> bool:
    """Return whether a word where a path may stand is a note's id."""
    return ids.has_shape(word, "mem_")


def is_version_id(word: str) -> bool:
    """Return whether a word is a version's id."""
    return ids.has_shape(word, "memver_")


def absolute(path: str) -> str:
    """Return *path* from the store's root, where the slash may be left out; an id as it is."""
    return path if path.startswith("/") or is_note_id(path) else f"/{path}"


def the_id(found: list[Json], missing: str, several: str) -> str:
    """Return the id of the one row that a name meant.

    Raises: Failure, saying *missing*, or how many are what *several* says.
    """
    if not found:
        raise Failure(Exit.NOT_FOUND, missing)
    if len(found) > 1:
        those = ", ".join(row["id"] for row in found)
        raise Failure(Exit.CONFLICT, f"{len(found)} {several}: name one by its id ({those})")
    return found[0]["id"]


def no_note(path: str) -> Failure:
    """Return the failure for a path where no note is."""
    what = f"no note has the id {path}" if is_note_id(path) else f"no note is at {path}"
    return Failure(
        Exit.NOT_FOUND,
        f"{what}: list the notes with `memfs ls -r STORE`, deleted ones with `memfs log STORE`",
    )


def _url(path: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in path)


def _encode(body: Json) -> bytes:
    given = {name: value for name, value in body.items() if value is not None}
    return json.dumps(given, ensure_ascii=False).encode()


def _given(query: dict[str, object]) -> dict[str, str | list[str]]:
    return {name: _text(value) for name, value in query.items() if value is not None}


def _text(value: object) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(one) for one in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(response: "httpx.Response") -> None:
    """Raise the failure that an answer tells of."""
    if not response.is_success:
        response.read()
        raise Failure.of(response.status_code, response.json().get("error", {}))
