"""A page with texts ends before it is large, and the next one goes on behind it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.served import AStore, Served
from tests.test_http import refuse

pytest_plugins = ("tests.served",)

MOST = 2**20
LARGE = "\x01" * 100_000  # 600,000 bytes in JSON
ROW = 610_000  # a row with it


@pytest.fixture(scope="module")
def store(served: Served) -> AStore:
    store = served.store()
    for n in range(5):
        store.write(f"/large/{n}", f"{n}{LARGE}")
        store.write(f"/small/{n}", f"{n}")
        away = store.write(f"/away/{n}", f"a{n}{LARGE}")
        store.call("POST", f"/memories/{away['id']}/archive", {"reason": "x"})
    refuse(served, store, *(f"r{n}{LARGE}" for n in range(5)))
    return store


def pages(store: AStore, route: str, **query: Any) -> Iterator[list[Any]]:
    cursor: dict[str, str] = {}
    while True:
        answer = store.call("GET", route, **query, **cursor)
        yield answer["data"]
        if answer["next_page"] is None:
            return
        cursor = {"page": answer["next_page"]}


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("/memories", {}),
        ("/memories", {"depth": 1, "path_prefix": "/large/"}),
        ("/memories", {"archived": True}),
        ("/memory_versions", {}),
        ("/memory_versions", {"operation": "created"}),
        ("/refused_texts", {}),
    ],
)
def test_a_page_with_texts_ends_early_and_the_next_goes_on(
    store: AStore, route: str, query: dict[str, Any]
) -> None:
    wanted = [row for page in pages(store, route, limit=100, **query) for row in page]
    for limit in (20, 1):
        found: list[Any] = []
        for page in pages(store, route, view="full", limit=limit, **query):
            sizes = [6 * row["content_size_bytes"] for row in page]
            assert 1 <= len(page) <= limit
            assert sum(sizes[:-1]) < MOST
            found += page
        assert all(len(row["content"]) == row["content_size_bytes"] for row in found)
        assert [row | {"content": None} for row in found] == wanted


def test_a_page_with_texts_is_bounded_in_bytes_of_json(served: Served, store: AStore) -> None:
    for route in ("memories", "memory_versions", "refused_texts"):
        url = f"/v1/memory_stores/{store.id}/{route}"
        answer = served.http.get(url, params={"view": "full", "limit": 20})
        assert 2 <= len(answer.json()["data"]) <= 3
        assert len(answer.content) < MOST + ROW


def test_small_texts_and_rows_without_text_fill_a_page(store: AStore) -> None:
    small = store.call("GET", "/memories", view="full", limit=20, path_prefix="/small/")
    assert (len(small["data"]), small["next_page"]) == (5, None)
    assert len(store.call("GET", "/memories", limit=20)["data"]) == 10
    assert [
        row["path"] for row in store.call("GET", "/memories", view="full", depth=1)["data"]
    ] == [
        "/large/",
        "/small/",
    ]
