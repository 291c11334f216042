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


class _Zstd(threading.local):
    """One of each a thread: they give up the GIL while they work, and sharing one mixes texts."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def pack(data: bytes) -> bytes:
    """Return *data* as bytes on disk: codec, checksum, then the text or its zstd frame.

    The checksum is xxh3 seeded with the codec, so that a damaged codec byte shows, too.
    """
    codec, body = RAW, data
    if len(data) >= _COMPRESS_FROM_BYTES:
        squeezed = _zstd.compressor.compress(data)
        if len(squeezed) < len(data) * 0.9:
            codec, body = ZSTD, squeezed
    return bytes([codec]) + xxhash.xxh3_64_digest(body, codec) + body


def unpack(key: bytes, value: bytes) -> bytes:
    """Return the text in *value*.

    Raises: Corrupt, naming the text's sha256.
    """
    body = value[9:]
    if len(value) >= 9 and value[1:9] == xxhash.xxh3_64_digest(body, value[0]):
        if value[0] == RAW:
            return body
        if value[0] == ZSTD:
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
    count = txn.get("reference", key)
    if count is None:
        txn.require_space()
        txn.put("content", key, pack(text.data))
    txn.put("reference", key, keys.pack_u64(1 + (0 if count is None else keys.u64(count))))


def add_again(txn: Txn, sha256: Sha256) -> None:
    """Keep a text that is already there for one more version."""
    key = keys.sha256(sha256)
    count = txn.get("reference", key)
    if count is None:
        raise Corrupt(f"missing text {sha256}: run `memfs check`")
    txn.put("reference", key, keys.pack_u64(1 + keys.u64(count)))


def drop(txn: Txn, sha256: Sha256) -> None:
    """Forget one use of a text; the last one removes it."""
    key = keys.sha256(sha256)
    count = txn.get("reference", key)
    left = 0 if count is None else keys.u64(count) - 1
    if left > 0:
        txn.put("reference", key, keys.pack_u64(left))
    else:
        txn.delete("reference", key)
        txn.delete("content", key)


def get(txn: Txn, sha256: Sha256) -> bytes:
    """Return the text with that sha256.

    Raises: Corrupt, also when it is missing (every living reference has its text).
    """
    key = keys.sha256(sha256)
    value = txn.get("content", key)
    if value is None:
        raise Corrupt(f"missing text {sha256}: run `memfs check`")
    return unpack(key, value)
