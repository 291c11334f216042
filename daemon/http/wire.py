"""The shapes on the wire and the status of each error; the only place that knows them.

They are those of Claude's memory API (field names, nulls, envelopes), with a few fields of our own
beside them, which its clients ignore. Times are RFC 3339, UTC, with microseconds.
"""

import errno
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Generic, Literal, Self, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from memfs import limits, types
from memfs.engine import holders
from memfs.errors import Invalid, MemfsError, PathConflict, RateLimited

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")

View = Literal["basic", "full"]

_DIGEST = re.compile("[0-9A-Fa-f]{64}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_ERRORS = 3
SHOWN_HOLDERS = 100
_REMEDY = (
    "it was there before it was registered: write those notes without it or delete them, redact "
    "every older version that holds it and discard the refused texts that do; then stop the "
    "daemon and run `memfs compact`"
)

Stamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


# Answers ----------------------------------------------------------------------------------------


class MemoryStore(BaseModel):
    """A memory store."""

    type: Literal["memory_store"] = "memory_store"
    id: str
    name: str
    description: str
    metadata: dict[str, str]
    created_at: Stamp
    updated_at: Stamp
    archived_at: Stamp | None
    worker_id: str | None  # ours: the worker whose own store this is
    memory_count: int  # ours: living notes


class Memory(BaseModel):
    """A note; content is null in the basic view."""

    type: Literal["memory"] = "memory"
    id: str
    memory_store_id: str
    memory_version_id: str
    path: str
    content: str | None
    content_sha256: str
    content_size_bytes: int
    created_at: Stamp
    updated_at: Stamp


class ArchivedMemory(Memory):
    """A note that was taken out of the tree (ours)."""

    archived_at: Stamp
    archive_reason: str | None


class MemoryPrefix(BaseModel):
    """A folder in a listing: a path that ends in a slash."""

    type: Literal["memory_prefix"] = "memory_prefix"
    path: str


class Actor(BaseModel):
    """Who did it: session_actor, api_actor, user_actor or system_actor, and its id."""

    model_config = ConfigDict(extra="allow")

    type: str


class MemoryVersion(BaseModel):
    """What one change did to a note; path, text, sha256 and size are null once redacted."""

    type: Literal["memory_version"] = "memory_version"
    id: str
    memory_store_id: str
    memory_id: str
    operation: Literal["created", "modified", "deleted"]
    ordinal: int  # ours: its number among the versions of its note, from 1
    path: str | None
    content: str | None
    content_sha256: str | None
    content_size_bytes: int | None
    created_at: Stamp
    created_by: Actor | None
    redacted_at: Stamp | None
    redacted_by: Actor | None


class Gone(BaseModel):
    """What was removed."""

    type: Literal[
        "memory_store_deleted",
        "memory_deleted",
        "memory_purged",
        "refused_text_deleted",
        "secret_deleted",
    ]
    id: str


class Attached(BaseModel):
    """A memory store as a task sees it, frozen when the task was made."""

    type: Literal["memory_store"] = "memory_store"
    memory_store_id: str
    access: Literal["read_write", "read_only"]
    instructions: str | None
    name: str
    description: str
    mount_path: str
    guard: bool  # ours: refuses to overwrite what another changed since it was read


class OwnerShape(BaseModel):
    """The user and group whose files a task's notes are."""

    uid: int
    gid: int | None


class Task(BaseModel):
    """A run of a worker; the worker's own store comes first."""

    type: Literal["task"] = "task"
    id: str
    worker_id: str
    created_at: Stamp
    ended_at: Stamp | None
    owner: OwnerShape | None
    resources: list[Attached]


class Worker(BaseModel):
    """An agent and its own store."""

    type: Literal["worker"] = "worker"
    id: str
    name: str
    memory_store_id: str
    created_at: Stamp


class Secret(BaseModel):
    """A registered credential; what it is never comes back."""

    type: Literal["secret"] = "secret"
    name: str
    created_at: Stamp


class SecretHolder(BaseModel):
    """A note that holds a credential, or a refused text, which is no note."""

    memory_store_id: str
    memory_store_name: str
    path: str  # the last one that is known
    memory_id: str | None  # null: a refused text
    current: bool  # its text now, not only an older one
    older_versions: int  # that hold it
    refused_text: int | None  # its number


class NewSecret(Secret):
    """A credential just registered, and what held it before."""

    held_by: Annotated[list[SecretHolder], Field(description="The first 100, current ones first.")]
    held_by_count: int
    remedy: str | None


class Page(BaseModel, Generic[T]):
    """One page of a listing; next_page is null on the last."""

    data: list[T]
    next_page: str | None


class Problem(BaseModel):
    """Why a request failed."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str


class ErrorEnvelope(BaseModel):
    """Every answer that is not a success."""

    type: Literal["error"] = "error"
    error: Problem
    request_id: str


def stamp(at: types.Time) -> str:
    """Return a time as 2026-11-30T12:44:08.034484Z; what is below a microsecond is cut."""
    second, micros = divmod(at // 1000, 1_000_000)
    return f"{_to_the_second(second)}.{micros:06}Z"


@lru_cache(4096)  # a listing's rows have few different ones; an isoformat costs as much as a row
def _to_the_second(at_s: int) -> str:
    return (_EPOCH + timedelta(seconds=at_s)).isoformat()[:19]


def stamp_or_null(at: types.Time | None) -> str | None:
    """Return a time, or null."""
    return None if at is None else stamp(at)


def memory_store(store: types.Store) -> MemoryStore:
    """Return a store's shape."""
    return MemoryStore(
        id=store.id,
        name=store.name,
        description=store.description,
        metadata=store.metadata,
        created_at=stamp(store.created_at),
        updated_at=stamp(store.updated_at),
        archived_at=stamp_or_null(store.archived_at),
        worker_id=store.worker_id,
        memory_count=store.notes,
    )


def memory(
    store_id: str, path: str, info: types.NodeInfo, note: types.NoteInfo, text: bytes | None
) -> Memory:
    """Return a note's shape; text None: the basic view."""
    fields = Memory(
        id=note.id,
        memory_store_id=store_id,
        memory_version_id=note.version_id,
        path=path,
        content=None if text is None else text.decode(),
        content_sha256=note.sha256,
        content_size_bytes=note.size_bytes,
        created_at=stamp(note.created_at),
        updated_at=stamp(note.updated_at),
    )
    if note.archived_at is None:
        return fields
    return ArchivedMemory(
        **dict(fields), archived_at=stamp(note.archived_at), archive_reason=note.archive_reason
    )


def memory_version(store_id: str, version: types.Version, text: bytes | None) -> MemoryVersion:
    """Return a version's shape; text None: the basic view, or it has none."""
    return MemoryVersion(
        id=version.id,
        memory_store_id=store_id,
        memory_id=version.note_id,
        operation=_WORDS[version.operation],
        ordinal=version.ordinal,
        path=version.path,
        content=None if text is None else text.decode(),
        content_sha256=version.sha256,
        content_size_bytes=version.size_bytes,
        created_at=stamp(version.created_at),
        created_by=actor(version.created_by),
        redacted_at=stamp_or_null(version.redacted_at),
        redacted_by=None if version.redacted_by is None else actor(version.redacted_by),
    )


_WORDS: Mapping[types.Operation, Literal["created", "modified", "deleted"]] = {
    types.Operation.CREATED: "created",
    types.Operation.MODIFIED: "modified",
    types.Operation.DELETED: "deleted",
}


def actor(who: types.Actor) -> Actor:
    """Return an actor's shape: its id stands under a name that depends on the type."""
    if who.type == "session_actor":
        return Actor.model_validate(
            {"type": who.type, "session_id": who.id, "task_id": who.id}  # one thing, two words
        )
    kind = {"api_actor": "api_key"}.get(who.type, who.type.removesuffix("_actor"))
    return Actor.model_validate({"type": who.type, f"{kind}_id": who.id})


def attached(attachment: types.Attachment, mount_path: str) -> Attached:
    """Return an attachment's shape; mount_path: the folder where the task sees it."""
    return Attached(
        memory_store_id=attachment.store_id,
        access="read_only" if attachment.access is types.Access.READ_ONLY else "read_write",
        instructions=attachment.instructions or None,
        name=attachment.store_name,
        description=attachment.description,
        mount_path=mount_path,
        guard=attachment.guard,
    )


def task(made: types.Task, resources: list[Attached]) -> Task:
    """Return a task's shape."""
    return Task(
        id=made.id,
        worker_id=made.worker_id,
        created_at=stamp(made.created_at),
        ended_at=stamp_or_null(made.ended_at),
        owner=None if made.uid is None else OwnerShape(uid=made.uid, gid=made.gid),
        resources=resources,
    )


def worker(who: types.Worker, own: types.Store) -> Worker:
    """Return a worker's shape."""
    return Worker(
        id=who.id, name=who.name, memory_store_id=own.id, created_at=stamp(who.created_at)
    )


def secret(name: str, created_at: types.Time) -> Secret:
    """Return a registered credential's shape."""
    return Secret(name=name, created_at=stamp(created_at))


def new_secret(made: Secret, found: Sequence[holders.Holder]) -> NewSecret:
    """Return a registered credential's shape with what holds it and what to do about that."""
    ordered = sorted(found, key=lambda one: not one.current)
    return NewSecret(
        **dict(made),
        held_by=[
            SecretHolder(
                memory_store_id=one.store.id,
                memory_store_name=one.store.name,
                path=one.path,
                memory_id=one.note_id,
                current=one.current,
                older_versions=one.versions,
                refused_text=one.refused,
            )
            for one in ordered[:SHOWN_HOLDERS]
        ],
        held_by_count=len(ordered),
        remedy=_REMEDY if ordered else None,
    )


def encode(shape: BaseModel) -> bytes:
    """Return a shape as JSON; listings are encoded in the thread that read them."""
    return shape.model_dump_json().encode()


def reply(body: BaseModel | bytes) -> Response:
    """Return a successful answer."""
    content = body if isinstance(body, bytes) else encode(body)
    return Response(content, media_type="application/json")


# Requests ---------------------------------------------------------------------------------------


class Body(BaseModel):
    """What a client sends. Types are exact; keys that we do not know are ignored."""

    model_config = ConfigDict(strict=True)


def _says(**schema: int | str) -> FieldInfo:
    """Return what OpenAPI says of a text beyond its type; the engine is what checks it."""
    return Field(json_schema_extra=dict(schema))


Name = Annotated[str, _says(minLength=1, maxLength=limits.STORE_NAME_CHARS)]
Description = Annotated[str, _says(maxLength=limits.DESCRIPTION_CHARS)]
Path = Annotated[str, _says(pattern="^/[^/]", maxLength=limits.PATH_BYTES)]
Content = Annotated[str, _says(maxLength=limits.NOTE_BYTES)]
Digest = Annotated[str, _says(pattern=f"^{_DIGEST.pattern}$")]
TaskId = Annotated[str, _says(pattern="^[A-Za-z0-9._-]+$", maxLength=limits.TASK_ID_CHARS)]


class CreateStore(Body):
    """A new memory store."""

    name: Name
    description: Description | None = None
    metadata: dict[str, str] | None = None


class UpdateStore(Body):
    """What changes; null or absent stays. In metadata null removes a key."""

    name: Name | None = None
    description: Description | None = None
    metadata: dict[str, str | None] | None = None


class CreateMemory(Body):
    """A new note."""

    path: Path
    content: Content


class Precondition(Body):
    """The text that the note must still have."""

    type: Literal["content_sha256"]
    content_sha256: Digest


class UpdateMemory(Body):
    """What changes, at least one of content and path; null or absent stays."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["content"]}, {"required": ["path"]}]}
    )

    content: Content | None = None
    path: Path | None = None
    precondition: Precondition | None = None


class ArchiveMemory(Body):
    """Why the note is put away."""

    reason: Annotated[str, _says(minLength=1, maxLength=500)]


class KeepRefused(Body):
    """Where the note is made."""

    path: str


class Resource(Body):
    """A memory store that a new task sees."""

    type: Literal["memory_store"]
    memory_store_id: str
    access: Literal["read_write", "read_only"] | None = None
    instructions: Annotated[str, _says(maxLength=limits.INSTRUCTIONS_CHARS)] | None = None
    guard: bool | None = None


class Owner(Body):
    """Whose files a task's notes are."""

    uid: int = Field(ge=0, le=2**32 - 2)  # the last one means "as it is" to chown
    gid: int = Field(ge=0, le=2**32 - 2)


class CreateTask(Body):
    """A new task. id and task_id are the same; without one memfs chooses."""

    id: TaskId | None = None
    task_id: TaskId | None = None
    worker: Name = "worker"  # name or id; a new name makes the worker
    resources: list[Resource] | None = None
    owner: Owner | None = None


class CreateSecret(Body):
    """A credential that no text may hold."""

    name: Annotated[str, _says(minLength=1, maxLength=64)]
    secret: Annotated[
        str, _says(minLength=limits.SECRET_MIN_CHARS, maxLength=limits.SECRET_MAX_CHARS)
    ]


BODIES: list[type[BaseModel]] = []  # what routes read themselves, for OpenAPI


def takes(shape: type[BaseModel]) -> dict[str, object]:
    """Return what OpenAPI says of a route whose body `decode` reads."""
    BODIES.append(shape)
    schema = {"$ref": f"#/components/schemas/{shape.__name__}"}
    content = {"application/json": {"schema": schema}}
    needed = bool(shape.model_json_schema().keys() & {"required", "anyOf"})
    return {"requestBody": {"required": needed, "content": content}}


async def decode(request: Request, shape: type[S]) -> S:
    """Return the request's body. Call it after the checks that come before a request's shape.

    Raises: Invalid, naming fields and remedies and nothing of their content.
    """
    body = await request.body()
    try:
        return shape.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise invalid(error.errors(include_input=False, include_url=False)) from None


def invalid(found: Sequence[Mapping[str, object]]) -> Invalid:
    """Return the error for what pydantic found."""
    parts: list[str] = []
    for error in found[:_SHOWN_ERRORS]:
        where: object = error.get("loc")
        names = [str(name) for name in where] if isinstance(where, tuple) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        names = [name for name in names if name not in ("body", "query", "path")] or names[-1:]
        field = ascii(".".join(names) or "body")[1:-1]
        parts.append(f"{field[:100]}: {error.get('msg')}")
    return Invalid("; ".join(parts))


def parse_sha256(name: str, text: str) -> types.Sha256:
    """Return the sha256 that a request names; upper case is the same.

    Raises: Invalid.
    """
    if _DIGEST.fullmatch(text) is None:
        raise Invalid(f"{name}: not a sha256, which has 64 hex digits: send the one that you saw")
    return types.Sha256(text.lower())


def parse_time(name: str, text: str | None, *, end: bool = False) -> types.Time | None:
    """Return the time that a query gives in RFC 3339; end: the last ns of its microsecond.

    Raises: Invalid.
    """
    if text is None:
        return None
    try:
        # "+" that was not percent-encoded arrives as a space
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise Invalid(f"{name}: not a time; write it as 2026-11-30T12:44:08Z") from None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return types.Time(since // timedelta(microseconds=1) * 1000 + (999 if end else 0))


# Errors -----------------------------------------------------------------------------------------


class TooLarge(MemfsError):
    """The request's body is larger than any request needs to be."""

    errno, status, type = errno.EFBIG, 413, "request_too_large"


class HeadTooLarge(MemfsError):
    """The request's headers are larger than any request needs."""

    errno, status, type = errno.EFBIG, 431, "request_too_large"

    @classmethod
    def over(cls, most: int) -> Self:
        """Return the refusal of more than *most* bytes."""
        return cls(f"a request's headers may have {most} bytes: send fewer")


class TooSlow(MemfsError):
    """The request's body did not come in time."""

    errno, status, type = errno.ETIMEDOUT, 408, "timeout_error"


class TooLate(MemfsError):
    """The answer was not ready in time."""

    errno, status, type = errno.ETIMEDOUT, 504, "timeout_error"


class TooMany(MemfsError):
    """There are more connections than the daemon serves at once."""

    errno, status, type = errno.EAGAIN, 503, "overloaded_error"


def refusal(error: MemfsError, request_id: str) -> Response:
    """Return the answer for a domain error."""
    extra: dict[str, str] = {}
    if isinstance(error, PathConflict):
        extra = {
            "conflicting_memory_id": error.conflicting_id,
            "conflicting_path": error.conflicting_path,
        }
    if error.code is not None:
        extra["code"] = error.code
    response = _problem(error.status, error.type, str(error), request_id, extra)
    if isinstance(error, RateLimited):
        response.headers["retry-after"] = str(error.retry_after_s)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if error.status == 409:
        response.headers["x-should-retry"] = "false"  # the SDK retries a 409 otherwise
    return response


def framework_refusal(status: int, headers: Mapping[str, str] | None, request_id: str) -> Response:
    """Return the answer where no route took the request."""
    type_, message = {
        404: ("not_found_error", "no such route: see /docs for those there are"),
        405: ("invalid_request_error", "this route has no such method: see /docs"),
    }.get(status, ("invalid_request_error", "the request cannot be read"))
    response = _problem(status, type_, message, request_id, {})
    response.headers.update(headers or {})
    return response


def bug(request_id: str) -> Response:
    """Return the answer for a fault of ours."""
    message = f"internal error: the daemon's log has it under {request_id}"
    return _problem(500, "api_error", message, request_id, {})


def _problem(
    status: int, type_: str, message: str, request_id: str, extra: Mapping[str, str]
) -> Response:
    problem = Problem.model_validate({"type": type_, "message": message, **extra})
    content = encode(ErrorEnvelope(error=problem, request_id=request_id))
    return Response(content, status, media_type="application/json")
