"""The change log: one durable row for each change, in the change's own transaction."""

from memfs.store import keys
from memfs.store.env import Txn
from memfs.store.records import CHANGE
from memfs.types import Change, Seq


def next_seq(txn: Txn) -> Seq:
    """Return the number of the row that the caller is about to write, before any other."""
    return Seq(last_seq(txn) + 1)


def last_seq(txn: Txn) -> Seq:
    """Return the number of the newest row, 0 if there is none. Rows are never removed."""
    newest = next(txn.scan("change", reverse=True), None)
    return Seq(0) if newest is None else Seq(keys.u64(newest[0]))


def record(txn: Txn, change: Change) -> None:
    """Append *change*, whose seq came from next_seq."""
    CHANGE.put(txn, keys.pack_u64(change.seq), change)


def read(txn: Txn, after: Seq, limit: int) -> list[Change]:
    """Return up to *limit* rows after *after*, oldest first."""
    rows: list[Change] = []
    for _, row in CHANGE.scan(txn, start=keys.pack_u64(after + 1)):
        if len(rows) == limit:
            break
        rows.append(row)
    return rows


def newest(txn: Txn, limit: int) -> list[Change]:
    """Return up to *limit* rows, newest first."""
    rows: list[Change] = []
    for _, row in CHANGE.scan(txn, reverse=True):
        if len(rows) == limit:
            break
        rows.append(row)
    return rows
