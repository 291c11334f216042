"""Notes that were made or moved away only to save another (SEMANTICS: Temporary files, backups)."""

import pytest

from memfs import limits
from memfs.engine import files, notes, stores, tree, versions
from memfs.engine import path as paths
from memfs.engine.files import Save
from memfs.engine.saves import Backup
from memfs.errors import LimitReached
from memfs.store import content
from memfs.types import NodeInfo, Operation, Store, Time
from tests.conftest import API, NO_SECRETS, USER, Engine, text


@pytest.fixture
def store(engine: Engine) -> Store:
    return engine.commit(stores.create, "S")


def create(engine: Engine, store: Store, name: str, data: str, caller=USER) -> NodeInfo:
    path = paths.parse(f"/{name}")
    return engine.commit_as(caller, notes.create, store.id, path, text(data))


def operations(engine: Engine, info: NodeInfo) -> list[Operation]:
    found = engine.view(lambda txn: list(versions.of_note(txn, info.store, info.node)))
    return sorted((version.operation for version in found), key=lambda operation: operation.value)


def over(engine: Engine, store: Store, name: str, new: str, **how) -> NodeInfo:
    """Rename as the mount does with a note that it takes for a temporary one."""
    root = store.root
    return engine.commit(files.rename, store.no, root, name, root, new, temporary=True, **how)


def test_a_young_temporary_note_leaves_nothing_but_its_text_in_the_target(engine, store):
    target = create(engine, store, "n", "old")
    young = create(engine, store, "n.1", "new")
    saved = over(engine, store, "n.1", "n")
    assert saved.node == target.node
    assert engine.view(notes.text_of, saved) == b"new"
    assert operations(engine, young) == []
    assert operations(engine, target) == [Operation.CREATED, Operation.MODIFIED]
    assert engine.view(stores.get, store.id).notes == 1


def test_one_with_a_second_version_or_another_author_is_deleted_with_its_history(engine, store):
    create(engine, store, "n", "old")
    edited = create(engine, store, "n.1", "one")
    engine.commit(notes.update, store.id, edited.note.id, text("two"))
    over(engine, store, "n.1", "n")
    assert operations(engine, edited) == [Operation.CREATED, Operation.MODIFIED, Operation.DELETED]
    theirs = create(engine, store, "n.2", "theirs", API)
    over(engine, store, "n.2", "n")
    assert operations(engine, theirs) == [Operation.CREATED, Operation.DELETED]


def moved_away(engine: Engine, store: Store) -> tuple[NodeInfo, Backup]:
    create(engine, store, "n", "old")
    root = store.root
    info = engine.commit(files.rename, store.no, root, "n", root, "n.bak")
    return info, Backup(info.node, info.note.version_id)


def save_new(engine: Engine, store: Store, backup: Backup) -> NodeInfo:
    save = Save(text("new"), None, None, 0o600, Time(5))
    return engine.commit(files.save_new, store.no, store.root, "n", save, NO_SECRETS, None, backup)


def test_a_note_comes_back_from_its_backup_with_the_text_that_is_saved(engine, store):
    note, backup = moved_away(engine, store)
    saved = save_new(engine, store, backup)
    assert (saved.node, saved.name, saved.mode, saved.mtime) == (note.node, "n", 0o600, 5)
    assert engine.view(notes.text_of, saved) == b"new"
    kept = engine.view(tree.child, store.no, store.root, "n.bak")
    assert kept.node != note.node
    assert engine.view(notes.text_of, kept) == b"old"
    assert (kept.mode, kept.mtime) == (note.mode, note.mtime)
    assert operations(engine, kept) == [Operation.CREATED]
    assert engine.view(stores.get, store.id).notes == 2


def test_a_temporary_note_that_is_renamed_there_does_the_same(engine, store):
    note, backup = moved_away(engine, store)
    young = create(engine, store, "XXab12cd", "new")
    saved = over(engine, store, "XXab12cd", "n", backup=backup)
    assert saved.node == note.node
    assert engine.view(notes.text_of, saved) == b"new"
    assert operations(engine, young) == []
    assert engine.view(stores.get, store.id).notes == 2


def test_a_backup_that_was_changed_or_moved_since_stays_what_it_is(engine, store):
    note, backup = moved_away(engine, store)
    engine.commit(notes.update, store.id, note.note.id, text("edited"))
    assert save_new(engine, store, backup).node != note.node
    assert engine.view(tree.child, store.no, store.root, "n.bak").node == note.node


def test_a_full_store_refuses_the_save_and_keeps_the_backup(engine, store, monkeypatch):
    note, backup = moved_away(engine, store)
    monkeypatch.setattr(limits, "NOTES_PER_STORE", 1)
    with pytest.raises(LimitReached):
        save_new(engine, store, backup)
    young = engine.view(tree.child, store.no, store.root, "n.bak")
    assert young.node == note.node
    assert engine.view(content.get, young.note.sha256) == b"old"
