"""One LMDB environment, one process: open, lock, read, write (FORMAT: Files).

The rest of memfs sees `Txn` only: get, put, delete, ordered scan, and counters. It promises
serialisable writes; nothing outside this package may assume LMDB.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, cast

import lmdb

from memfs.errors import Corrupt, FormatTooNew, InUse, NoSpace
from memfs.store import keys, upgrade

FORMAT = 3  # FORMAT.md's version; a change there comes with an upgrade here
MAP_SIZE_BYTES = 64 * 2**30  # address space, not disk: the file grows with use
RESERVE_BYTES = 16 * 2**20  # kept back from growing writes, so that deletes still find pages
_PAGE_BYTES = 4096
_READERS = 126
_ROOM_CHECK_S = 0.05  # at most a tenth of the reserve can be written in this time


class Txn:
    """A read or write transaction; use as a `with` block inside one function call."""

    __slots__ = ("_dbi", "_env", "_txn", "puts")

    def __init__(self, env: "Env", txn: lmdb.Transaction) -> None:
        self._env = env
        self._txn = txn
        self._dbi = env.dbis
        self.puts = 0  # writes so far; the service asks whether a refused rule left something

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._txn.commit()
            except lmdb.Error as error:
                _raise_ours(error)
        else:
            self._txn.abort()

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a copy of the value at *key*, or None."""
        try:
            return self._txn.get(key, db=self._dbi[table])  # pyright: ignore[reportReturnType] - without buffers it is bytes
        except lmdb.Error as error:
            _raise_ours(error)

    def get_many(self, table: str, wanted: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (key, value) for those of *wanted* that are there, in the order given."""
        try:
            with self._txn.cursor(db=self._dbi[table]) as cursor:
                return cursor.getmulti(wanted)  # pyright: ignore[reportReturnType]
        except lmdb.Error as error:
            _raise_ours(error)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write *value* at *key*.

        Raises: NoSpace; the transaction is then unusable.
        """
        self.puts += 1
        try:
            self._txn.put(key, value, db=self._dbi[table])
        except lmdb.Error as error:
            _raise_ours(error)

    def delete(self, table: str, key: bytes) -> bool:
        """Remove *key*; False if it was not there."""
        self.puts += 1
        try:
            return self._txn.delete(key, db=self._dbi[table])
        except lmdb.Error as error:
            _raise_ours(error)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values below *prefix* in key order (or backwards).

        start: first key to yield, at or after (backwards: at or before) it; None starts at the
        edge. The caller bounds how far it goes.
        """
        with self._txn.cursor(db=self._dbi[table]) as cursor:
            if reverse:
                # one before the first key past start, or past all that begin with prefix
                edge = start if start is not None else _after(prefix)
                if not edge or not cursor.set_range(edge):
                    found = cursor.last()
                else:
                    found = cursor.key() == start or cursor.prev()
                step = cursor.iterprev
            else:
                found = (
                    cursor.set_range(prefix if start is None else start)
                    if (prefix or start)
                    else cursor.first()
                )
                step = cursor.iternext
            if not found:
                return
            for row in cast("Iterator[tuple[bytes, bytes]]", step()):
                if not row[0].startswith(prefix):
                    return
                yield row

    def values(self, table: str, prefix: bytes, start: bytes | None, limit: int) -> list[bytes]:
        """Return the values of up to *limit* rows below *prefix*, in key order from *start*.

        A quarter of the time of `scan`: keys are looked at only where they may end.
        """
        with self._txn.cursor(db=self._dbi[table]) as cursor:
            if not cursor.set_range(prefix if start is None else start):
                return []
            rows = cursor.iternext(keys=False, values=True)
            found = cast("list[bytes]", list(islice(rows, limit)))
            if len(found) == limit and cast("bytes", cursor.key()).startswith(prefix):
                return found
        return [value for _, value in islice(self.scan(table, prefix, start), limit)]

    def count(self, table: str) -> int:
        """Return the number of rows of *table*."""
        return self._txn.stat(self._dbi[table])["entries"]

    def counter(self, name: str) -> int:
        """Return the last number that `next` gave out for *name*, 0 if none."""
        value = self.get("meta", name.encode())
        return 0 if value is None else keys.u64(value)

    def next(self, name: str) -> int:
        """Return a number never given out before for *name*, counting from 1."""
        number = self.counter(name) + 1
        self.put("meta", name.encode(), keys.pack_u64(number))
        return number

    def require_space(self) -> None:
        """Check that a growing write leaves room for deletes.

        Raises: NoSpace (nothing was changed).
        """
        self._env.require_space(self._txn)


def _after(prefix: bytes) -> bytes:
    """Return the first key past all that begin with *prefix*, empty if there can be none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b""


class Env:
    """The open data directory; at most one in the world at a time."""

    def __init__(self, path: Path, map_size_bytes: int = MAP_SIZE_BYTES) -> None:
        """Open or create the environment in the folder *path*.

        Raises: InUse (another process holds it, named), FormatTooNew, NoSpace.
        """
        self.path = path.resolve()
        self.map_size_bytes = map_size_bytes
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._roomy_until = 0.0
        self._lock = _Lock(self.path / "daemon.lock")
        try:
            self._env = lmdb.open(
                str(self.path),
                map_size=map_size_bytes + RESERVE_BYTES,
                max_dbs=len(keys.TABLES) + 8,
                max_readers=_READERS,
                mode=0o600,
            )
        except lmdb.Error as error:
            self._lock.close()
            _raise_ours(error)
        except BaseException:
            self._lock.close()
            raise
        try:
            self._env.reader_check()
            # meta first: a newer format is refused before any table is made
            self.dbis = {"meta": self._env.open_db(b"meta")}
            found = self._check_format()
            self.dbis |= {name: self._env.open_db(name.encode()) for name in keys.TABLES}
            if found < FORMAT:
                with self.write() as txn:
                    upgrade.run(txn, found)
                    txn.put("meta", b"format", keys.pack_u64(FORMAT))
        except lmdb.Error as error:
            self.close()
            _raise_ours(error)
        except BaseException:
            self.close()
            raise

    def _check_format(self) -> int:
        with self.write() as txn:
            found = txn.counter("format")
            if found > FORMAT:
                raise FormatTooNew(
                    f"{self.path} has format {found}, this memfs knows {FORMAT}: "
                    "install a newer memfs"
                )
            if found == 0:
                txn.put("meta", b"format", keys.pack_u64(FORMAT))
            return found or FORMAT

    def read(self) -> Txn:
        """Begin a read transaction: a snapshot, about a microsecond, never across an await."""
        return Txn(self, self._env.begin())

    def write(self) -> Txn:
        """Begin the write transaction; committed with one fsync when the block ends well."""
        return Txn(self, self._env.begin(write=True))

    def reader_check(self) -> int:
        """Free the reader slots of dead processes and return how many there were."""
        return self._env.reader_check()

    def close(self) -> None:
        """Close the environment and release the lock."""
        self._env.close()
        self._lock.close()

    def copy(self, target: Path) -> None:
        """Write a compacted, consistent copy into the empty folder *target*."""
        self._env.copy(str(target), compact=True)

    def used_bytes(self) -> int:
        """Return the size of the data file up to its last page in use."""
        return (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES

    def free_bytes(self) -> int:
        """Return what may still be written: the smaller of the map's and the disk's room."""
        disk = os.statvfs(self.path)
        with self._env.begin() as txn:
            room = self.map_size_bytes - self._live_bytes(txn)
        return max(0, min(room, disk.f_bavail * disk.f_frsize))

    def require_space(self, txn: lmdb.Transaction | None = None) -> None:
        """Raise NoSpace when less than the reserve is left on the disk or in the map.

        txn: in which to count pages, if it comes to that; a snapshot of its own otherwise.
        Asked again only after a while: what can be written meanwhile fits the reserve.
        """
        now = time.monotonic()
        if now < self._roomy_until:
            return
        disk = os.statvfs(self.path)
        if disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
            raise NoSpace(f"the disk of {self.path} is full: free some space, then write again")
        if self.used_bytes() > self.map_size_bytes:
            with nullcontext(txn) if txn is not None else self._env.begin() as counting:
                live = self._live_bytes(counting)
            if live > self.map_size_bytes:
                raise NoSpace(
                    f"the map of {self.path} is full ({self.map_size_bytes} bytes): delete notes "
                    "or restart with a larger --map-size"
                )
        self._roomy_until = now + _ROOM_CHECK_S

    def _live_bytes(self, txn: lmdb.Transaction) -> int:
        """Return the size of the pages that tables use; the others below the mark are free."""
        pages = 0
        for dbi in self.dbis.values():
            stat = txn.stat(dbi)
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * _PAGE_BYTES


class _Lock:
    """An flock held for the life of the process; the file names the pid for the message."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise InUse(
                f"{path.parent} is in use by process {pid}: stop the daemon first (Ctrl-C where it "
                f"runs, or `kill {pid}`)"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._fd)


def _raise_ours(error: lmdb.Error) -> NoReturn:
    """Raise LMDB's error as ours: full is NoSpace, damage is Corrupt; the rest is a bug."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or "No space left" in str(error):
        raise NoSpace(
            "the data directory is full: delete notes, or give it a larger disk or map"
        ) from error
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        raise Corrupt(f"the data file is damaged ({error}): run `memfs check`") from error
    raise error
