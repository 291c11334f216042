"""/docs and /openapi.json: whole, offline, and nobody's without a key."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest

from daemon.http.docs import render
from tests.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ws"), listen=("127.0.0.1", 0)) as one:
        yield one


class Page(HTMLParser):
    """Collects tags, ids and links, and that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "style")
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_lists_every_route_and_shape(served: Served) -> None:
    page = Page(served.http.get("/docs").text)
    document = served.http.get("/openapi.json").json()
    for path, route in document["paths"].items():
        for method, operation in route.items():
            assert f"{method.upper()} {path}" in page.text
            for parameter in operation.get("parameters", ()):
                assert parameter["name"] in page.text
    for name in document["components"]["schemas"]:
        assert f"shape-{name}" in page.ids
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link == "/openapi.json" or link.removeprefix("#") in page.ids


def test_the_page_needs_and_may_load_nothing_from_elsewhere(served: Served) -> None:
    answer = served.http.get("/docs")
    page = Page(answer.text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form", "object", "base"})
    assert not re.search(r"https?://|//[a-z]|@import|url\(", answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_the_document_says_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>\"'&"
    document = {
        "info": {"version": evil, "description": evil},
        "paths": {
            f"/{evil}": {
                "get": {
                    "tags": [evil],
                    "operationId": evil,
                    "description": evil,
                    "parameters": [
                        {
                            "name": evil,
                            "in": evil,
                            "description": evil,
                            "schema": {"enum": [evil], "default": evil, "format": evil},
                        }
                    ],
                    "requestBody": {"content": {evil: {"schema": {"$ref": f"#/{evil}"}}}},
                    "responses": {
                        evil: {"description": evil},
                        "200": {"content": {evil: {"schema": {"const": evil}}}},
                    },
                }
            }
        },
        "components": {
            "schemas": {evil: {"description": evil, "properties": {evil: {"type": evil}}}}
        },
    }
    page = Page("\n".join(render(json.loads(json.dumps(document)))))
    assert "script" not in page.tags


def test_pages_of_others_are_gone_and_ours_need_a_key_over_tcp(served: Served) -> None:
    for route in ("/redoc", "/docs/oauth2-redirect"):
        assert served.http.get(route).status_code == 404
    host, port = served.addresses[0]
    with served.other_clients(), httpx.Client(base_url=f"http://{host}:{port}") as http:
        for route in ("/docs", "/openapi.json", "/metrics", "/v1/events", "/nowhere"):
            assert http.get(route).status_code == 401
        assert http.get("/healthz").status_code == 200
        key = served.call("POST", "keys", {"power": "readonly"})["secret"]
        for route in ("/docs", "/openapi.json"):
            answer = http.get(route, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200
