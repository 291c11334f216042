"""Tasks: runs of a worker with attachments frozen when made (SEMANTICS: Workers and tasks).

Sessions are tasks, too; only they have a title, metadata and an environment.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from memfs import ids, limits
from memfs.engine import log, stores, workers
from memfs.engine.path import short_name
from memfs.errors import Conflict, Invalid, NotFound
from memfs.store import keys
from memfs.store.env import Txn
from memfs.store.records import TASK
from memfs.types import (
    Access,
    Actor,
    Attachment,
    AttachmentNo,
    Caller,
    ChangeKind,
    Page,
    Record,
    Store,
    Task,
    TaskId,
    Time,
    WorkerId,
    evolve,
)

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Wanted(Record, frozen=True):
    """A store that a new task should see."""

    store_id: str
    access: Access = Access.READ_WRITE
    instructions: str = ""
    guard: bool = True


def create(
    txn: Txn,
    caller: Caller,
    now: Time,
    worker: str,
    wanted: Sequence[Wanted] = (),
    task_id: str | None = None,
    uid: int | None = None,
    gid: int | None = None,
    environment_id: str | None = None,
    title: str = "",
    metadata: Mapping[str, str] | None = None,
) -> Task:
    """Make a task of a worker (made too if the name is new) and return it.

    Its stores never change afterwards: the worker's own, read-write, then the wanted ones.
    Raises: Invalid, NotFound, Conflict (the id is taken), StoreArchived.
    """
    if task_id is not None and (not _ID.fullmatch(task_id) or set(task_id) <= {"."}):
        raise Invalid("a task id has 1 to 64 of A-Z a-z 0-9 . _ - and is not . or ..")
    if task_id is not None and TASK.get(txn, task_id.encode()) is not None:
        raise Conflict(f"there is or was a task {task_id!r}: choose another id")
    if environment_id is not None:
        stores.check_prose("environment_id", environment_id, limits.ENVIRONMENT_ID_CHARS)
    stores.check_prose("title", title, limits.TITLE_CHARS)
    labels = stores.patch_metadata({}, metadata or {})
    if len(wanted) > limits.ATTACHMENTS_PER_TASK:
        raise Invalid(
            f"resources cannot contain more than {limits.ATTACHMENTS_PER_TASK} memory_store entries"
        )
    if len({want.store_id for want in wanted}) < len(wanted):
        raise Invalid("a task can attach a memory store only once: remove the repetition")
    attached: list[tuple[Store, Wanted]] = []
    for want in wanted:
        stores.check_prose("instructions", want.instructions, limits.INSTRUCTIONS_CHARS)
        store = stores.get(txn, want.store_id)
        stores.check_live(store)
        attached.append((store, want))
    try:
        who = workers.get(txn, worker)
    except NotFound:
        if ids.has_shape(worker, "agt_"):
            raise
        who = workers.create(txn, caller, now, worker)
    own = stores.by_no(txn, who.store)
    if any(store.no == own.no for store, _ in attached):
        raise Invalid("a worker's own memory store is always attached: leave it out of resources")
    taken: dict[str, None] = {}
    made: list[Attachment] = []
    for store, want in [(own, Wanted(own.id)), *attached]:
        name = short_name(who.name if store is own else store.name, store.id, taken)
        taken[name] = None
        made.append(
            Attachment(
                no=AttachmentNo(txn.next("attachment")),
                store=store.no,
                store_id=store.id,
                name=name,
                store_name=store.name,
                description=store.description,
                access=want.access,
                instructions=want.instructions,
                root=store.root,
                guard=want.guard,
            )
        )
    task = Task(
        id=TaskId(task_id or ids.new("task_")),
        worker_id=who.id,
        created_at=now,
        attachments=tuple(made),
        uid=uid,
        gid=gid,
        environment_id=environment_id,
        title=title or None,
        metadata=labels,
    )
    TASK.put(txn, task.id.encode(), task)
    txn.put("live", keys.live(task.worker_id, task.id), b"")
    txn.put("made", keys.made(made[0].no), task.id.encode())
    _record(txn, caller, now, task)
    return task


def get(txn: Txn, task_id: str) -> Task:
    """Return a task, live or ended.

    Raises: NotFound (also when it was deleted).
    """
    task = find(txn, task_id)
    if task is None or task.deleted_at is not None:
        raise unknown(task_id)
    return task


def find(txn: Txn, task_id: str) -> Task | None:
    """Return a task, also one that was deleted; None if there never was one."""
    return TASK.get(txn, task_id.encode()[:511] or b"-")


def unknown(task_id: str) -> NotFound:
    """Return what is said of a task that is not there, or not for this caller."""
    return NotFound(f"no task {task_id!r}: list them with `memfs task list`")


def live(txn: Txn, worker: WorkerId | None = None) -> list[Task]:
    """Return the tasks that have not ended, of one worker or of all."""
    prefix = b"" if worker is None else keys.live(worker)
    found = (keys.live_task(key) for key, _ in txn.scan("live", prefix))
    return [get(txn, key.decode()) for key in found]


def list_page(
    txn: Txn,
    *,
    store_id: str | None = None,
    worker: WorkerId | None = None,
    include_live: bool = True,
    include_ended: bool = True,
    since: Time | None = None,
    until: Time | None = None,
    oldest_first: bool = False,
    limit: int = 20,
    after: str | None = None,
) -> Page[Task]:
    """Return tasks, newest first unless told; after is a number from the page before.

    It is a place in the order of making, not a task: that one may have ended since, or be gone.
    """
    items: list[Task] = []
    place = None if after is None else AttachmentNo(int(after))
    for task in _in_order(txn, include_ended, oldest_first, place):
        if (
            (task.ended_at is None and not include_live)
            or (worker is not None and task.worker_id != worker)
            or (store_id is not None and all(a.store_id != store_id for a in task.attachments))
            or (since is not None and task.created_at < since)
            or (until is not None and task.created_at > until)
        ):
            continue
        if len(items) == limit:
            return Page(items, str(_number(items[-1])))
        items.append(task)
    return Page(items, None)


def _in_order(
    txn: Txn, ended: bool, oldest_first: bool, after: AttachmentNo | None
) -> Iterator[Task]:
    """Yield tasks in the order of making, or back, from after a place on; ended ones if asked."""
    step = 1 if oldest_first else -1
    if ended:
        start = None if after is None else keys.made(AttachmentNo(after + step))
        for _, key in txn.scan("made", start=start, reverse=not oldest_first):
            task = find(txn, key.decode())
            if task is not None and task.deleted_at is None:
                yield task
        return
    found = sorted(live(txn), key=_number, reverse=not oldest_first)
    yield from (task for task in found if after is None or (_number(task) - after) * step > 0)


def _number(task: Task) -> AttachmentNo:
    return task.attachments[0].no


def update(
    txn: Txn,
    caller: Caller,
    now: Time,
    task_id: str,
    title: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
) -> Task:
    """Change what is given, of a live or ended task, and return it.

    title: an empty one removes it. metadata is a patch: None removes a key.
    Raises: NotFound, Invalid.
    """
    task = get(txn, task_id)
    stores.check_prose("title", title or "", limits.TITLE_CHARS)
    changed = evolve(
        task,
        title=task.title if title is None else title or None,
        metadata=stores.patch_metadata(task.metadata, metadata or {}),
    )
    if changed == task:
        return task
    changed = evolve(changed, updated_at=now)
    TASK.put(txn, task.id.encode(), changed)
    _record(txn, caller, now, changed)
    return changed


def end(txn: Txn, caller: Caller, now: Time, task_id: str) -> Task:
    """End a task and return it: its folders and scratch go, the notes stay. Again: unchanged.

    Raises: NotFound.
    """
    task = get(txn, task_id)
    if task.ended_at is not None:
        return task
    return _end(txn, caller, now, evolve(task, ended_at=now))


def delete(txn: Txn, caller: Caller, now: Time, task_id: str) -> Task:
    """End a task if it lives, take it out of every listing, and return what it was.

    Its row stays: the id is what versions name as their author, so it is not used again.
    Raises: NotFound.
    """
    task = get(txn, task_id)
    ended_at = now if task.ended_at is None else task.ended_at
    return _end(txn, caller, now, evolve(task, ended_at=ended_at, deleted_at=now))


def caller_of(task: Task, attachment: Attachment) -> Caller:
    """Return who writes through an attachment."""
    return Caller(Actor("session_actor", task.id), attachment.no)


def _end(txn: Txn, caller: Caller, now: Time, task: Task) -> Task:
    TASK.put(txn, task.id.encode(), task)
    txn.delete("live", keys.live(task.worker_id, task.id))
    _record(txn, caller, now, task)
    return task


def _record(txn: Txn, caller: Caller, now: Time, task: Task) -> None:
    log.record(txn, caller, now, ChangeKind.TASK, task.attachments[0].store, subject=task.id)
