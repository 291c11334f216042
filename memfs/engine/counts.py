"""How much there is of everything, for those who watch the daemon; no names and no ids."""

from typing import NamedTuple

from memfs.engine import stores
from memfs.store.env import Txn


class Counts(NamedTuple):
    """refused: texts that mounts could not commit, of the stores that exist."""

    live_stores: int
    archived_stores: int
    notes: int
    refused: int
    live_tasks: int
    ended_tasks: int
    workers: int


def read(txn: Txn) -> Counts:
    """Count; reads the record of every store."""
    found = list(stores.everything(txn))
    archived = sum(store.archived_at is not None for store in found)
    live_tasks = txn.count("live")
    return Counts(
        live_stores=len(found) - archived,
        archived_stores=archived,
        notes=sum(store.notes for store in found),
        refused=sum(store.refused for store in found),
        live_tasks=live_tasks,
        ended_tasks=txn.count("task") - live_tasks,
        workers=txn.count("worker"),
    )
