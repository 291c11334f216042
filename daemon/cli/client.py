"""Calls to the daemon: one HTTP request each, over the workspace's unix socket."""

import json
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from daemon.cli.session import CONFLICT, ERROR, NOT_FOUND, NOT_RUNNING, REFUSED, Failure
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

    def __init__(self, config: Config) -> None:
        self._config = config
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

        http = self._http or self._connect()
        headers = {"accept": "text/event-stream"}
        if last_id is not None:
            headers["last-event-id"] = last_id
        asked = http.stream(
            "GET", _url(path), params=_given(query), headers=headers, timeout=httpx.Timeout(quiet_s)
        )
        try:
            with asked as response:
                if response.status_code == 503:  # it stops, or is full
                    raise ConnectionError("the daemon is busy")
                if not response.is_success:
                    response.read()
                    raise Failure.of(response.status_code, response.json().get("error", {}))
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
            http = self._http or self._connect()
            with http.stream("GET", _url(path), params=_given(query)) as response:
                if not response.is_success:
                    response.read()
                    raise Failure.of(response.status_code, response.json().get("error", {}))
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
            http = self._http or self._connect()
            response = http.request(
                method,
                _url(path),
                params=_given(query),
                content=content,
                headers={} if content is None else {"content-type": media_type},
            )
            answer: Json = response.json()
        if response.is_success:
            return answer
        raise Failure.of(response.status_code, answer.get("error", {}))

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Say what a failed exchange means."""
        import httpx  # a tenth of a second, which --help and --version need not wait

        try:
            yield
        except httpx.ConnectError:
            raise self._not_running() from None
        except httpx.TimeoutException:
            raise Failure(ERROR, f"no answer in {_TIMEOUT_S} s: see the daemon's log") from None
        except httpx.TransportError:
            raise Failure(
                ERROR, "the daemon ended before it answered: see `memfs status`, then try again"
            ) from None
        except UnicodeEncodeError:
            raise Failure(REFUSED, "an argument is not UTF-8: write names in UTF-8") from None
        except ValueError:
            raise Failure(ERROR, f"no memfs daemon answers at {self._config.socket_path}") from None

    def _not_running(self) -> Failure:
        return Failure(
            NOT_RUNNING,
            f"no daemon serves {self._config.workspace}: start it with "
            f"`memfs --workspace {self._config.workspace} serve`",
        )

    def _connect(self) -> "httpx.Client":
        """Return the client of a daemon that does answer, or say why there is none."""
        import httpx

        path = str(self._config.socket_path)
        try:
            check_socket_folder(self._config, make=False)
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except PermissionError:
            raise Failure(
                NOT_RUNNING, f"{path} is another user's: run memfs as the one who runs the daemon"
            ) from None
        except (NotFound, OSError):
            raise self._not_running() from None
        self._http = httpx.Client(
            # no TLS on a unix socket: reading the certificates would take most of a command's time
            transport=httpx.HTTPTransport(uds=path, verify=False),
            base_url="http://memfs/v1/",
            timeout=_TIMEOUT_S,
        )
        return self._http

    # What commands name ----------------------------------------------------------------------

    def store_id(self, store: str) -> str:
        """Return the id of a store given by name or id; of several the one that lives."""
        if ids.has_shape(store, "memstore_"):
            return store
        found = list(
            self.rows("memory_stores", limit=STORE_PAGE, name=store, include_archived=True)
        )
        live = [row for row in found if row["archived_at"] is None] or found
        if not live:
            raise Failure(
                NOT_FOUND, f"no memory store called {store!r}: list them with `memfs store list`"
            )
        if len(live) > 1:
            those = ", ".join(row["id"] for row in live)
            raise Failure(
                CONFLICT, f"{len(live)} memory stores are called {store!r}: use an id ({those})"
            )
        return live[0]["id"]

    def find_note(self, store_id: str, path: str, *, view: str = "basic") -> Json | None:
        """Return the note at a path, or None."""
        found = self.get("memory_stores", store_id, "memories", path=path, view=view)["data"]
        return found[0] if found else None

    def note(self, store_id: str, path: str, *, view: str = "basic") -> Json:
        """Return the note at a path; there must be one."""
        found = self.find_note(store_id, path, view=view)
        if found is None:
            raise no_note(path)
        return found

    def note_id(self, store_id: str, path: str) -> str:
        """Return the id of the note that is, or last was, at a path: archived and deleted too."""
        found = self.find_note(store_id, path)
        if found is not None:
            return found["id"]
        for row in self.rows("memory_stores", store_id, "memories", limit=NOTE_PAGE, archived=True):
            if row["path"] == path:
                return row["id"]
        for operation in ("deleted", None):  # then what was moved away
            for version in self.rows(
                "memory_stores",
                store_id,
                "memory_versions",
                limit=VERSION_PAGE,
                operation=operation,
            ):
                if version["path"] == path:
                    return version["memory_id"]
        raise no_note(path)

    def version(self, store_id: str, version_id: str) -> Json:
        """Return a version with its text."""
        return self.get("memory_stores", store_id, "memory_versions", version_id, view="full")


def no_note(path: str) -> Failure:
    """Return the failure for a path where no note is."""
    return Failure(NOT_FOUND, f"no note at {path}: list the store with `memfs ls -r`")


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
