"""Every key of every table (FORMAT: Tables). Numbers are big-endian, so byte order is the order.

table         key                                      value
meta          name                                     format, counters
store         store:u32                                Store
node          node:u64                                 NodeInfo
dentry        store:u32 parent:u64 name:1..255 B       node:u64 kind:u8
archived      store:u32 node:u64                       -
content       sha256:32 B                              uses:u64 codec:u8 xxh3:u64 text
version       store:u32 seq:u64                        Version
by_note       node:u64 seq:u64                         -
by_operation  store:u32 operation:u8 seq:u64           - (created, deleted)
by_actor      store:u32 actor:u64 seq:u64              -
setback       store:u32 seq:u64                        - (version older than the one before)
change        seq:u64                                  Change
worker        worker id                                Worker
task          task id                                  Task
refused       store:u32 n:u64                          Refused
credential    name                                     what recognises a registered credential
live          worker id, task id                       - (tasks that have not ended)
key           sha256 of the secret:32 B                Key
made          attachment:u32                           task id
"""

import struct

import xxhash

from memfs.types import Actor, AttachmentNo, Node, Operation, Seq, Sha256, StoreNo, TaskId, WorkerId

TABLES = (
    "meta", "store", "node", "dentry", "archived", "content", "version", "by_note",
    "by_operation", "by_actor", "setback", "change", "worker", "task", "refused", "credential",
    "live", "key", "made",
)  # fmt: skip

FOLDER, NOTE = 1, 2  # kind byte of a dentry
DENTRY_BYTES = 12 + 255  # the longest key of a dentry

_u32 = struct.Struct(">I")
_u64 = struct.Struct(">Q")
_u32_u64 = struct.Struct(">IQ")
_u32_u64_u64 = struct.Struct(">IQQ")
_u64_u64 = struct.Struct(">QQ")
_u32_u8_u64 = struct.Struct(">IBQ")
_u64_u8 = struct.Struct(">QB")

pack_u32 = _u32.pack
pack_u64 = _u64.pack


def u64(value: bytes) -> int:
    """Return the number in the last eight bytes of *value*."""
    return _u64.unpack_from(value, len(value) - 8)[0]


def u32(value: bytes) -> int:
    """Return the number in the last four bytes of *value*."""
    return _u32.unpack_from(value, len(value) - 4)[0]


def store(no: StoreNo) -> bytes:
    """Key of a store; also the prefix of all of its rows."""
    return _u32.pack(no)


def node(number: Node) -> bytes:
    """Key of a node; also the prefix of its versions in by_note."""
    return _u64.pack(number)


def entries(no: StoreNo, parent: Node) -> bytes:
    """Prefix of the entries of a folder, which scan in name order."""
    return _u32_u64.pack(no, parent)


def dentry(no: StoreNo, parent: Node, name: str) -> bytes:
    """Key of one entry of a folder."""
    return _u32_u64.pack(no, parent) + name.encode()


def dentry_name(key: bytes) -> str:
    """Return the name in a dentry's key."""
    return key[12:].decode()


def dentry_value(number: Node, kind: int) -> bytes:
    """Value of a dentry."""
    return _u64_u8.pack(number, kind)


def parse_dentry(value: bytes) -> tuple[Node, int]:
    """Return node and kind of a dentry's value."""
    number, kind = _u64_u8.unpack(value)
    return Node(number), kind


def in_store(no: StoreNo, number: int) -> bytes:
    """Key of a version or setback (seq), archived note (node) or refused text (n) of a store."""
    return _u32_u64.pack(no, number)


def parse_in_store(key: bytes) -> tuple[StoreNo, int]:
    """Return store and number of such a key."""
    no, number = _u32_u64.unpack(key)
    return StoreNo(no), number


def sha256(digest: Sha256) -> bytes:
    """Key of a text."""
    return bytes.fromhex(digest)


def by_note(number: Node, seq: Seq) -> bytes:
    """Key of a version under its note."""
    return _u64_u64.pack(number, seq)


def by_operation(no: StoreNo, operation: Operation, seq: Seq) -> bytes:
    """Key of a version under what it did."""
    return _u32_u8_u64.pack(no, operation, seq)


def by_actor(no: StoreNo, actor: Actor, seq: Seq) -> bytes:
    """Key of a version under who made it; a 64-bit hash, so readers compare the record too."""
    who = xxhash.xxh3_64_intdigest(f"{actor.type}\0{actor.id}".encode())
    return _u32_u64_u64.pack(no, who, seq)


def live(worker: WorkerId, task: TaskId | str = "") -> bytes:
    """Key of a living task of a worker; without a task, the prefix of all of the worker's."""
    return f"{worker}\0{task}".encode()


def made(first: AttachmentNo) -> bytes:
    """Key of a task in the order of making, by its first attachment."""
    return _u32.pack(first)


def live_task(key: bytes) -> bytes:
    """Return the task's key of a `live` row."""
    return key.partition(b"\0")[2]
