"""Workers: agents, each with one own store that always lives (SEMANTICS: Workers and tasks)."""

from collections.abc import Iterator

from memfs import ids
from memfs.engine import log, stores
from memfs.errors import Conflict, NotFound
from memfs.store.env import Txn
from memfs.store.records import WORKER
from memfs.types import Caller, ChangeKind, Time, Worker, WorkerId


def create(txn: Txn, caller: Caller, now: Time, name: str) -> Worker:
    """Make a worker and its own store, and return it.

    Raises: Invalid (name), Conflict (the name is taken).
    """
    stores.check_name(name)
    if any(worker.name == name for worker in everything(txn)):
        raise Conflict(f"there is a worker called {name!r}: use it, or choose another name")
    worker_id = WorkerId(ids.new("agt_"))
    store = stores.create(
        txn, caller, now, name, f"The own memory of {name}."[:1024], worker_id=worker_id
    )
    worker = Worker(id=worker_id, name=name, created_at=now, store=store.no)
    WORKER.put(txn, worker.id.encode(), worker)
    log.record(txn, caller, now, ChangeKind.WORKER, store.no, subject=worker.id)
    return worker


def get(txn: Txn, name_or_id: str) -> Worker:
    """Return a worker by id or name.

    Raises: NotFound.
    """
    found = WORKER.get(txn, name_or_id.encode()[:511] or b"-")
    if found is not None:
        return found
    for worker in everything(txn):
        if worker.name == name_or_id:
            return worker
    raise unknown(name_or_id)


def unknown(name_or_id: str) -> NotFound:
    """Return what is said of a worker that is not there, or not for this caller."""
    return NotFound(f"no worker {name_or_id!r}: list them with `memfs worker list`")


def everything(txn: Txn) -> Iterator[Worker]:
    """Yield every worker in the order of making."""
    for _, worker in WORKER.scan(txn):
        yield worker
