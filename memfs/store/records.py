"""Typed tables: a record is a format byte, a checksum and a msgpack array (FORMAT: Records)."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
import xxhash

from memfs import types
from memfs.errors import Corrupt
from memfs.store.env import Txn

R = TypeVar("R")

RECORD_FORMAT = 1
MEMO_RECORDS = 65_536
_HEADER = bytes([RECORD_FORMAT])
_encode = msgspec.msgpack.Encoder().encode


class Memo(Generic[R]):
    """Records by the bytes they were decoded from: what was unpacked lately needs no unpacking.

    Bytes decide, so nothing has to be told of a write. Two generations, each of at most
    MEMO_RECORDS: the older goes when the younger is full. Threads may share one.
    """

    def __init__(self) -> None:
        self.young: dict[bytes, R] = {}  # may be asked directly by those in a hurry
        self._old: dict[bytes, R] = {}

    def get(self, value: bytes) -> R | None:
        """Return the record that *value* was unpacked to, or None."""
        record = self.young.get(value)
        if record is None:
            record = self._old.get(value)
            if record is not None:
                self.add(value, record)
        return record

    def add(self, value: bytes, record: R) -> None:
        """Remember what *value* was unpacked to."""
        if len(self.young) >= MEMO_RECORDS:
            self._old, self.young = self.young, {}
        self.young[value] = record


class Table(Generic[R]):
    """One table of records of one type. memo: for one that is read far more than written."""

    def __init__(self, name: str, record: type[R], memo: Memo[R] | None = None) -> None:
        self.name = name
        self._decode = msgspec.msgpack.Decoder(record).decode
        self._memo = memo

    def pack(self, record: R) -> bytes:
        """Return *record* as bytes on disk."""
        body = _encode(record)
        return _HEADER + xxhash.xxh3_64_digest(body) + body

    def unpack(self, key: bytes, value: bytes) -> R:
        """Return the record in *value*.

        Raises: Corrupt, naming table and key, when format, checksum or shape are wrong.
        """
        body = value[9:]
        if value[:1] == _HEADER and value[1:9] == xxhash.xxh3_64_digest(body):
            try:
                return self._decode(body)
            except msgspec.MsgspecError:
                pass
        raise Corrupt(f"damaged record {key.hex()} in table {self.name}: run `memfs check`")

    def get(self, txn: Txn, key: bytes) -> R | None:
        """Return the record at *key*, or None."""
        value = txn.get(self.name, key)
        return None if value is None else self._read(key, value)

    def get_many(self, txn: Txn, wanted: list[bytes]) -> list[R]:
        """Return the records at those of the keys *wanted* that are there, in the order given."""
        found: list[R] = []
        known = self._memo.young if self._memo else {}
        for key, value in txn.get_many(self.name, wanted):
            record = known.get(value)
            found.append(self._read(key, value) if record is None else record)
        return found

    def _read(self, key: bytes, value: bytes) -> R:
        """Return the record in *value*, as `unpack`, from the memo if there is one."""
        memo = self._memo
        if memo is None:
            return self.unpack(key, value)
        record = memo.get(value)
        if record is None:
            record = self.unpack(key, value)
            memo.add(value, record)
        return record

    def put(self, txn: Txn, key: bytes, record: R) -> None:
        """Write *record* at *key*."""
        txn.put(self.name, key, self.pack(record))

    def delete(self, txn: Txn, key: bytes) -> None:
        """Remove the record at *key* if there is one."""
        txn.delete(self.name, key)

    def scan(
        self, txn: Txn, prefix: bytes = b"", start: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, R]]:
        """Yield keys and records below *prefix*; see Txn.scan."""
        for key, value in txn.scan(self.name, prefix, start, reverse=reverse):
            yield key, self.unpack(key, value)


STORE = Table("store", types.Store)
NODE = Table("node", types.NodeInfo, Memo())
VERSION = Table("version", types.Version)
CHANGE = Table("change", types.Change)
WORKER = Table("worker", types.Worker)
TASK = Table("task", types.Task)
REFUSED = Table("refused", types.Refused)
KEY = Table("key", types.Key)
