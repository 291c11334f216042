"""Rows of the change log, as the rules write them: in the change's own transaction."""

from memfs.store import change
from memfs.store.env import Txn
from memfs.types import (
    NO_NODE,
    Caller,
    Change,
    ChangeKind,
    Node,
    NodeInfo,
    Operation,
    Seq,
    StoreNo,
    Time,
)

NO_ENTRY = (NO_NODE, "")


def record(
    txn: Txn,
    caller: Caller,
    now: Time,
    kind: ChangeKind,
    store: StoreNo,
    *,
    subject: str = "",
    node: Node = NO_NODE,
    operation: Operation | None = None,
    entry: tuple[Node, str] = NO_ENTRY,
    old: tuple[Node, str] = NO_ENTRY,
) -> Seq:
    """Append a row and return its seq. entry, old: see types.Change, (parent, name)."""
    seq = change.next_seq(txn)
    change.record(
        txn,
        Change(
            seq=seq,
            at=now,
            kind=kind,
            store=store,
            actor=caller.actor,
            attachment=caller.attachment,
            node=node,
            operation=operation,
            parent=entry[0],
            name=entry[1],
            old_parent=old[0],
            old_name=old[1],
            subject=subject,
        ),
    )
    return seq


def record_node(
    txn: Txn,
    caller: Caller,
    now: Time,
    kind: ChangeKind,
    info: NodeInfo,
    *,
    operation: Operation | None = None,
    old: tuple[Node, str] = NO_ENTRY,
    named: bool = True,
) -> Seq:
    """Append a row about a folder or note at its entry and return its seq.

    named False: without the entry, where followers can do without; redaction need not find it then.
    """
    return record(
        txn,
        caller,
        now,
        kind,
        info.store,
        subject="" if info.note is None else info.note.id,
        node=info.node,
        operation=operation,
        entry=(info.parent, info.name) if named and info.parent != 0 else NO_ENTRY,
        old=old,
    )
