"""The words of memfs as types (SEMANTICS: Words).

Ids are prefixed ULIDs in text; nodes, stores and changes also have small numbers, which are what
the tables are keyed by. Times are int nanoseconds since 1970 (UTC) and may be negative.

Records are msgspec structs written as arrays: a reader accepts rows with fewer fields than it
knows (the rest take their defaults), so a field may be appended, never moved or removed.
"""

from enum import IntEnum
from typing import Generic, NewType, TypeVar

import msgspec

T = TypeVar("T")

StoreId = NewType("StoreId", str)  # memstore_…
NoteId = NewType("NoteId", str)  # mem_…
VersionId = NewType("VersionId", str)  # memver_…
KeyId = NewType("KeyId", str)  # apikey_…
WorkerId = NewType("WorkerId", str)  # agt_…
TaskId = NewType("TaskId", str)  # task_… or the caller's own
StoreNo = NewType("StoreNo", int)  # u32, never reused
AttachmentNo = NewType("AttachmentNo", int)  # u32, never reused
Node = NewType("Node", int)  # u64, a folder or note in a tree, never reused
Seq = NewType("Seq", int)  # u64, position in the change log
Time = NewType("Time", int)  # ns since 1970, UTC
Sha256 = NewType("Sha256", str)  # 64 lower-case hex digits
NotePath = NewType("NotePath", str)  # only engine.path makes one


NO_NODE = Node(0)  # no folder, no note; a root's parent


class Operation(IntEnum):
    """What a version did to its note."""

    CREATED = 1
    MODIFIED = 2
    DELETED = 3

    @property
    def word(self) -> str:
        """The API's word: created, modified, deleted."""
        return self.name.lower()


class Access(IntEnum):
    """What an attachment may do with its store."""

    READ_WRITE = 0
    READ_ONLY = 1

    @property
    def word(self) -> str:
        """The API's word: read_write, read_only."""
        return self.name.lower()


class Power(IntEnum):
    """What a caller may do at all (SEMANTICS: Callers and keys)."""

    PERSON = 0  # everything
    AGENT = 1  # its own memory and what its live tasks attach
    READONLY = 2  # read everything

    @property
    def word(self) -> str:
        """The API's word: person, agent, readonly."""
        return self.name.lower()


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of everything that is written to disk."""


evolve = msgspec.structs.replace  # evolve(record, field=…): the record with other values


class Actor(Record, frozen=True):
    """Who changed something; type is session_actor, api_actor, user_actor or system_actor."""

    type: str
    id: str


class Caller(Record, frozen=True):
    """Who asks. attachment: what a mount's request came through (0: none).

    worker: whose memory an agent's key reaches. scopes: the only ones that it has; None: all.
    key: the row of the key that it came with, None if it came without one.
    """

    actor: Actor
    attachment: AttachmentNo = AttachmentNo(0)
    power: Power = Power.PERSON
    worker: WorkerId | None = None
    scopes: tuple[str, ...] | None = None
    key: bytes | None = None


class Key(Record, frozen=True):
    """An API key; the secret itself is kept nowhere, its sha256 is the row's key."""

    id: KeyId
    name: str
    power: Power
    created_at: Time
    worker: WorkerId | None = None  # of an agent's key
    scopes: tuple[str, ...] | None = None  # None: unrestricted
    revoked_at: Time | None = None


class Text(Record, frozen=True):
    """UTF-8 text that passed the size, encoding and secret checks; only secrets.screen makes it."""

    data: bytes
    sha256: Sha256

    @property
    def size_bytes(self) -> int:
        """Length in UTF-8 bytes."""
        return len(self.data)


class Store(Record, frozen=True):
    """A named set of notes. root is the node of its top folder; notes counts the living ones."""

    no: StoreNo
    id: StoreId
    name: str
    description: str
    metadata: dict[str, str]
    created_at: Time
    updated_at: Time
    root: Node
    notes: int = 0
    archived_at: Time | None = None
    worker_id: WorkerId | None = None  # set: this is a worker's own store
    refused: int = 0  # number of the last refused text


