"""What a caller may see and do (SEMANTICS: Callers and keys). What it may not see is not there.

Doors ask here before they ask a rule; the rules themselves serve everybody.
"""

from memfs.engine import stores, tasks, workers
from memfs.errors import Forbidden, ReadOnly, ReadOnlyKey, ScopeDenied
from memfs.store.env import Txn
from memfs.types import Access, Caller, Power, Store, StoreNo, Task, Worker


def check_scope(caller: Caller, scope: str) -> None:
    """Check that the caller's key has a scope.

    Raises: ScopeDenied.
    """
    if caller.scopes is not None and scope not in caller.scopes:
        raise ScopeDenied(f"this key lacks the scope {scope!r}: use one that has it, or no scopes")


def check_writes(caller: Caller) -> None:
    """Check that the caller may change anything at all.

    Raises: ReadOnlyKey.
    """
    if caller.power is Power.READONLY:
        raise ReadOnlyKey("this key only reads: use a person's or an agent's key")


def check_person(caller: Caller) -> None:
    """Check that the caller may do what only the person who owns the workspace does.

    Raises: ReadOnlyKey, Forbidden.
    """
    check_writes(caller)
    check_not_agent(caller)


def check_not_agent(caller: Caller) -> None:
    """Check that the caller may see the whole workspace.

    Raises: Forbidden.
    """
    if caller.power is Power.AGENT:
        raise Forbidden("an agent's key cannot do this: use a person's key")


def reach(txn: Txn, caller: Caller) -> dict[StoreNo, Access] | None:
    """Return the stores an agent reaches, None for callers who reach all of them.

    The agent's own, and those of its live tasks; of two attachments the one that may write counts.
    """
    if caller.power is not Power.AGENT:
        return None
    found: dict[StoreNo, Access] = {}
    if caller.worker is not None:
        found[workers.get(txn, caller.worker).store] = Access.READ_WRITE
    for task in tasks.live(txn, caller.worker):
        for one in task.attachments:
            found[one.store] = min(one.access, found.get(one.store, one.access))
    return found


def store(txn: Txn, caller: Caller, store_id: str) -> Store:
    """Return a store that the caller may read.

    Raises: NotFound.
    """
    return _reached(txn, caller, store_id)[0]


def store_to_write(txn: Txn, caller: Caller, store_id: str) -> Store:
    """Return a store whose notes the caller may change.

    Raises: ReadOnlyKey, NotFound, ReadOnly (the agent's tasks attach it read-only).
    """
    check_writes(caller)
    found, access = _reached(txn, caller, store_id)
    if access is Access.READ_ONLY:
        raise ReadOnly("this memory store is attached read-only: no text of it can be changed")
    return found


def store_to_manage(txn: Txn, caller: Caller, store_id: str) -> Store:
    """Return a store that the caller may rename, archive, delete, redact and purge.

    Raises: ReadOnlyKey, NotFound, Forbidden.
    """
    check_writes(caller)
    found, _ = _reached(txn, caller, store_id)
    check_not_agent(caller)
    return found


def task(txn: Txn, caller: Caller, task_id: str) -> Task:
    """Return a task that the caller may see.

    Raises: NotFound.
    """
    found = tasks.get(txn, task_id)
    if not knows(caller, found.worker_id):
        raise tasks.unknown(task_id)
    return found


def worker(txn: Txn, caller: Caller, name_or_id: str) -> Worker:
    """Return a worker that the caller may know of.

    Raises: NotFound.
    """
    found = workers.get(txn, name_or_id)
    if not knows(caller, found.id):
        raise workers.unknown(name_or_id)
    return found


def workers_seen(txn: Txn, caller: Caller) -> list[Worker]:
    """Return the workers that the caller may know of, in the order of making."""
    return [one for one in workers.everything(txn) if knows(caller, one.id)]


def knows(caller: Caller, worker_id: str) -> bool:
    """Whether the caller may know of a worker and its tasks: an agent of itself alone."""
    return caller.power is not Power.AGENT or worker_id == caller.worker


def _reached(txn: Txn, caller: Caller, store_id: str) -> tuple[Store, Access]:
    found = stores.get(txn, store_id)
    reached = reach(txn, caller)
    if reached is None:
        return found, Access.READ_WRITE
    if found.no not in reached:
        raise stores.unknown(store_id)
    return found, reached[found.no]
