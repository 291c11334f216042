"""Texts by sha256: stored once for all versions, compressed where it pays (FORMAT: Contents)."""

import threading

import xxhash
import zstandard

from memfs.errors import Corrupt
from memfs.store import keys
from memfs.store.env import Txn
from memfs.types import Sha256, Text

RAW, ZSTD = 0, 1
_COMPRESS_FROM_BYTES = 128  # below, the frame costs more than it saves
_LEVEL = 3
_USES = 8  # bytes
_HEADER = _USES + 1 + 8


class _Zstd(threading.local):
    """One of each a thread: they give up the GIL while they work, and sharing one mixes texts."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def pack(data: bytes, uses: int = 1) -> bytes:
    """Return *data* as bytes on disk: uses, codec, checksum, then the text or its zstd frame.

    The checksum is xxh3 seeded with the codec, so that a damaged codec byte shows, too.
    """
    codec, body = RAW, data
    if len(data) >= _COMPRESS_FROM_BYTES:
        squeezed = _zstd.compressor.compress(data)
        if len(squeezed) < len(data) * 0.9:
            codec, body = ZSTD, squeezed
    head = keys.pack_u64(uses) + bytes([codec])
    return head + xxhash.xxh3_64_digest(body, codec) + body


def uses(value: bytes) -> int:
    """Return how many versions and refused texts have the text in *value*."""
    return keys.u64(value[:_USES]) if len(value) >= _USES else 0


def unpack(key: bytes, value: bytes) -> bytes:
    """Return the text in *value*.

    Raises: Corrupt, naming the text's sha256.
    """
    body = value[_HEADER:]
    if len(value) >= _HEADER:
        codec = value[_USES]
        if value[_USES + 1 : _HEADER] == xxhash.xxh3_64_digest(body, codec):
            if codec == RAW:
                return body
            if codec == ZSTD:
                try:
                    return _zstd.decompressor.decompress(body)
                except zstandard.ZstdError:
                    pass
    raise Corrupt(f"damaged text {key.hex()}: run `memfs check`")


def add(txn: Txn, text: Text) -> None:
    """Keep *text* for one more version.

    Raises: NoSpace (before anything is changed).
    """
    key = keys.sha256(text.sha256)
    value = txn.get("content", key)
    if value is None:
        txn.require_space()
        txn.put("content", key, pack(text.data))
    else:
        _count(txn, key, value, 1)


def add_again(txn: Txn, sha256: Sha256) -> None:
    """Keep a text that is already there for one more version."""
    key = keys.sha256(sha256)
    _count(txn, key, _found(txn, key), 1)


def drop(txn: Txn, sha256: Sha256) -> None:
    """Forget one use of a text; the last one removes it."""
    key = keys.sha256(sha256)
    value = txn.get("content", key)
    if value is not None:
        _count(txn, key, value, -1)


def get(txn: Txn, sha256: Sha256) -> bytes:
    """Return the text with that sha256.

    Raises: Corrupt, also when it is missing (every living reference has its text).
    """
    key = keys.sha256(sha256)
    return unpack(key, _found(txn, key))


def _found(txn: Txn, key: bytes) -> bytes:
    value = txn.get("content", key)
    if value is None:
        raise Corrupt(f"missing text {key.hex()}: run `memfs check`")
    return value


def _count(txn: Txn, key: bytes, value: bytes, by: int) -> None:
    left = uses(value) + by
    if left > 0:
        txn.put("content", key, keys.pack_u64(left) + value[_USES:])
    else:
        txn.delete("content", key)
