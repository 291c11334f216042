"""/v1/sessions: tasks, in the words of Claude's sessions (SEMANTICS: Sessions)."""

from typing import Annotated, Literal, NoReturn

from fastapi import APIRouter, Query, Request, Response

from daemon.http import session_shapes as shapes
from daemon.http import wire
from daemon.http.door import Door, Person, TheDoor, scope
from daemon.http.tasks import attached, wanted
from memfs.engine import access, tasks, workers
from memfs.engine.service import Txn
from memfs.errors import NotFound, Unsupported
from memfs.types import Page, Task, Time

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], dependencies=[scope("tasks")])


@router.post("", response_model=shapes.Session, openapi_extra=wire.takes(shapes.CreateSession))
async def create(door: Person, request: Request) -> Response:
    """Make a session of a worker, with its stores in their folders when this returns."""
    body = await wire.decode(request, shapes.CreateSession)
    shapes.check_runs_nothing(
        budget=body.budget, initial_events=body.initial_events, vault_ids=body.vault_ids
    )
    made = await door.commit(
        tasks.create,
        body.worker(),
        wanted(body.resources),
        body.id,
        environment_id=body.environment_id,
        title=body.title or "",
        metadata=body.metadata,
    )
    return _reply(door, made)


@router.get("", response_model=wire.Page[shapes.Session])
async def list_sessions(
    door: TheDoor,
    agent_id: str | None = None,
    agent_version: int | None = None,
    deployment_id: str | None = None,
    memory_store_id: str | None = None,
    after_time: Annotated[str | None, Query(alias="created_at[gt]")] = None,
    since: Annotated[str | None, Query(alias="created_at[gte]")] = None,
    before_time: Annotated[str | None, Query(alias="created_at[lt]")] = None,
    until: Annotated[str | None, Query(alias="created_at[lte]")] = None,
    statuses: Annotated[list[shapes.Status] | None, Query(alias="statuses[]")] = None,
    statuses_bare: Annotated[list[shapes.Status] | None, Query(alias="statuses")] = None,
    include_archived: bool = False,
    order: Literal["asc", "desc"] = "desc",
    page: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """List sessions, newest first. statuses that name terminated include archived ones."""
    asked = {*(statuses or ()), *(statuses_bare or ())}
    first, last = _bounds(after_time, since, before_time, until)
    filters = (agent_id, agent_version, deployment_id, memory_store_id, first, last, sorted(asked))
    listing = f"sessions {filters} {include_archived} {order}"
    after = door.cursors.open(page, listing)
    impossible = deployment_id is not None or (
        agent_id is not None and agent_version not in (None, shapes.AGENT_VERSION)
    )

    def find(txn: Txn) -> Page[Task]:
        worker = door.caller.worker
        if agent_id is not None:
            worker = access.worker(txn, door.caller, agent_id).id
        return tasks.list_page(
            txn,
            store_id=memory_store_id,
            worker=worker,
            include_live=not asked or "idle" in asked,
            include_ended="terminated" in asked or (include_archived and not asked),
            since=first,
            until=last,
            oldest_first=order == "asc",
            limit=limit,
            after=after,
        )

    def read(txn: Txn) -> bytes:
        try:
            found: Page[Task] = Page([], None) if impossible else find(txn)
        except NotFound:  # a worker that is not there has no sessions
            found = Page([], None)
        rows = [_session(txn, door, task) for task in found.items]
        return wire.encode(wire.Page(data=rows, next_page=door.cursors.seal(found.after, listing)))

    return wire.reply(await door.scan(read))


@router.get("/{session_id}", response_model=shapes.Session)
async def retrieve(door: TheDoor, session_id: str) -> Response:
    """Return one session, archived or not."""
    return _reply(door, door.service.view(access.task, door.caller, session_id))


@router.post(
    "/{session_id}",
    response_model=shapes.Session,
    openapi_extra=wire.takes(shapes.UpdateSession),
)
async def update(door: Person, request: Request, session_id: str) -> Response:
    """Change title or metadata (a patch: null removes a key)."""
    door.service.view(access.task, door.caller, session_id)
    body = await wire.decode(request, shapes.UpdateSession)
    shapes.check_runs_nothing(agent=body.agent, budget=body.budget, vault_ids=body.vault_ids)
    return _reply(door, await door.commit(tasks.update, session_id, body.title, body.metadata))


@router.post("/{session_id}/archive", response_model=shapes.Session)
async def archive(door: Person, session_id: str) -> Response:
    """End a session: its folders go, the notes stay. Again: unchanged."""
    return _reply(door, await door.commit(tasks.end, session_id))


@router.delete("/{session_id}", response_model=shapes.Deleted)
async def delete(door: Person, session_id: str) -> Response:
    """End a session and take it out of every listing; the notes stay."""
    gone = await door.commit(tasks.delete, session_id)
    return wire.reply(shapes.Deleted(id=gone.id))


@router.get("/{session_id}/resources", response_model=wire.Page[wire.Attached])
async def list_resources(
    door: TheDoor,
    session_id: str,
    page: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """List what a session sees, its worker's own store first."""
    listing = f"resources {session_id!r}"
    start = int(door.cursors.open(page, listing) or 0)
    found = attached(door, door.service.view(access.task, door.caller, session_id))
    rest = str(start + limit) if start + limit < len(found) else None
    rows = found[start : start + limit]
    return wire.reply(wire.Page(data=rows, next_page=door.cursors.seal(rest, listing)))


@router.get("/{session_id}/resources/{memory_store_id}", response_model=wire.Attached)
async def retrieve_resource(door: TheDoor, session_id: str, memory_store_id: str) -> Response:
    """Return one store as a session sees it."""
    return wire.reply(_resource(door, session_id, memory_store_id))


@router.post("/{session_id}/resources", response_model=wire.Attached)
async def add_resource(door: Person, session_id: str) -> Response:
    """Refuse: a session's stores are those it was made with."""
    door.service.view(access.task, door.caller, session_id)
    _refuse_change()


@router.post("/{session_id}/resources/{memory_store_id}", response_model=wire.Attached)
async def update_resource(door: Person, session_id: str, memory_store_id: str) -> Response:
    """Refuse: a memory store has no token to renew."""
    _resource(door, session_id, memory_store_id)
    _refuse_change()


@router.delete("/{session_id}/resources/{memory_store_id}", response_model=wire.Attached)
async def delete_resource(door: Person, session_id: str, memory_store_id: str) -> Response:
    """Refuse: a session's stores are those it was made with."""
    _resource(door, session_id, memory_store_id)
    _refuse_change()


def _refuse_change() -> NoReturn:
    raise Unsupported(
        "a session's resources are those it was made with: make another session with the others"
    )


def _reply(door: Door, task: Task) -> Response:
    return wire.reply(door.service.view(_session, door, task))


def _session(txn: Txn, door: Door, task: Task) -> shapes.Session:
    worker = workers.get(txn, task.worker_id)
    return shapes.session(task, worker, attached(door, task), door.service.now())


def _resource(door: Door, session_id: str, memory_store_id: str) -> wire.Attached:
    for one in attached(door, door.service.view(access.task, door.caller, session_id)):
        if one.memory_store_id == memory_store_id:
            return one
    raise NotFound(
        f"no memory store {memory_store_id!r} in this session: list its resources, "
        "they are addressed by memory_store_id"
    )


def _bounds(
    gt: str | None, gte: str | None, lt: str | None, lte: str | None
) -> tuple[Time | None, Time | None]:
    """Return the first and the last time that the four filters leave, in whole microseconds.

    Raises: Invalid.
    """
    after = wire.parse_time("created_at[gt]", gt, end=True)
    first = [wire.parse_time("created_at[gte]", gte), None if after is None else Time(after + 1)]
    before = wire.parse_time("created_at[lt]", lt)
    last = [
        wire.parse_time("created_at[lte]", lte, end=True),
        None if before is None else Time(before - 1),
    ]
    return (
        max((at for at in first if at is not None), default=None),
        min((at for at in last if at is not None), default=None),
    )
