"""Every invariant of FORMAT.md, verified in one snapshot and named when it does not hold."""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import lmdb
import xxhash

from memfs import ids, limits
from memfs.errors import Corrupt
from memfs.store import content, keys
from memfs.store.env import FORMAT, Env, Txn
from memfs.store.records import (
    CHANGE,
    KEY,
    NODE,
    RECORD_FORMAT,
    REFUSED,
    STORE,
    TASK,
    VERSION,
    WORKER,
    Table,
)
from memfs.types import (
    Access,
    AttachmentNo,
    ChangeKind,
    Node,
    NodeInfo,
    NoteInfo,
    Operation,
    Power,
    Seq,
    Sha256,
    Store,
    StoreNo,
    Version,
    WorkerId,
)

R = TypeVar("R")

_KEY_BYTES = {
    "store": (4, 4), "node": (8, 8), "dentry": (13, keys.DENTRY_BYTES), "archived": (12, 12),
    "content": (32, 32), "version": (12, 12), "by_note": (16, 16), "by_operation": (13, 13),
    "by_actor": (20, 20), "setback": (12, 12), "change": (8, 8), "refused": (12, 12),
    "key": (32, 32), "made": (4, 4),
}  # fmt: skip
_TEXT_KEYS = frozenset(("meta", "worker", "task", "credential", "live"))
_EMPTY_VALUES = frozenset(("archived", "by_note", "by_operation", "by_actor", "setback", "live"))
_COUNTERS = ("node", "store", "attachment")


def check(env: Env) -> list[str]:
    """Return one line for each thing that breaks FORMAT.md: table, key, what is wrong and which I.

    Empty: every invariant holds. A damaged row is named once and the rest is still checked.
    Memory grows with the number of notes and of different texts, not with texts or versions. The
    snapshot is held throughout, so pages that a writer frees meanwhile are not used again.
    """
    with env.read() as txn:
        checker = _Checker(txn)
        for part in checker.parts():
            try:
                part()
            except lmdb.Error as error:
                checker.say("data.mdb", b"", f"cannot be read further ({error})")
        return list(checker.problems)


class _Use(NamedTuple):
    """What the records say about one text."""

    times: int
    size_bytes: int


