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
_HEADER = bytes([RECORD_FORMAT])
_encode = msgspec.msgpack.Encoder().encode


class Table(Generic[R]):
    """One table of records of one type."""

    def __init__(self, name: str, record: type[R]) -> None:
        self.name = name
        self._decode = msgspec.msgpack.Decoder(record).decode

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
        return None if value is None else self.unpack(key, value)

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
NODE = Table("node", types.NodeInfo)
VERSION = Table("version", types.Version)
CHANGE = Table("change", types.Change)
WORKER = Table("worker", types.Worker)
TASK = Table("task", types.Task)
REFUSED = Table("refused", types.Refused)
