"""Pages of listings as JSON; one with texts ends before it is large (SEMANTICS: Listings)."""

from collections.abc import Callable
from typing import Any, TypeVar

from daemon.http import wire
from memfs.types import Page

T = TypeVar("T")

_FULL_ROWS = 20
_FULL_BYTES = 2**20  # of rows: a client that takes none of its answer costs a few of these


def encode(
    kind: type[wire.Page[Any]],
    rows: Callable[[int], Page[T]],
    shape: Callable[[T], Any],
    seal: Callable[[str | None], str | None],
    limit: int,
    view: wire.View,
) -> bytes:
    """Return a page; one with texts ends behind the row that makes it large.

    rows: reads up to so many rows, the same ones each time. seal: makes the next page's cursor.
    """
    found = rows(min(limit, _FULL_ROWS) if view == "full" else limit)
    data: list[Any] = []
    size = 0
    for item in found.items:
        data.append(shape(item))
        if view == "full":
            # the row's JSON, since escaping makes six bytes of one; the whole page is encoded
            # below because row by row takes half as long again where there are no texts
            size += len(wire.encode(data[-1]))
            if size >= _FULL_BYTES:
                break
    if len(data) < len(found.items):
        found = rows(len(data))  # only the listing knows where the next page starts
    return wire.encode(kind(data=data, next_page=seal(found.after)))