class _Checker:
    """Collects problems; the parts run in order, later ones use what earlier ones found."""

    def __init__(self, txn: Txn) -> None:
        self.txn = txn
        self.problems: dict[str, None] = {}  # in order, each once
        self.damaged: set[tuple[str, bytes]] = set()
        self.counters: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self.stores: dict[StoreNo, Store | None] = {}  # None: damaged
        self.reached: set[Node] = set()
        self.uses: dict[bytes, _Use] = {}

    def parts(self) -> tuple[Callable[[], None], ...]:
        return (
            self.meta, self.stores_, self.trees, self.dentries, self.nodes, self.archived,
            self.versions, self.histories, self.by_operation, self.by_actor, self.setbacks,
            self.refused, self.contents, self.changes, self.workers,
            self.tasks, self.live, self.made, self.keys_, self.credentials,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------- reading

    def say(self, table: str, key: bytes, what: str) -> None:
        """Note a problem."""
        shown = key.hex()
        if table in _TEXT_KEYS:
            shown = ascii(key.decode(errors="backslashreplace"))[1:-1]
        self.problems[f"{table} {shown}: {what}" if key else f"{table}: {what}"] = None

    def raw(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a table whose key has the right form, naming the others."""
        least, most = _KEY_BYTES.get(table, (1, 511))
        for key, value in self.txn.scan(table, prefix):
            if not least <= len(key) <= most:
                self.say(table, key, "the key has a wrong length (I1)")
                continue
            if value and table in _EMPTY_VALUES:
                self.say(table, key, "the value is not empty (I1)")
            yield key, value

    def rows(self, table: Table[R]) -> Iterator[tuple[bytes, R]]:
        """Yield the records of a table, naming those that are damaged."""
        for key, value in self.raw(table.name):
            record = self.unpack(table, key, value)
            if record is not None:
                yield key, record

    def unpack(self, table: Table[R], key: bytes, value: bytes) -> R | None:
        """Return a record, None if it is damaged; named the first time."""
        try:
            return table.unpack(key, value)
        except Corrupt:
            if (table.name, key) not in self.damaged:
                self.damaged.add((table.name, key))
                what = "the record's checksum is wrong"
                if value[1:9] == xxhash.xxh3_64_digest(value[9:]):
                    what = "the record has an unknown format or shape"
                self.say(table.name, key, f"{what} (I1)")
            return None

    def find(self, table: Table[R], key: bytes) -> R | None:
        """Return a record, None if it is missing or damaged; `lacks` tells which."""
        value = self.txn.get(table.name, key)
        return None if value is None else self.unpack(table, key, value)

    def lacks(self, table: Table[R], key: bytes) -> bool:
        """Return whether there is no such row, damaged or not."""
        return self.txn.get(table.name, key) is None

    def has_store(self, table: str, key: bytes, no: StoreNo) -> bool:
        """Return whether a store exists, naming the row that says so."""
        if no not in self.stores:
            self.say(table, key, f"store {no} does not exist (I17)")
            return False
        return True

    def number(self, table: str, key: bytes, counter: str, number: int) -> None:
        """Check that a number was given out."""
        if not 0 < number <= self.counters[counter]:
            self.say(
                table,
                key,
                f"{counter} {number} is above its counter {self.counters[counter]} (I13)",
            )

    # ----------------------------------------------------------------------------------- tables

    def meta(self) -> None:
        known = {"format", "live_shared", "retention", *_COUNTERS}
        for key, value in self.raw("meta"):
            name = key.decode(errors="backslashreplace")
            if name not in known or len(value) != 8:
                self.say("meta", key, "no counter of this format (I13)")
            elif name in self.counters:
                self.counters[name] = keys.u64(value)
            elif name == "format" and not 0 < keys.u64(value) <= FORMAT:
                self.say("meta", key, f"format {keys.u64(value)} is unknown (I13)")

    def stores_(self) -> None:
        shared = 0
        for key, value in self.raw("store"):
            store = self.unpack(STORE, key, value)
            no = StoreNo(keys.u32(key))
            self.stores[no] = store
            self.number("store", key, "store", no)
            if store is None:
                continue
            shared += store.archived_at is None and store.worker_id is None
            if store.no != no:
                self.say("store", key, f"the record says it is store {store.no} (I1)")
            root = self.find(NODE, keys.node(store.root))
            if root is None:
                if self.lacks(NODE, keys.node(store.root)):
                    self.say("store", key, f"its root, node {store.root}, is missing (I4)")
            elif (
                (root.store, root.parent, root.name) != (no, 0, "")
                or root.note is not None
                or not root.kept
            ):
                self.say("store", key, f"node {store.root} is not a root folder of it (I4)")
            self.id("store", key, store.id, "memstore_", no)
        counted = self.txn.get("meta", b"live_shared")
        counted = 0 if counted is None or len(counted) != 8 else keys.u64(counted)
        if counted != shared and None not in self.stores.values():
            self.say("meta", b"live_shared", f"is {counted}, there are {shared} such stores (I13)")

    def id(self, table: str, key: bytes, name: str, prefix: str, number: int) -> None:
        """Check that an id ends in the number of what it names."""
        if ids.number(name, prefix) != number:
            self.say(table, key, f"id {name} is not that of number {number} (I11)")

    def trees(self) -> None:
        """Walk down every store, so that what was not reached is known afterwards."""
        for no, store in self.stores.items():
            if store is None:
                continue
            notes = 0
            self.reached.add(store.root)
            below = [(store.root, 0, 0)]
            while below:
                folder, depth, size = below.pop()
                for key, value in self.raw("dentry", keys.entries(no, folder)):
                    if len(value) != 9:
                        continue  # dentries names it
                    node, kind = keys.parse_dentry(value)
                    path_bytes = size + len(key) - 11  # a slash and the name
                    if depth >= limits.PATH_SEGMENTS or path_bytes > limits.PATH_BYTES:
                        self.say("dentry", key, "its path is too long (I6)")
                    notes += kind == keys.NOTE
                    if node in self.reached:
                        self.say("dentry", key, f"node {node} is reached twice (I5)")
                        continue
                    self.reached.add(node)
                    if kind == keys.FOLDER:
                        below.append((node, depth + 1, path_bytes))
            if notes != store.notes:
                self.say("store", keys.store(no), f"notes is {store.notes}, it has {notes} (I4)")

    def dentries(self) -> None:
        for key, value in self.raw("dentry"):
            if len(value) != 9:
                self.say("dentry", key, "the value is not a node and a kind (I1)")
                continue
            self.dentry(key, *keys.parse_dentry(value))

    def dentry(self, key: bytes, node: Node, kind: int) -> None:
        no, parent = keys.parse_in_store(key[:12])
        try:
            name = keys.dentry_name(key)
        except UnicodeDecodeError:
            self.say("dentry", key, "the name is not UTF-8 (I6)")
            return
        if name in (".", "..") or "/" in name or "\0" in name:
            self.say("dentry", key, "the name cannot be a name (I6)")
        if kind not in (keys.FOLDER, keys.NOTE):
            self.say("dentry", key, f"kind {kind} is unknown (I5)")
        if (
            self.has_store("dentry", key, no)
            and self.stores[no] is not None
            and parent not in self.reached
        ):
            self.say("dentry", key, "its folder is not reached from the root (I5)")
        folder = self.find(NODE, keys.node(Node(parent)))
        if folder is None:
            if self.lacks(NODE, keys.node(Node(parent))):
                self.say("dentry", key, f"its folder, node {parent}, is missing (I5)")
        elif folder.note is not None or folder.store != no:
            self.say("dentry", key, f"node {parent} is not a folder of this store (I5)")
        info = self.find(NODE, keys.node(node))
        if info is None:
            if self.lacks(NODE, keys.node(node)):
                self.say("dentry", key, f"leads to node {node}, which is missing (I5)")
            return
        if (info.store, info.parent, info.name) != (no, parent, name):
            self.say("dentry", key, f"leads to node {node}, which has another place (I5)")
        if kind != (keys.FOLDER if info.note is None else keys.NOTE):
            self.say("dentry", key, f"node {node} is not of kind {kind} (I5)")

    def nodes(self) -> None:
        for key, info in self.rows(NODE):
            if info.node != keys.u64(key):
                self.say("node", key, f"the record says it is node {info.node} (I1)")
                continue
            self.number("node", key, "node", info.node)
            if info.mode & ~0o777:
                self.say("node", key, f"mode {info.mode:o} has other bits (I6)")
            if self.has_store("node", key, info.store):
                self.place(key, info)
            if info.note is not None:
                self.id("node", key, info.note.id, "mem_", info.node)
                self.head(key, info, info.note)

    def place(self, key: bytes, info: NodeInfo) -> None:
        """Check that a node is where its record says."""
        if info.parent == 0:
            store = self.stores[info.store]
            if info.note is not None:
                row = self.txn.get("archived", keys.in_store(info.store, info.node))
                if row is None or info.note.archived_at is None:
                    self.say("node", key, "a note without a folder that is not archived (I7)")
            elif store is not None and store.root != info.node:
                self.say("node", key, "a folder without a folder that is no root (I5)")
            return
        if info.note is not None and info.note.archived_at is not None:
            self.say("node", key, "an archived note that is in the tree (I7)")
        kind = keys.FOLDER if info.note is None else keys.NOTE
        fits = 0 < len(info.name.encode()) <= limits.SEGMENT_BYTES
        entry = fits and self.txn.get("dentry", keys.dentry(info.store, info.parent, info.name))
        if entry != keys.dentry_value(info.node, kind):
            self.say("node", key, "its folder has no such entry (I5)")
        elif info.node not in self.reached and self.stores[info.store] is not None:
            self.say("node", key, "is not reached from the root of its store (I5)")

    def head(self, key: bytes, info: NodeInfo, note: NoteInfo) -> None:
        """Check that a note's node names its newest version."""
        newest = next(self.txn.scan("by_note", keys.node(info.node), reverse=True), None)
        if newest is None or keys.u64(newest[0]) != note.head_seq:
            self.say("node", key, f"version {note.head_seq} is not the note's newest (I10)")
        where = keys.in_store(info.store, note.head_seq)
        version = self.find(VERSION, where)
        if version is None:
            if self.lacks(VERSION, where):
                self.say("node", key, f"its head, version {note.head_seq}, is missing (I10)")
            return
        if (version.id, version.note_id, version.node) != (note.version_id, note.id, info.node) or (
            version.ordinal,
            version.sha256,
            version.size_bytes,
        ) != (note.ordinal, note.sha256, note.size_bytes):
            self.say("node", key, f"its head, version {note.head_seq}, says otherwise (I10)")
        if version.operation is Operation.DELETED or version.redacted_at is not None:
            self.say("node", key, f"its head, version {note.head_seq}, has no text (I10)")
        elif version.path != (path := self.path_of(info)) and path is not None:
            self.say("node", key, f"its head, version {note.head_seq}, has another path (I10)")

    def path_of(self, info: NodeInfo) -> str | None:
        """Return a node's path, None when the way up is broken."""
        if info.parent == 0:
            return info.name
        names: list[str] = []
        for _ in range(limits.PATH_SEGMENTS + 1):
            if info.parent == 0:
                return "/" + "/".join(reversed(names))
            names.append(info.name)
            above = self.find(NODE, keys.node(info.parent))
            if above is None:
                return None
            info = above
        return None

    def archived(self) -> None:
        for key, _ in self.raw("archived"):
            no, number = keys.parse_in_store(key)
            self.has_store("archived", key, no)
            info = self.find(NODE, keys.node(Node(number)))
            if info is None:
                if self.lacks(NODE, keys.node(Node(number))):
                    self.say("archived", key, f"node {number} is missing (I7)")
            elif info.store != no or info.parent != 0 or info.note is None:
                self.say("archived", key, f"node {number} is no archived note of it (I7)")

    def versions(self) -> None:
        for key, version in self.rows(VERSION):
            no, number = keys.parse_in_store(key)
            if (version.store, version.seq) != (no, number):
                self.say("version", key, "the record says it is another version (I1)")
                continue
            self.has_store("version", key, no)
            self.number("version", key, "node", version.node)
            self.id("version", key, version.id, "memver_", number)
            self.id("version", key, version.note_id, "mem_", version.node)
            for table, row in _index_rows(version):
                if self.txn.get(table, row) is None:
                    self.say("version", key, f"its row in {table} is missing (I8)")
            self.fields(key, version)
            self.logged(key, version)
            if version.sha256 is not None:
                self.use("version", key, version.sha256, version.size_bytes)

    def fields(self, key: bytes, version: Version) -> None:
        """Check which fields a version has."""
        redacted = version.redacted_at is not None
        if redacted != (version.redacted_by is not None):
            self.say("version", key, "redacted_at without redacted_by, or the reverse (I9)")
        if redacted != (version.path is None):
            self.say("version", key, "a path though redacted, or no path (I9)")
        empty = redacted or version.operation is Operation.DELETED
        if empty != (version.sha256 is None) or empty != (version.size_bytes is None):
            self.say("version", key, "a sha256 or size that it cannot have, or none (I9)")
        if (version.operation is Operation.CREATED) != (version.ordinal == 1):
            self.say("version", key, f"{version.operation.word} has ordinal {version.ordinal} (I9)")

    def logged(self, key: bytes, version: Version) -> None:
        """Check that the change log has a version."""
        row = self.find(CHANGE, keys.pack_u64(version.seq))
        if row is None:
            if self.lacks(CHANGE, keys.pack_u64(version.seq)):
                self.say("version", key, "has no change row (I12)")
            return
        if (row.kind, row.store, row.node, row.operation, row.subject) != (
            ChangeKind.NOTE,
            version.store,
            version.node,
            version.operation,
            version.note_id,
        ):
            self.say("version", key, "its change row says otherwise (I12)")
        if version.redacted_at is not None and (row.name or row.old_name):
            self.say("version", key, "is redacted and its change row has a name (I12)")

    def use(self, table: str, key: bytes, sha256: Sha256, size_bytes: int | None) -> None:
        """Count one use of a text."""
        try:
            text = keys.sha256(sha256)
        except ValueError:
            text = b""
        if len(text) != 32:
            self.say(table, key, "the sha256 is none (I1)")
            return
        size_bytes = -1 if size_bytes is None else size_bytes
        before = self.uses.get(text, _Use(0, size_bytes))
        self.uses[text] = _Use(before.times + 1, before.size_bytes)
        if before.size_bytes != size_bytes:
            self.say(table, key, f"size_bytes is {size_bytes}, elsewhere {before.size_bytes} (I3)")
        if before.times == 0 and self.txn.get("content", text) is None:
            self.say(table, key, f"its text {text.hex()} is missing (I3)")

    def histories(self) -> None:
        """Check the versions of each node, oldest first."""
        last: Version | None = None
        for key, _ in self.raw("by_note"):
            node, seq = Node(keys.u64(key[:8])), Seq(keys.u64(key))
            version = self.version_at("by_note", key, seq)
            if last is not None and last.node != node:
                self.history_end(last)
                last = None
            if version is None:
                last = None
                continue
            if version.node != node:
                self.say("by_note", key, f"version {seq} is of node {version.node} (I8)")
                continue
            if last is not None:
                if version.ordinal != last.ordinal + 1:
                    self.say("by_note", key, f"ordinal {version.ordinal} after {last.ordinal} (I9)")
                if version.note_id != last.note_id:
                    self.say("by_note", key, "the node's versions have several note ids (I9)")
                if last.operation is Operation.DELETED:
                    self.say("by_note", key, "a version after the deleted one (I9)")
            last = version
        if last is not None:
            self.history_end(last)

    def history_end(self, last: Version) -> None:
        """Check that a note ended before it lost its node."""
        gone = self.lacks(NODE, keys.node(last.node))
        if gone and last.operation is not Operation.DELETED:
            key = keys.by_note(last.node, last.seq)
            self.say("by_note", key, "the note has no node and was not deleted (I10)")

    def version_at(self, table: str, key: bytes, seq: Seq) -> Version | None:
        """Return the version of a seq, which the change log places in its store."""
        row = self.find(CHANGE, keys.pack_u64(seq))
        places = [row.store] if row is not None else list(self.stores)
        for no in places:
            where = keys.in_store(no, seq)
            if not self.lacks(VERSION, where):
                return self.find(VERSION, where)
        self.say(table, key, f"version {seq} is missing (I8)")
        return None

    def by_operation(self) -> None:
        self.index("by_operation", lambda v: keys.by_operation(v.store, v.operation, v.seq))

    def by_actor(self) -> None:
        self.index("by_actor", lambda v: keys.by_actor(v.store, v.created_by, v.seq))

    def setbacks(self) -> None:
        """Check that where a store's versions go back in time, a row says so."""
        for key, _ in self.raw("setback"):
            self.has_store("setback", key, keys.parse_in_store(key)[0])
        before: Version | None = None
        for key, version in self.rows(VERSION):
            if before is not None and before.store == version.store:
                after = keys.in_store(version.store, before.seq + 1)
                row = next(self.txn.scan("setback", keys.store(version.store), after), None)
                told = row is not None and row[0] <= key
                if version.created_at < before.created_at and not told:
                    self.say("setback", key, "is missing: the version is older than the last (I8)")
            before = version

    def index(self, table: str, make_key: Callable[[Version], bytes]) -> None:
        """Check that every row of an index is that of a version."""
        for key, _ in self.raw(table):
            where = key[:4] + key[-8:]
            version = self.find(VERSION, where)
            if version is None:
                if self.lacks(VERSION, where):
                    self.say(table, key, f"version {keys.u64(key)} is missing (I8)")
            elif make_key(version) != key:
                self.say(table, key, f"version {keys.u64(key)} does not belong here (I8)")

    def refused(self) -> None:
        for key, refused in self.rows(REFUSED):
            no, n = keys.parse_in_store(key)
            if (refused.store, refused.n) != (no, n):
                self.say("refused", key, "the record says it is another one (I1)")
            if self.has_store("refused", key, no):
                store = self.stores[no]
                if store is not None and not 0 < n <= store.refused:
                    self.say("refused", key, f"the store's last one is {store.refused} (I16)")
            self.use("refused", key, refused.sha256, refused.size_bytes)

    def contents(self) -> None:
        # a damaged record may use any text
        unknown = sum(table in ("version", "refused") for table, _ in self.damaged)
        for key, value in self.raw("content"):
            use = self.uses.get(key)
            used, count = 0 if use is None else use.times, content.uses(value)
            if not max(used, 1) <= count <= used + unknown:
                self.say("content", key, f"counts {count} uses, it has {used} (I3)")
            try:
                text = content.unpack(key, value)
            except Corrupt:
                self.say("content", key, "the text's checksum or codec is wrong (I2)")
                continue
            if hashlib.sha256(text).digest() != key:
                self.say("content", key, "the text has another sha256 (I2)")
            if use is not None and use.size_bytes != len(text):
                self.say("content", key, f"has {len(text)} bytes, not {use.size_bytes} (I3)")

    def changes(self) -> None:
        seq = 0
        for key, value in self.raw("change"):
            seq += 1
            if keys.u64(key) != seq:
                self.say("change", key, f"does not follow {seq - 1} (I12)")
                seq = keys.u64(key)
            row = self.unpack(CHANGE, key, value)
            if row is None:
                continue
            if row.seq != seq:
                self.say("change", key, f"the record says it is row {row.seq} (I1)")
            for number, counter in ((row.store, "store"), (row.attachment, "attachment")):
                if number:
                    self.number("change", key, counter, number)
            for node in (row.node, row.parent, row.old_parent):
                if node:
                    self.number("change", key, "node", node)
            if (row.kind is ChangeKind.NOTE) != (row.operation is not None):
                self.say("change", key, "a note's row without operation, or the reverse (I12)")

    def workers(self) -> None:
        names: set[str] = set()
        for key, worker in self.rows(WORKER):
            if worker.id.encode() != key:
                self.say("worker", key, "the record has another id (I1)")
            if worker.name in names:
                self.say("worker", key, "another worker has the name (I14)")
            names.add(worker.name)
            store = self.stores.get(worker.store)
            if store is not None:
                if store.worker_id != worker.id or store.archived_at is not None:
                    self.say("worker", key, f"store {worker.store} is not its own (I14)")
            elif worker.store not in self.stores:
                self.say("worker", key, f"its store {worker.store} is missing (I14)")
        for store in self.stores.values():
            if store is not None and store.worker_id is not None:
                self.own_store(store, store.worker_id)

    def own_store(self, store: Store, worker_id: WorkerId) -> None:
        """Check that a worker's own store is the one the worker names."""
        key = worker_id.encode() or b"-"
        worker = self.find(WORKER, key)
        if self.lacks(WORKER, key) or (worker is not None and worker.store != store.no):
            self.say("store", keys.store(store.no), f"is not the store of {worker_id} (I14)")

    def tasks(self) -> None:
        numbers: set[AttachmentNo] = set()
        for key, task in self.rows(TASK):
            if task.id.encode() != key:
                self.say("task", key, "the record has another id (I1)")
            who = task.worker_id.encode() or b"-"
            worker = self.find(WORKER, who)
            if self.lacks(WORKER, who):
                self.say("task", key, f"its worker {task.worker_id} is missing (I15)")
            if task.deleted_at is not None and task.ended_at is None:
                self.say("task", key, "was deleted and has not ended (I15)")
            own = task.attachments[0] if task.attachments else None
            if own is None or own.access is not Access.READ_WRITE:
                self.say("task", key, "no own store, read-write, comes first (I15)")
            elif worker is not None and own.store != worker.store:
                self.say("task", key, "its first attachment is not its worker's store (I15)")
            if len(task.attachments) > limits.ATTACHMENTS_PER_TASK + 1:
                self.say("task", key, f"has {len(task.attachments)} attachments (I15)")
            if len({each.name for each in task.attachments}) < len(task.attachments):
                self.say("task", key, "two attachments have one name (I15)")
            for each in task.attachments:
                if each.no in numbers:
                    self.say("task", key, f"attachment {each.no} is there twice (I15)")
                numbers.add(each.no)
                self.number("task", key, "attachment", each.no)
                self.number("task", key, "store", each.store)
                store = self.stores.get(each.store)
                if store is not None and (store.id, store.root) != (each.store_id, each.root):
                    self.say("task", key, f"attachment {each.no} is of another store (I15)")

    def live(self) -> None:
        """Check that `live` is the tasks that have not ended."""
        listed = {key for key, _ in self.raw("live")}
        for key, task in self.rows(TASK):
            row = keys.live(task.worker_id, task.id)
            if task.ended_at is None and row not in listed:
                self.say("task", key, "has not ended and is not in `live` (I18)")
            if task.ended_at is None:
                listed.discard(row)
        for row in listed:  # a damaged task has been named already
            if ("task", keys.live_task(row)) not in self.damaged:
                self.say("live", row, "there is no such task that has not ended (I18)")

    def made(self) -> None:
        """Check that `made` is every task, in its place."""
        listed = dict(self.raw("made"))
        for key, task in self.rows(TASK):
            row = keys.made(task.attachments[0].no) if task.attachments else b""
            if listed.pop(row, None) != key:
                self.say("task", key, "is not in `made` under its first attachment (I18)")
        for row, key in listed.items():
            if ("task", key) not in self.damaged:
                self.say("made", row, "there is no task that begins with it (I18)")

    def keys_(self) -> None:
        seen: set[str] = set()
        for key, one in self.rows(KEY):
            if one.id in seen:
                self.say("key", key, f"the id {one.id} is there twice (I18)")
            seen.add(one.id)
            if (one.power is Power.AGENT) != (one.worker is not None):
                self.say("key", key, "an agent's key names a worker, others do not (I18)")
            elif one.worker is not None and self.lacks(WORKER, one.worker.encode()):
                self.say("key", key, f"its worker {one.worker} is missing (I18)")

    def credentials(self) -> None:
        for key, value in self.raw("credential"):
            body = value[9:]
            if value[:1] != bytes([RECORD_FORMAT]) or value[1:9] != xxhash.xxh3_64_digest(body):
                self.say("credential", key, "the record's checksum is wrong (I1)")


def _index_rows(version: Version) -> Iterator[tuple[str, bytes]]:
    store, seq = version.store, version.seq
    yield "by_note", keys.by_note(version.node, seq)
    if version.operation is not Operation.MODIFIED:
        yield "by_operation", keys.by_operation(store, version.operation, seq)
    yield "by_actor", keys.by_actor(store, version.created_by, seq)
