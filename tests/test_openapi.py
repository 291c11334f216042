"""What /openapi.json says is true: schemathesis asks every route, with ids that are there, too."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from daemon.http.app import make_app
from memfs.engine import refused
from memfs.engine import stores as engine_stores
from tests.conftest import USER, text
from tests.served import Served, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

CONFIG = {
    "generation": {"with-security-parameters": False},  # the key is in the session
    "checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws"), listen=("127.0.0.1", 0)) as one:
        yield one


def document() -> dict[str, Any]:
    """Return the document as the application gives it, without one running."""
    return make_app(mock.MagicMock()).openapi()


ENDLESS = {"/v1/events"}  # tests/test_events.py reads it
OPERATIONS = [
    (method, path)
    for path, route in document()["paths"].items()
    for method in route
    if path not in ENDLESS
]


@schemathesis.serializer("application/x-tar")
def as_tar(_: object, value: Any) -> bytes:
    """Send what was made as it is: a tar it is hardly ever, an answer there must be."""
    value = getattr(value, "data", value)
    return value if isinstance(value, bytes) else json.dumps(value).encode()


class There:
    """Things that exist, some of each kind: what path parameters may be."""

    def __init__(self, served: Served) -> None:
        self.ids: dict[str, list[str]] = {}
        stores = [served.store(name) for name in ("one", "two", "archived")]
        for store in stores:
            notes = [store.write(f"/{n}", f"text {n}") for n in range(3)]
            store.call("POST", f"/memories/{notes[0]['id']}", {"content": "more"})
            store.call("POST", f"/memories/{notes[1]['id']}/archive", {"reason": "old"})
            self._add("memory_id", *(note["id"] for note in notes))
            self._add("memory_version_id", *(row["id"] for row in store.versions()))
            no = served.service.view(engine_stores.get, store.id).no
            kept = served.commit(refused.keep, USER, no, "/x", text("x"), "changed", None)
            self._add("number", str(kept.n))
        stores[2].call("POST", "/archive")
        self._add("memory_store_id", *(store.id for store in stores))
        for _ in range(2):
            resource = {"type": "memory_store", "memory_store_id": stores[0].id}
            made = served.call("POST", "tasks", {"worker": "ada", "resources": [resource]})
            self._add("task_id", made["id"])
            self._add("session_id", made["id"])
            self._add("resource_id", stores[0].id)
            self._add("name_or_id", made["worker_id"], "ada")
            self._add("key_id", served.call("POST", "keys", {"power": "readonly"})["id"])
        with suppress(AssertionError):  # there from before
            served.call("POST", "secrets", {"name": "mail", "secret": "correct horse battery"})
        self._add("name", "mail")

    def _add(self, kind: str, *ids: str) -> None:
        self.ids.setdefault(kind, []).extend(ids)

    def strategy(self, names: list[str]) -> st.SearchStrategy[dict[str, str]]:
        return st.fixed_dictionaries({name: st.sampled_from(self.ids[name]) for name in names})


def ask(served: Served, method: str, path: str, examples: int) -> None:
    key = served.call("POST", "keys", {"power": "person"})["secret"]
    schema = schemathesis.openapi.from_dict(
        served.http.get("/openapi.json").json(),
        config=SchemathesisConfig.from_dict(CONFIG),
    )
    operation = schema[path][method]
    there = There(served)
    base_url = "http://{}:{}".format(*served.addresses[0])
    names = [each.name for each in operation.path_parameters]

    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(data=st.data())
    def one(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if names and data.draw(st.integers(0, 3)):
            case.path_parameters = data.draw(there.strategy(names))
        case.call_and_validate(base_url, session, checks=CHECKS)

    with served.other_clients(), requests.Session() as session:
        session.headers["x-api-key"] = key
        one()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_as_the_document_says(served: Served, method: str, path: str) -> None:
    ask(served, method, path, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_as_the_document_says_at_length(
    served: Served, method: str, path: str
) -> None:
    ask(served, method, path, 300)
