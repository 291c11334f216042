"""Who may do what: every route, every kind of caller (SEMANTICS: Callers and keys)."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx
import pytest

from daemon.http.app import make_app
from memfs.engine import refused, stores
from tests.conftest import USER, text
from tests.served import Served, serving

# person    a person's key                       scoped    a person's, with another scope
# own       the key of the agent whose it is     revoked   a revoked one
# foreign   another agent's                      none      no key, over TCP
# attached  of one whose task attaches it        owner     no key, over the owner's socket
#           read-only                            socket    the agent's own, over that socket
# readonly  a readonly key
COLUMNS = (
    *("person", "own", "foreign", "attached", "readonly", "scoped", "revoked", "none", "owner"),
    "socket",
)

OPEN = "   200    200 200     200      200      200    200     200  200   200 "
LISTS = "  200    200 200     200      200      403    401     401  200   200 "
READS = "  200    200 404     200      200      403    401     401  200   200 "
WRITES = " 200    200 404     403      403      403    401     401  200   200 "
MANAGES = "200    403 404     403      403      403    401     401  200   403 "
MINE = "   200    200 404     404      200      403    401     401  200   200 "
PERSON = " 200    403 403     403      403      403    401     401  200   403 "
SEES = "   200    403 403     403      200      403    401     401  200   403 "
REFUSES = "400    403 403     403      403      403    401     401  400   403 "
ALL_OF = " 200    200 200     200      200      200    401     401  200   200 "  # no scope

STORE = "/v1/memory_stores/{memory_store_id}"
NOTE = f"{STORE}/memories/{{memory_id}}"
VERSION = f"{STORE}/memory_versions/{{memory_version_id}}"
REFUSED = f"{STORE}/refused_texts/{{number}}"
TASK = "/v1/tasks/{task_id}"
SESSION = "/v1/sessions/{session_id}"
RESOURCE = f"{SESSION}/resources/{{memory_store_id}}"

ROUTES: dict[str, tuple[str, dict[str, str] | None]] = {  # what each caller gets, and a body
    "GET /healthz": (OPEN, None),
    "GET /docs": (ALL_OF, None),
    "GET /openapi.json": (ALL_OF, None),
    "GET /v1/status": (SEES, None),
    "GET /metrics": (SEES, None),
    "GET /v1/events": (LISTS, None),
    "POST /v1/memory_stores": (PERSON, {"name": "new"}),
    "GET /v1/memory_stores": (LISTS, None),
    f"GET {STORE}": (READS, None),
    f"POST {STORE}": (MANAGES, {"name": "other"}),
    f"POST {STORE}/archive": (MANAGES, None),
    f"DELETE {STORE}": (MANAGES, None),
    f"GET {STORE}/export": (READS, None),
    f"POST {STORE}/import": (WRITES, {"tar": "/imported"}),
    "POST /v1/memory_stores/import": (PERSON, {"tar": "/imported"}),
    f"GET {STORE}/refused_texts": (READS, None),
    f"GET {REFUSED}": (READS, None),
    f"DELETE {REFUSED}": (MANAGES, None),
    f"POST {REFUSED}/keep": (WRITES, {"path": "/kept"}),
    f"POST {STORE}/memories": (WRITES, {"path": "/new", "content": "x"}),
    f"GET {STORE}/memories": (READS, None),
    f"GET {NOTE}": (READS, None),
    f"POST {NOTE}": (WRITES, {"content": "other"}),
    f"DELETE {NOTE}": (WRITES, None),
    f"POST {NOTE}/archive": (WRITES, {"reason": "old"}),
    f"POST {NOTE}/unarchive": (WRITES, None),
    f"POST {NOTE}/purge": (MANAGES, None),
    f"GET {STORE}/memory_versions": (READS, None),
    f"GET {VERSION}": (READS, None),
    f"POST {VERSION}/redact": (MANAGES, None),
    f"POST {VERSION}/restore": (WRITES, None),
    "POST /v1/tasks": (PERSON, {"worker": "ada"}),
    "GET /v1/tasks": (LISTS, None),
    f"GET {TASK}": (MINE, None),
    f"POST {TASK}/end": (PERSON, None),
    "GET /v1/workers": (LISTS, None),
    "GET /v1/workers/{name_or_id}": (MINE, None),
    "POST /v1/sessions": (PERSON, {"agent": "ada", "environment_id": "env_local"}),
    "GET /v1/sessions": (LISTS, None),
    f"GET {SESSION}": (MINE, None),
    f"POST {SESSION}": (PERSON, {"title": "other"}),
    f"POST {SESSION}/archive": (PERSON, None),
    f"DELETE {SESSION}": (PERSON, None),
    f"GET {SESSION}/resources": (MINE, None),
    f"GET {RESOURCE}": (MINE, None),
    f"POST {SESSION}/resources": (REFUSES, {}),
    f"POST {RESOURCE}": (REFUSES, {}),
    f"DELETE {RESOURCE}": (REFUSES, None),
    "POST /v1/keys": (PERSON, {"power": "readonly"}),
    "GET /v1/keys": (SEES, None),
    "POST /v1/keys/{key_id}/revoke": (PERSON, None),
    "GET /v1/secrets": (SEES, None),
    "POST /v1/secrets": (PERSON, {"name": "{name} too", "secret": "horse battery {name}"}),
    "DELETE /v1/secrets/{name}": (PERSON, None),
}

AGENTS = {"own": "ada", "foreign": "bob", "attached": "cat"}  # by column


class World:
    """One person's daemon, three agents, and a store that two of them reach."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.url = "http://{}:{}".format(*served.addresses[0])
        self.serial = itertools.count()
        self.secrets: dict[str, str] = {}
        for agent in AGENTS.values():
            self.call("POST", "tasks", {"worker": agent})
        for column, body in {
            "person": {"power": "person"},
            "readonly": {"power": "readonly"},
            "scoped": {"power": "person", "scopes": ["agents"]},
            "revoked": {"power": "person"},
            **{column: {"power": "agent", "worker": who} for column, who in AGENTS.items()},
        }.items():
            made = self.call("POST", "keys", body)
            self.secrets[column] = made["secret"]
            if column == "revoked":
                self.call("POST", f"keys/{made['id']}/revoke")
        self.secrets["socket"] = self.secrets["own"]
        exported = served.store()
        exported.write("/imported")
        self.tar = served.http.get(f"/v1/memory_stores/{exported.id}/export").content

    def call(self, method: str, route: str, body: Any = None) -> Any:
        """Return what the owner gets over the socket."""
        return self.served.call(method, route, body)

    def things(self) -> dict[str, str]:
        """Return the ids of new things that are ada's, and cat's to read."""
        n = next(self.serial)
        store = self.served.store(f"things {n}")
        tasks = {
            who: self.call(
                "POST",
                "tasks",
                {"worker": who, "resources": [self.resource(store.id, access)]},
            )["id"]
            for who, access in (("ada", "read_write"), ("cat", "read_only"))
        }
        note = store.write("/note", f"one {n}")
        store.call("POST", f"/memories/{note['id']}", {"content": "two"})
        return {
            "memory_store_id": store.id,
            "memory_id": note["id"],
            "memory_version_id": note["memory_version_id"],
            "task_id": tasks["ada"],
            "session_id": tasks["ada"],
            "name_or_id": "ada",
            "key_id": self.call("POST", "keys", {"power": "readonly"})["id"],
            "name": self.secret(f"mail {n}"),
            "number": str(self.refuse(store.id)),
        }

    def resource(self, store_id: str, access: str) -> dict[str, str]:
        return {"type": "memory_store", "memory_store_id": store_id, "access": access}

    def refuse(self, store_id: str) -> int:
        """Return the number of a refused text."""
        no = self.served.service.view(stores.get, store_id).no
        return self.served.commit(refused.keep, USER, no, "/x", text("x"), "changed", None).n

    def secret(self, name: str) -> str:
        self.call("POST", "secrets", {"name": name, "secret": f"correct horse {name}"})
        return name

    def body(self, body: dict[str, str] | None) -> bytes | None:
        if body is None:
            return None
        return self.tar if "tar" in body else json.dumps(body).encode()

    def ask(self, column: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Return what a caller gets; of a stream only the head."""
        if column in ("owner", "socket"):
            transport = httpx.HTTPTransport(uds=str(self.served.config.socket_path), verify=False)
            url = "http://memfs"
        else:  # an address of its own, so that no caller pays for another's wrong keys
            n = next(self.serial)
            address = f"127.0.{n // 250 + 1}.{n % 250 + 1}"
            transport, url = httpx.HTTPTransport(local_address=address, verify=False), self.url
        secret = self.secrets.get(column)
        headers = {} if secret is None else {"x-api-key": secret}
        with (
            httpx.Client(transport=transport, base_url=url, timeout=20) as http,
            http.stream(method, path, headers=headers, content=self.body(body)) as answer,
        ):
            if not answer.headers["content-type"].startswith("text/event-stream"):
                answer.read()
            return answer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("ws"), listen=("127.0.0.1", 0)) as served:
        yield World(served)


class Row(NamedTuple):
    method: str
    path: str
    expected: dict[str, int]
    body: dict[str, str] | None

    def sent(self, things: dict[str, str]) -> dict[str, str] | None:
        body = self.body
        return None if body is None else {k: v.format_map(things) for k, v in body.items()}


def rows() -> list[Row]:
    found: list[Row] = []
    for route, (statuses, body) in ROUTES.items():
        method, path = route.split(" ")
        expected = dict(zip(COLUMNS, map(int, statuses.split()), strict=True))
        found.append(Row(method, path, expected, body))
    return found


def test_every_route_is_in_the_table() -> None:
    found: set[str] = set()
    for router in make_app(mock.MagicMock()).routes:  # one for each that was included
        for route in getattr(router, "original_router", mock.Mock(routes=[router])).routes:
            found |= {f"{method} {route.path_format}" for method in route.methods - {"HEAD"}}
    assert found == set(ROUTES)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.method} {row.path}")
def test_callers_get(world: World, row: Row) -> None:
    things = world.things()
    got: dict[str, int] = {}
    with world.served.other_clients():
        for column in sorted(COLUMNS, key=lambda each: row.expected[each] == 200):
            answer = world.ask(column, row.method, row.path.format_map(things), row.sent(things))
            got[column] = answer.status_code
            if answer.status_code == 403:
                error = answer.json()["error"]
                code = {"scoped": "scope_denied", "readonly": "read_only_key"}.get(column)
                assert (error["type"], error.get("code")) == ("permission_error", code)
            if answer.status_code == 200 and row.method != "GET":  # it is no more what it was
                things = world.things()
    assert got == row.expected


@pytest.mark.parametrize(
    "row",
    [row for row in rows() if row.expected["foreign"] == 404],
    ids=lambda row: f"{row.method} {row.path}",
)
def test_what_is_foreign_is_as_if_it_never_existed(world: World, row: Row) -> None:
    there = world.things()
    nowhere = {
        name: re.sub(r"_[0-9A-Z]{26}$", "_01M8SD8ZZZZZZZZZZZZZZZZZZZ"[:27], found)
        for name, found in there.items()
    }
    nowhere["name_or_id"] = "nobody"
    with world.served.other_clients():
        answers = [
            world.ask("foreign", row.method, row.path.format_map(ids), row.body)
            for ids in (there, nowhere)
        ]
    bodies: list[str] = []
    for answer, ids in zip(answers, (there, nowhere), strict=True):
        body = answer.text.replace(answer.json()["request_id"], "REQUEST")
        for name, found in ids.items():
            body = body.replace(f"'{found}'", name)
        bodies.append(body)
        del answer.headers["request-id"]
        answer.headers.pop("date", None)
        answer.headers.pop("content-length", None)
    assert [answer.status_code for answer in answers] == [404, 404]
    assert bodies[0] == bodies[1]
    assert answers[0].headers == answers[1].headers


def test_listings_and_events_show_an_agent_nothing_foreign(world: World) -> None:
    since = world.call("GET", "status")["seq"]
    theirs = world.things()
    worker = world.call("GET", "workers/ada")["id"]
    hidden = {theirs[name] for name in theirs if name not in ("name_or_id", "name", "number")} | {
        worker
    }
    queries = ("", f"?memory_store_id={theirs['memory_store_id']}", f"?agent_id={worker}")
    with world.served.other_clients():
        for column, row, query in itertools.product(("own", "foreign"), rows(), queries):
            if row.method != "GET" or "{" in row.path or row.expected["foreign"] != 200:
                continue
            if row.path == "/v1/events":
                continue
            answer = world.ask(column, "GET", f"{row.path}{query}")
            shown = {each for each in hidden if each in answer.text}
            if column == "foreign":
                assert not shown, row.path
            elif query == "" and row.path in ("/v1/memory_stores", "/v1/workers"):
                assert shown, "the test sees nothing"
        stream = events(world, "foreign", since)
        assert not [each for each in hidden if each in stream]
        assert theirs["memory_id"] in events(world, "own", since)


def events(world: World, column: str, since: int) -> str:
    """Return the events after *since*, up to a note that the caller makes itself."""
    worker = world.call("GET", f"workers/{AGENTS[column]}")
    route = f"memory_stores/{worker['memory_store_id']}/memories"
    note = world.call("POST", route, {"path": f"/end {next(world.serial)}", "content": ""})
    headers = {"x-api-key": world.secrets[column]}
    seen = ""
    with (
        httpx.Client(base_url=world.url, timeout=20, verify=False) as http,
        http.stream("GET", "/v1/events", params={"after": since}, headers=headers) as answer,
    ):
        for part in answer.iter_text():
            seen += part
            if note["id"] in seen:
                return seen
    raise AssertionError(f"the stream ended: {seen}")


def test_an_agent_loses_a_store_when_its_task_ends(world: World) -> None:
    things = world.things()
    store = f"/v1/memory_stores/{things['memory_store_id']}"
    with world.served.other_clients():
        assert world.ask("own", "GET", store).status_code == 200
        world.call("POST", f"tasks/{things['task_id']}/end")
        assert world.ask("own", "GET", store).status_code == 404
        assert things["memory_store_id"] not in world.ask("own", "GET", "/v1/memory_stores").text
        for column in ("attached", "readonly", "person"):
            assert world.ask(column, "GET", store).status_code == 200
        # its run stays its own
        assert world.ask("own", "GET", f"/v1/tasks/{things['task_id']}").status_code == 200


def test_of_two_attachments_the_one_that_may_write_counts(world: World) -> None:
    store = world.served.store()
    path, body = f"/v1/memory_stores/{store.id}/memories", {"path": "/a", "content": ""}
    with world.served.other_clients():
        for access, status in (("read_only", 403), ("read_write", 200), ("read_only", 409)):
            body_of_task = {"worker": "cat", "resources": [world.resource(store.id, access)]}
            world.call("POST", "tasks", body_of_task)
            assert world.ask("attached", "POST", path, body).status_code == status


def test_a_revoked_key_is_unknown_at_once_at_both_doors(world: World) -> None:
    made = world.call("POST", "keys", {"power": "person"})
    world.secrets["leaver"] = made["secret"]
    headers = {"x-api-key": made["secret"]}
    with world.served.other_clients():
        assert world.ask("leaver", "GET", "/v1/keys").status_code == 200
        assert world.served.http.get("/v1/keys", headers=headers).status_code == 200
        world.call("POST", f"keys/{made['id']}/revoke")
        assert world.ask("leaver", "GET", "/v1/keys").status_code == 401
        assert world.served.http.get("/v1/keys", headers=headers).status_code == 401


def test_what_a_key_changes_names_the_key_and_what_the_owner_does_the_user(world: World) -> None:
    things = world.things()
    store = f"/v1/memory_stores/{things['memory_store_id']}"
    with world.served.other_clients():
        for column in ("own", "person", "owner"):
            body = {"path": f"/by {column}", "content": ""}
            made = world.ask(column, "POST", f"{store}/memories", body).json()
            where = f"{store}/memory_versions/{made['memory_version_id']}"
            by = world.ask("owner", "GET", where).json()["created_by"]
            assert by["type"] == ("user_actor" if column == "owner" else "api_actor")
            assert by.get("api_key_id", "apikey_").startswith("apikey_")


def test_scopes_open_their_routes_and_no_others(tmp_path: Path) -> None:
    routes = {
        "stores": ("/v1/memory_stores",),
        "tasks": ("/v1/tasks", "/v1/sessions", "/v1/workers"),
        "events": ("/v1/events",),
    }
    with serving(tmp_path, listen=("127.0.0.1", 0)) as served:
        world = World(served)
        with served.other_clients():
            for scope in (*routes, "agents"):
                body = {"power": "person", "scopes": [scope]}
                world.secrets[scope] = world.call("POST", "keys", body)["secret"]
                for other, paths in (*routes.items(), ("admin", ("/v1/keys", "/v1/status"))):
                    for path in paths:
                        status = world.ask(scope, "GET", path).status_code
                        assert status == (200 if other == scope else 403), (scope, path)
