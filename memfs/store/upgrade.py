"""From an older format to this one (FORMAT: Versions of the format).

A step reads rows as the old format wrote them, so it does not use the records of today.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

if TYPE_CHECKING:
    from memfs.store.env import Txn

_HEADER_BYTES = 9  # of a record: format and checksum
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def run(txn: "Txn", found: int) -> None:
    """Bring rows of format *found* to the newest one, in the caller's transaction."""
    if found < 2:
        _list_live_tasks(txn)
    if found < 3:
        _list_made_tasks(txn)


def _list_live_tasks(txn: "Txn") -> None:
    """Format 2 has the table `live`."""
    for task_id, worker, *rest in _tasks(txn):  # then created_at, attachments, ended_at
        if len(rest) < 3 or rest[2] is None:
            txn.put("live", f"{worker}\0{task_id}".encode(), b"")


def _list_made_tasks(txn: "Txn") -> None:
    """Format 3 has the table `made`."""
    for task_id, _, _, attachments, *_ in _tasks(txn):
        if attachments:
            txn.put("made", attachments[0][0].to_bytes(4), task_id.encode())


def _tasks(txn: "Txn") -> Iterator[list[Any]]:
    """Yield tasks as they are written; damaged ones are left to `memfs check`."""
    for _, value in txn.scan("task"):
        body = value[_HEADER_BYTES:]
        if value[1:_HEADER_BYTES] == xxhash.xxh3_64_digest(body):
            yield _decode(body)
