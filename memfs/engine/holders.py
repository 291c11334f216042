"""What holds a credential that was registered too late to refuse it (SEMANTICS: Secrets)."""

from collections.abc import Iterator
from typing import NamedTuple

from memfs.engine.secrets import Registered, SecretRecord
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, REFUSED, STORE, VERSION
from memfs.types import NoteId, Sha256, Store, Version


class Holder(NamedTuple):
    """A note, or a refused text, that holds the credential.

    path: the note's last one that is known. current: its text now, not only an older one.
    versions: how many older ones do. refused: the number of a refused text, which is no note.
    """

    store: Store
    path: str
    note_id: NoteId | None = None
    current: bool = False
    versions: int = 0
    refused: int | None = None


def find(txn: Txn, record: SecretRecord) -> list[Holder]:
    """Return everything in the workspace that holds a registered credential, store by store.

    Reads every text once, then, if one holds it, every version; it is for a thread.
    """
    registered = Registered(record)
    texts = {
        Sha256(key.hex())
        for key, value in txn.scan("content")
        if registered.found_in(content.unpack(key, value))
    }
    if not texts:
        return []
    return [one for _, store in STORE.scan(txn) for one in _in_store(txn, store, texts)]


def _in_store(txn: Txn, store: Store, texts: set[Sha256]) -> Iterator[Holder]:
    found: dict[NoteId, list[Version]] = {}
    for _, version in VERSION.scan(txn, keys.store(store.no)):
        if version.sha256 in texts:
            found.setdefault(version.note_id, []).append(version)
    for note_id, older in found.items():
        last = older[-1]
        info = NODE.get(txn, keys.node(last.node))
        current = info is not None and info.note is not None and info.note.sha256 in texts
        yield Holder(
            store, _path(txn, last), note_id, current=current, versions=len(older) - current
        )
    for _, refused in REFUSED.scan(txn, keys.store(store.no)):
        if refused.sha256 in texts:
            yield Holder(store, refused.path, refused=refused.n)


def _path(txn: Txn, holding: Version) -> str:
    """Return the newest path of a note that a version of it still says."""
    for key, _ in txn.scan("by_note", keys.node(holding.node), reverse=True):
        version = VERSION.get(txn, keys.in_store(holding.store, keys.u64(key)))
        if version is not None and version.path is not None:
            return version.path
    return holding.path or ""
