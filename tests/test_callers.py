"""Where a key may stand in a request, at both doors (SEMANTICS: Callers and keys)."""

from collections.abc import Iterator

import httpx
import pytest

from tests.served import Served, serving

Headers = list[tuple[str, str]]

OURS: dict[str, Headers] = {
    "bearer": [("authorization", "Bearer KEY")],
    "x-api-key": [("x-api-key", "KEY")],
    "bare": [("authorization", "KEY")],
    "another's bearer beside it": [("authorization", "Bearer sk-other"), ("x-api-key", "KEY")],
    "basic beside it": [("authorization", "Basic bWVtZnNfeDp5"), ("x-api-key", "KEY")],
    "another's x-api-key beside it": [("x-api-key", "sk-other"), ("authorization", "bearer  KEY")],
    "behind one of its kind": [("x-api-key", "sk-other"), ("x-api-key", "KEY")],
    "twice": [("authorization", "Bearer KEY"), ("x-api-key", "KEY")],
}
OTHERS: dict[str, Headers] = {
    "none": [],
    "another's": [("authorization", "Bearer sk-other"), ("x-api-key", "sk-other")],
    "basic": [("authorization", "Basic bWVtZnNfeDp5")],
}
WRONG: dict[str, Headers] = {
    "two": [("authorization", "Bearer KEY"), ("x-api-key", "SECOND")],
    "two in one header": [("x-api-key", "KEY"), ("x-api-key", "SECOND")],
    "a right and a wrong one": [("authorization", "Bearer memfs_wrong"), ("x-api-key", "KEY")],
    "a wrong one": [("authorization", "memfs_wrong")],
}


class Doors:
    """A reading key that is known by what it may not do."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.keys = {
            name: served.call("POST", "keys", {"power": "readonly"})["secret"]
            for name in ("KEY", "SECOND")
        }
        self.addresses = iter(range(1, 250))

    def ask(self, door: str, headers: Headers) -> tuple[int, str | None]:
        """Return status and code of an attempt to write."""
        sent = [
            (name, " ".join(self.keys.get(word, word) for word in value.split(" ")))
            for name, value in headers
        ]
        if door == "socket":
            transport = httpx.HTTPTransport(uds=str(self.served.config.socket_path))
            url = "http://memfs"
        else:  # an address of its own, so that no case pays for another's wrong keys
            address = f"127.0.0.{next(self.addresses)}"
            transport = httpx.HTTPTransport(local_address=address)
            url = "http://{}:{}".format(*self.served.addresses[0])
        with (
            self.served.other_clients(),
            httpx.Client(transport=transport, base_url=url, timeout=20) as http,
        ):
            answer = http.post("/v1/memory_stores", headers=sent, json={"name": "s"})
            return answer.status_code, answer.json().get("error", {}).get("code")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with serving(tmp_path_factory.mktemp("ws"), listen=("127.0.0.1", 0)) as served:
        yield Doors(served)


@pytest.mark.parametrize("door", ["socket", "tcp"])
@pytest.mark.parametrize("case", OURS)
def test_a_key_counts_wherever_it_stands(doors: Doors, door: str, case: str) -> None:
    assert doors.ask(door, OURS[case]) == (403, "read_only_key")


@pytest.mark.parametrize("door", ["socket", "tcp"])
@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_key_of_ours_counts_nowhere(doors: Doors, door: str, case: str) -> None:
    assert doors.ask(door, OTHERS[case])[0] == (200 if door == "socket" else 401)


@pytest.mark.parametrize("door", ["socket", "tcp"])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_key_or_a_second_one_is_refused(doors: Doors, door: str, case: str) -> None:
    assert doors.ask(door, WRONG[case])[0] == 401
