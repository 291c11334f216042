"""/v1/tasks and /v1/workers."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from daemon.http import wire
from daemon.http.door import Door, Person, TheDoor, scope
from memfs.engine import access, stores, tasks
from memfs.engine.service import Txn
from memfs.errors import Invalid
from memfs.types import Access, Task, Worker

router = APIRouter(
    prefix="/v1/tasks", tags=["tasks (Little Worker)"], dependencies=[scope("tasks")]
)
worker_router = APIRouter(
    prefix="/v1/workers", tags=["workers (ours)"], dependencies=[scope("tasks")]
)


@router.post("", response_model=wire.Task, openapi_extra=wire.takes(wire.CreateTask))
async def create(door: Person, request: Request) -> Response:
    """Make a task of a worker, with its stores in their folders when this returns."""
    body = await wire.decode(request, wire.CreateTask)
    if body.id is not None and body.task_id is not None and body.id != body.task_id:
        raise Invalid("id, task_id: they are the same thing; send one of them")
    made = await door.commit(
        tasks.create,
        body.worker,
        wanted(body.resources),
        body.task_id if body.id is None else body.id,
        None if body.owner is None else body.owner.uid,
        None if body.owner is None else body.owner.gid,
    )
    return wire.reply(_task(door, made))


@router.get("", response_model=wire.Page[wire.Task])
async def list_tasks(
    door: TheDoor,
    memory_store_id: str | None = None,
    page: str | None = None,
    include_ended: bool = True,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """List tasks, newest first."""
    listing = f"tasks {memory_store_id!r} {include_ended}"
    found = await door.scan(
        tasks.list_page,
        store_id=memory_store_id,
        worker=door.caller.worker,
        include_ended=include_ended,
        limit=limit,
        after=door.cursors.open(page, listing),
    )
    rows = [_task(door, task) for task in found.items]
    return wire.reply(wire.Page(data=rows, next_page=door.cursors.seal(found.after, listing)))


@router.get("/{task_id}", response_model=wire.Task)
async def retrieve(door: TheDoor, task_id: str) -> Response:
    """Return one task, live or ended."""
    return wire.reply(_task(door, door.service.view(access.task, door.caller, task_id)))


@router.post("/{task_id}/end", response_model=wire.Task)
async def end(door: Person, task_id: str) -> Response:
    """End a task: its folders go, the notes stay. Again: unchanged."""
    return wire.reply(_task(door, await door.commit(tasks.end, task_id)))


@worker_router.get("", response_model=wire.Page[wire.Worker])
async def list_workers(door: TheDoor) -> Response:
    """List all workers in the order of making."""

    def read(txn: Txn) -> bytes:
        rows = [_worker(txn, who) for who in access.workers_seen(txn, door.caller)]
        return wire.encode(wire.Page(data=rows, next_page=None))

    return wire.reply(await door.scan(read))


@worker_router.get("/{name_or_id:path}", response_model=wire.Worker)
async def retrieve_worker(door: TheDoor, name_or_id: str) -> Response:
    """Return one worker by id or name."""
    return wire.reply(
        door.service.view(lambda txn: _worker(txn, access.worker(txn, door.caller, name_or_id)))
    )


def wanted(resources: Sequence[wire.Resource] | None) -> list[tasks.Wanted]:
    """Return what a request wants a new task to see."""
    return [
        tasks.Wanted(
            resource.memory_store_id,
            Access.READ_ONLY if resource.access == "read_only" else Access.READ_WRITE,
            resource.instructions or "",
            resource.guard is not False,
        )
        for resource in resources or ()
    ]


def attached(door: Door, task: Task) -> list[wire.Attached]:
    """Return the shapes of a task's attachments, in order."""
    return [wire.attached(one, door.mount_path(task, one)) for one in task.attachments]


def _task(door: Door, task: Task) -> wire.Task:
    return wire.task(task, attached(door, task))


def _worker(txn: Txn, who: Worker) -> wire.Worker:
    return wire.worker(who, stores.by_no(txn, who.store))
