"""From an older format to this one (FORMAT: Versions of the format).

A step reads rows as the old format wrote them, so it does not use the records of today.
"""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from memfs.store.env import Txn

_HEADER_BYTES = 9  # of a record: format and checksum
_decode = msgspec.msgpack.Decoder(list[object]).decode


def run(txn: "Txn", found: int) -> None:
    """Bring rows of format *found* to the newest one, in the caller's transaction."""
    if found < 2:
        _list_live_tasks(txn)


def _list_live_tasks(txn: "Txn") -> None:
    """Format 2 has the table `live`. A damaged task is left to `memfs check`."""
    for _, value in txn.scan("task"):
        try:
            task = _decode(value[_HEADER_BYTES:])
        except msgspec.MsgspecError:
            continue
        task_id, worker, *rest = task  # then created_at, attachments, ended_at
        if len(rest) < 3 or rest[2] is None:
            txn.put("live", f"{worker}\0{task_id}".encode(), b"")
