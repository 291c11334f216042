"""Stores: named sets of notes (SEMANTICS: Stores)."""

from collections.abc import Container, Iterator, Mapping

from memfs import ids, limits
from memfs.engine import log
from memfs.errors import Conflict, Invalid, LimitReached, NotFound, StoreArchived
from memfs.store import content, keys
from memfs.store.env import Txn
from memfs.store.records import NODE, REFUSED, STORE, VERSION
from memfs.types import (
    NO_NODE,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    Page,
    Store,
    StoreId,
    StoreNo,
    Time,
    WorkerId,
    evolve,
)

ROOT_MODE = 0o755


def create(
    txn: Txn,
    caller: Caller,
    now: Time,
    name: str,
    description: str = "",
    metadata: Mapping[str, str] | None = None,
    worker_id: WorkerId | None = None,
) -> Store:
    """Make an empty store and return it. worker_id: it is that worker's own, outside the limit.

    Raises: Invalid, LimitReached.
    """
    name = check_name(name)
    description = check_description(description)
    labels = patch_metadata({}, metadata or {})
    if worker_id is None and live_shared(txn) >= limits.LIVE_SHARED_STORES:
        raise LimitReached(
            f"the workspace has {limits.LIVE_SHARED_STORES} live stores: archive or delete one"
        )
    txn.require_space()
    no = StoreNo(txn.next("store"))
    root = Node(txn.next("node"))
    store = Store(
        no=no,
        id=StoreId(ids.new("memstore_", no)),
        name=name,
        description=description,
        metadata=labels,
        created_at=now,
        updated_at=now,
        root=root,
        worker_id=worker_id,
    )
    NODE.put(txn, keys.node(root), NodeInfo(root, no, NO_NODE, "", ROOT_MODE, now, now, kept=True))
    _put(txn, store)
    _record(txn, caller, now, store)
    return store


def get(txn: Txn, store_id: str) -> Store:
    """Return the store with that id, archived or not.

    Raises: NotFound.
    """
    no = ids.number(store_id, "memstore_")
    if no is not None and no < 2**32:
        store = STORE.get(txn, keys.store(StoreNo(no)))
        if store is not None and store.id == store_id:
            return store
    raise unknown(store_id)


def unknown(store_id: str) -> NotFound:
    """Return what is said of a store that is not there, or not for this caller."""
    return NotFound(f"no memory store {store_id!r}: list them with `memfs store list`")


def by_no(txn: Txn, no: StoreNo) -> Store:
    """Return the store with that number.

    Raises: NotFound.
    """
    store = STORE.get(txn, keys.store(no))
    if store is None:
        raise NotFound("the memory store was deleted: list stores with `memfs store list`")
    return store


def everything(txn: Txn, *, newest_first: bool = False) -> Iterator[Store]:
    """Yield every store in the order of making."""
    for _, store in STORE.scan(txn, reverse=newest_first):
        yield store


def list_page(
    txn: Txn,
    *,
    include_archived: bool = False,
    since: Time | None = None,
    until: Time | None = None,
    name: str | None = None,
    only: Container[StoreNo] | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Store]:
    """Return stores, newest first; after is a number from the page before. only: among these."""
    items: list[Store] = []
    start = keys.store(StoreNo(int(after) - 1)) if after else None
    for _, store in STORE.scan(txn, start=start, reverse=True):
        if (
            (store.archived_at is not None and not include_archived)
            or (since is not None and store.created_at < since)
            or (until is not None and store.created_at > until)
            or (name is not None and store.name != name)
            or (only is not None and store.no not in only)
        ):
            continue
        if len(items) == limit:
            return Page(items, str(items[-1].no))
        items.append(store)
    return Page(items, None)


def update(
    txn: Txn,
    caller: Caller,
    now: Time,
    store_id: str,
    name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
) -> Store:
    """Change what is given and return the store. metadata is a patch: None removes a key.

    A rename reaches neither running tasks nor their folders.
    Raises: NotFound, StoreArchived, Invalid.
    """
    store = get(txn, store_id)
    check_live(store)
    changed = evolve(
        store,
        name=store.name if name is None else check_name(name),
        description=store.description if description is None else check_description(description),
        metadata=store.metadata if metadata is None else patch_metadata(store.metadata, metadata),
    )
    if changed == store:
        return store
    changed = evolve(changed, updated_at=now)
    _put(txn, changed)
    _record(txn, caller, now, changed)
    return changed


def archive(txn: Txn, caller: Caller, now: Time, store_id: str) -> Store:
    """Make the store read-only for good and return it; again: unchanged.

    Raises: NotFound, Conflict (a worker's own store).
    """
    store = get(txn, store_id)
    if store.archived_at is not None:
        return store
    _check_shared(store, "archived")
    store = evolve(store, archived_at=now, updated_at=now)
    _put(txn, store)
    _record(txn, caller, now, store)
    return store