class NoteInfo(Record, frozen=True):
    """What a note's node carries beyond a folder's: its identity and its head."""

    id: NoteId
    version_id: VersionId
    sha256: Sha256
    size_bytes: int
    created_at: Time
    updated_at: Time
    ordinal: int  # number of the head version within the note, from 1
    head_seq: Seq
    archived_at: Time | None = None
    archive_reason: str | None = None


class NodeInfo(Record, frozen=True):
    """One folder (note is None) or note of a store's tree.

    An archived note has parent 0 and its whole path as name.
    """

    node: Node
    store: StoreNo
    parent: Node
    name: str
    mode: int  # permission bits, & 0o777
    mtime: Time
    ctime: Time
    note: NoteInfo | None = None
    kept: bool = False  # a folder made or emptied through the mount: stays while empty


class Version(Record, frozen=True):
    """What one change did to a note. path, sha256 and size_bytes are None where the API says so."""

    id: VersionId
    seq: Seq
    store: StoreNo
    node: Node
    note_id: NoteId
    operation: Operation
    ordinal: int
    path: str | None
    sha256: Sha256 | None
    size_bytes: int | None
    created_at: Time
    created_by: Actor
    redacted_at: Time | None = None
    redacted_by: Actor | None = None


class Worker(Record, frozen=True):
    """An agent; store is its own store."""

    id: WorkerId
    name: str
    created_at: Time
    store: StoreNo


class Attachment(Record, frozen=True):
    """A store inside a task, frozen when the task was made. name is the folder's name."""

    no: AttachmentNo
    store: StoreNo
    store_id: StoreId
    name: str
    store_name: str
    description: str
    access: Access
    instructions: str
    root: Node
    guard: bool = True


class Task(Record, frozen=True):
    """A run of a worker with its frozen attachments, the own store first."""

    id: TaskId
    worker_id: WorkerId
    created_at: Time
    attachments: tuple[Attachment, ...]
    ended_at: Time | None = None
    uid: int | None = None  # owner of the files; None: the daemon's user
    gid: int | None = None
    environment_id: str | None = None  # what made it as a session said
    title: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    updated_at: Time | None = None  # of title and metadata
    deleted_at: Time | None = None  # set: in no listing any more; the row keeps its id from reuse


class ChangeKind(IntEnum):
    """What a row of the change log is about."""

    NOTE = 1  # has a version
    FOLDER = 2  # made, removed or renamed
    ATTR = 3  # mode or mtime of a node
    STORE = 4
    TASK = 5
    WORKER = 6
    REDACT = 7
    PURGE = 8
    ARCHIVE = 9  # a note left the tree or came back
    CREDENTIAL = 10
    REFUSED = 11
    KEY = 12


class Change(Record, frozen=True):
    """One durable row of the change log; what the neighbours follow.

    node: what the row is about. parent/name: the entry that appeared, changed or vanished.
    old_parent/old_name: the entry that a rename took away.
    """

    seq: Seq
    at: Time
    kind: ChangeKind
    store: StoreNo
    actor: Actor
    attachment: AttachmentNo = AttachmentNo(0)
    node: Node = NO_NODE
    operation: Operation | None = None
    parent: Node = NO_NODE
    name: str = ""
    old_parent: Node = NO_NODE
    old_name: str = ""
    subject: str = ""  # id of the store, task, worker, credential or note; n of a refused text


class Refused(Record, frozen=True):
    """A text that the mount accepted and could not commit, kept so that nothing is lost."""

    n: int
    store: StoreNo
    path: str
    reason: str
    base: Sha256 | None
    head: Sha256 | None
    sha256: Sha256
    size_bytes: int
    at: Time
    actor: Actor


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a listing; after is where the next one starts, None on the last page."""

    items: list[T]
    after: str | None