def delete(txn: Txn, caller: Caller, now: Time, store_id: str) -> Store:
    """Remove the store with its notes, versions, texts and refused texts, and return what it was.

    Raises: NotFound, Conflict (a worker's own store).
    """
    store = get(txn, store_id)
    _check_shared(store, "deleted")
    prefix = keys.store(store.no)
    gone: list[tuple[str, bytes]] = [("store", prefix)]
    nodes: set[Node] = {store.root}
    for key, version in VERSION.scan(txn, prefix):
        gone.append(("version", key))
        gone.append(("by_note", keys.by_note(version.node, version.seq)))
        if version.sha256 is not None:
            content.drop(txn, version.sha256)
    for key, refused in REFUSED.scan(txn, prefix):
        gone.append(("refused", key))
        content.drop(txn, refused.sha256)
    for key, value in txn.scan("dentry", prefix):
        gone.append(("dentry", key))
        nodes.add(keys.parse_dentry(value)[0])
    for key, _ in txn.scan("archived", prefix):
        gone.append(("archived", key))
        nodes.add(Node(keys.parse_in_store(key)[1]))
    for table in ("by_operation", "by_actor", "setback"):
        gone += [(table, key) for key, _ in txn.scan(table, prefix)]
    gone += [("node", keys.node(node)) for node in nodes]
    for table, key in gone:
        txn.delete(table, key)
    if store.archived_at is None:
        _count_live(txn, store, -1)
    _record(txn, caller, now, store, deleted=True)
    return store


def live_shared(txn: Txn) -> int:
    """Return how many live stores are no worker's own."""
    return txn.counter("live_shared")


def check_live(store: Store) -> None:
    """Raise StoreArchived if the store is archived."""
    if store.archived_at is not None:
        raise StoreArchived(
            f"memory store {store.name!r} is archived: it can only be read and emptied; write to "
            "another store"
        )


def adjust_notes(txn: Txn, store: Store, by: int) -> None:
    """Count notes that came or went.

    Raises: LimitReached (nothing was changed).
    """
    if by > 0:
        check_room(store, by)
    STORE.put(txn, keys.store(store.no), evolve(store, notes=store.notes + by))


def check_room(store: Store, more: int = 1) -> None:
    """Raise LimitReached if *more* notes do not fit."""
    if store.notes + more > limits.NOTES_PER_STORE:
        raise LimitReached(
            f"memory store {store.name!r} holds {store.notes} notes, the limit is "
            f"{limits.NOTES_PER_STORE}: delete some, or use another store"
        )


def check_name(name: str) -> str:
    """Return *name* if a store or worker may be called that.

    Raises: Invalid.
    """
    if not 1 <= len(name) <= limits.STORE_NAME_CHARS:
        raise Invalid(f"a name has 1 to {limits.STORE_NAME_CHARS} characters, not {len(name)}")
    if not _is_clean(name):
        raise Invalid("a name may hold no control characters: remove them")
    return name


def check_description(text: str) -> str:
    """Return *text* if it may describe a store.

    Raises: Invalid.
    """
    check_prose("a description", text, limits.DESCRIPTION_CHARS)
    return text


def check_prose(what: str, text: str, most: int) -> None:
    """Check that a description, instruction or reason is UTF-8 and not too long.

    Raises: Invalid.
    """
    if len(text) > most or not _encodes(text):
        raise Invalid(f"{what}: at most {most} characters of valid Unicode, not {len(text)}")


def patch_metadata(old: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """Return *old* with *patch* applied; None removes a key.

    Raises: Invalid.
    """
    new = dict(old)
    for key, value in patch.items():
        if not 1 <= len(key) <= limits.METADATA_KEY_CHARS or not _encodes(key):
            raise Invalid(f"a metadata key has 1 to {limits.METADATA_KEY_CHARS} characters")
        if value is None:
            new.pop(key, None)
            continue
        if len(value) > limits.METADATA_VALUE_CHARS or not _encodes(value):
            raise Invalid(f"a metadata value has at most {limits.METADATA_VALUE_CHARS} characters")
        new[key] = value
    if len(new) > limits.METADATA_PAIRS:
        raise Invalid(f"metadata has at most {limits.METADATA_PAIRS} pairs: remove some")
    return new


def _is_clean(text: str) -> bool:
    return _encodes(text) and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)


def _encodes(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _check_shared(store: Store, verb: str) -> None:
    if store.worker_id is not None:
        raise Conflict(
            f"{store.name!r} is a worker's own memory store and cannot be {verb}: delete its notes "
            "instead"
        )


def _put(txn: Txn, store: Store) -> None:
    old = STORE.get(txn, keys.store(store.no))
    was_live = old is not None and old.archived_at is None
    is_live = store.archived_at is None
    if was_live != is_live:
        _count_live(txn, store, 1 if is_live else -1)
    STORE.put(txn, keys.store(store.no), store)


def _count_live(txn: Txn, store: Store, by: int) -> None:
    if store.worker_id is None:
        txn.put("meta", b"live_shared", keys.pack_u64(txn.counter("live_shared") + by))


def _record(txn: Txn, caller: Caller, now: Time, store: Store, *, deleted: bool = False) -> None:
    node = NO_NODE if deleted else store.root  # FORMAT: Change log
    log.record(txn, caller, now, ChangeKind.STORE, store.no, subject=store.id, node=node)
