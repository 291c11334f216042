"""Notes by their rules: the order of checks, retries, folders, listing, the mount's rules."""

import pytest

from memfs import limits
from memfs.engine import files, notes, path, refused, stores, tree, versions
from memfs.errors import (
    FolderNotEmpty,
    Invalid,
    InvalidPath,
    IsAFolder,
    LimitReached,
    MemfsError,
    NameTooLong,
    NotAFolder,
    NotFound,
    PathConflict,
    PreconditionFailed,
    StoreArchived,
    TextTooLong,
)
from memfs.store import change
from memfs.types import (
    Actor,
    AttachmentNo,
    Caller,
    ChangeKind,
    Node,
    NodeInfo,
    NoteId,
    Seq,
    Sha256,
    Store,
    Time,
)
from tests.conftest import API, NO_SECRETS, USER, Engine, text

STALE = Sha256("0" * 64)


@pytest.fixture
def store(engine: Engine) -> Store:
    return engine.commit(stores.create, "notes")


def make(engine: Engine, store: Store, where: str, data: str = "text\n") -> NodeInfo:
    return engine.commit(notes.create, store.id, path.parse(where), text(data))


def id_of(info: NodeInfo) -> NoteId:
    return notes.note_of(info).id


def read(engine: Engine, store: Store, where: str) -> str:
    info = engine.view(notes.at, store.id, path.parse(where))
    return engine.view(notes.text_of, info).decode()


def paths(engine: Engine, store: Store, depth: int = 0) -> list[str]:
    page = engine.view(notes.list_page, store.id, (), depth, 1_000)
    return [each for each, _ in page.items]


def a_save(data: str, base: str | None = None, tail: str | None = None) -> files.Save:
    return files.Save(
        text(data),
        None if base is None else text(base).sha256,
        None if tail is None else tail.encode(),
        0o644,
        Time(5),
    )


# ------------------------------------------------------------------------- the order of checks


def refusal(engine: Engine, store: Store, note: NodeInfo, *faults: str) -> type[MemfsError]:
    """Return the error of an update that has the faults."""
    note_id, expected, where = id_of(note), None, path.parse("/free")
    if "missing" in faults:
        note_id = NoteId("mem_missing")
    if "stale" in faults:
        expected = STALE
    if "conflict" in faults:
        where = path.parse("/taken")
    with pytest.raises(MemfsError) as caught:
        engine.commit(notes.update, store.id, note_id, text("new"), where, expected)
    return type(caught.value)


def test_checks_come_in_the_promised_order(engine: Engine, store: Store):
    note = make(engine, store, "/note")
    make(engine, store, "/taken")
    assert refusal(engine, store, note, "conflict") is PathConflict
    assert refusal(engine, store, note, "stale", "conflict") is PreconditionFailed
    engine.commit(stores.archive, store.id)
    assert refusal(engine, store, note, "stale", "conflict") is StoreArchived
    assert refusal(engine, store, note, "missing", "stale", "conflict") is NotFound


def test_path_conflict_is_said_before_a_full_store(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "NOTES_PER_STORE", 1)
    make(engine, store, "/a")
    with pytest.raises(PathConflict):
        make(engine, store, "/a")
    with pytest.raises(LimitReached):
        make(engine, store, "/b")
    with pytest.raises(InvalidPath):
        engine.commit(files.save_new, store.no, store.root, ".memfs", a_save("x"), NO_SECRETS)
    with pytest.raises(InvalidPath):
        engine.view(files.check_create, store.no, store.root, ".memfs")


def test_full_store_still_lets_notes_be_edited_moved_and_deleted(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "NOTES_PER_STORE", 2)
    first, second = make(engine, store, "/a"), make(engine, store, "/b")
    engine.commit(notes.update, store.id, id_of(first), text("edited"), path.parse("/c"))
    engine.commit(files.rename, store.no, store.root, "b", store.root, "c")
    make(engine, store, "/d")
    with pytest.raises(NotFound):
        engine.view(notes.get, store.id, id_of(second))


@pytest.mark.parametrize("taken", ["/a", "/a/b/c", "/a/b/c/d"])
def test_conflict_names_the_note_at_above_or_below(engine: Engine, store: Store, taken: str):
    note = make(engine, store, taken)
    with pytest.raises(PathConflict) as caught:
        make(engine, store, "/a/b/c" if taken != "/a/b/c/d" else "/a/b")
    assert (caught.value.conflicting_id, caught.value.conflicting_path) == (id_of(note), taken)


def test_archived_store_can_be_emptied_and_nothing_else(engine: Engine, store: Store):
    note, other = make(engine, store, "/f/note"), make(engine, store, "/other")
    gone = make(engine, store, "/gone")
    engine.commit(files.make_folder, store.no, store.root, "empty", 0o755)
    for data in ("one", "two"):
        engine.commit(refused.keep, store.no, "/f/note", text(data), "changed", None)
    first = notes.note_of(gone).version_id
    engine.commit(notes.delete, store.id, id_of(gone))
    engine.commit(stores.archive, store.id)
    writes = (
        (notes.create, (store.id, path.parse("/x"), text("x"))),
        (notes.update, (store.id, id_of(note), text("x"))),
        (notes.archive, (store.id, id_of(note), "why")),
        (notes.unarchive, (store.id, id_of(note))),
        (notes.restore, (store.id, first, NO_SECRETS)),
        (refused.to_note, (store.id, 1, path.parse("/x"), NO_SECRETS)),
        (files.save, (note.node, a_save("x", "text\n"), NO_SECRETS)),
        (files.save_new, (store.no, store.root, "x", a_save("x"), NO_SECRETS)),
        (files.install, (store.no, store.root, "x", a_save("x"))),
        (files.make_folder, (store.no, store.root, "x", 0o755)),
        (files.rename, (store.no, store.root, "other", store.root, "x")),
        (files.set_attr, (note.node, 0o600)),
    )
    for rule, arguments in writes:
        with pytest.raises(StoreArchived):
            engine.commit(rule, *arguments)
    engine.commit(versions.redact, store.id, first)
    engine.commit(refused.discard, store.id, 1)
    engine.commit(files.remove_folder, store.no, store.root, "empty")
    engine.commit(notes.purge, store.id, id_of(note))
    engine.commit(files.unlink, store.no, store.root, "other")
    assert paths(engine, store) == []
    assert engine.view(lambda txn: list(refused.everything(txn, store.no))) == []
    engine.commit(stores.delete, store.id)
    with pytest.raises(NotFound):
        engine.view(stores.get, store.id)
    assert other.node


# ------------------------------------------------------------------------------------- retries


def test_retried_update_changes_nothing_even_with_a_stale_precondition(
    engine: Engine, store: Store
):
    note = make(engine, store, "/a")
    old = notes.note_of(note).sha256
    where = path.parse("/b")
    done = engine.commit(notes.update, store.id, id_of(note), text("new"), where, old)
    again = engine.commit(notes.update, store.id, id_of(note), text("new"), where, old)
    assert again == done
    assert notes.note_of(again).ordinal == 2
    with pytest.raises(PreconditionFailed):
        engine.commit(notes.update, store.id, id_of(note), text("newer"), None, old)


def test_retried_save_and_set_attr_write_no_change(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    save = a_save("new", "text\n")
    engine.commit(files.save, note.node, save, NO_SECRETS)
    before = engine.view(change.last_seq)
    engine.commit(files.save, note.node, save, NO_SECRETS)
    engine.commit(files.set_attr, note.node, 0o644, Time(5))
    assert engine.view(change.last_seq) == before


def test_retried_create_is_a_conflict_with_the_first(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    with pytest.raises(PathConflict) as caught:
        make(engine, store, "/a")
    assert caught.value.conflicting_id == id_of(note)


def test_retried_archive_and_unarchive_change_nothing(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    away = engine.commit(notes.archive, store.id, id_of(note), "superseded")
    assert engine.commit(notes.archive, store.id, id_of(note), "vetoed") == away
    back = engine.commit(notes.unarchive, store.id, id_of(note))
    assert engine.commit(notes.unarchive, store.id, id_of(note)) == back


# ------------------------------------------------------------------------- moves and folders


def test_move_keeps_id_history_and_text_and_takes_its_folder_along(engine: Engine, store: Store):
    note = make(engine, store, "/old/deep/a")
    moved = engine.commit(notes.update, store.id, id_of(note), None, path.parse("/new/deep/b"))
    assert (id_of(moved), moved.node) == (id_of(note), note.node)
    assert paths(engine, store, depth=1) == ["/new/"]
    history = engine.view(lambda txn: list(versions.of_note(txn, store.no, note.node)))
    assert [(v.operation.word, v.path) for v in history] == [
        ("modified", "/new/deep/b"),
        ("created", "/old/deep/a"),
    ]


def test_note_made_by_api_takes_the_place_of_empty_folders(engine: Engine, store: Store):
    top = engine.commit(files.make_folder, store.no, store.root, "a", 0o755)
    for name in map(str, range(300)):
        below = engine.commit(files.make_folder, store.no, top.node, name, 0o755)
        engine.commit(files.make_folder, store.no, below.node, "x", 0o755)
    make(engine, store, "/a")
    assert paths(engine, store) == ["/a"]


def test_folder_of_the_mount_stays_when_empty_and_one_of_the_api_goes(engine: Engine, store: Store):
    made = engine.commit(files.make_folder, store.no, store.root, "kept", 0o755)
    for where in ("/kept/a", "/api/b", "/emptied/c"):
        make(engine, store, where)
    for where in ("/kept/a", "/api/b"):
        info = engine.view(notes.at, store.id, path.parse(where))
        engine.commit(notes.delete, store.id, id_of(info))
    emptied = engine.view(tree.child, store.no, store.root, "emptied")
    assert emptied is not None
    assert not emptied.kept
    engine.commit(files.unlink, store.no, emptied.node, "c")
    assert engine.view(tree.get, emptied.node).kept
    names = engine.view(lambda txn: [n for n, *_ in tree.entries(txn, store.no, store.root)])
    assert names == ["emptied", "kept"]
    engine.reopen()
    assert engine.view(tree.get, made.node).kept


def test_folder_rename_moves_every_note_with_a_version_and_no_text(engine: Engine, store: Store):
    made = [make(engine, store, f"/old/{name}", name) for name in ("a", "b/c", "b/d")]
    engine.commit(files.rename, store.no, store.root, "old", store.root, "new")
    assert paths(engine, store) == ["/new/a", "/new/b/c", "/new/b/d"]
    for info in made:
        now = engine.view(notes.get, store.id, id_of(info))
        assert notes.note_of(now).ordinal == 2
    assert read(engine, store, "/new/b/c") == "b/c"


def test_folder_cannot_be_moved_into_itself_nor_over_what_is_not_an_empty_folder(
    engine: Engine, store: Store
):
    make(engine, store, "/a/b/c")
    make(engine, store, "/full/x")
    make(engine, store, "/note")
    a = engine.view(tree.child, store.no, store.root, "a")
    assert a is not None
    b = engine.view(tree.child, store.no, a.node, "b")
    assert b is not None
    with pytest.raises(Invalid):
        engine.commit(files.rename, store.no, store.root, "a", b.node, "a")
    for name, error in (("full", FolderNotEmpty), ("note", NotAFolder)):
        with pytest.raises(error):
            engine.commit(files.rename, store.no, store.root, "a", store.root, name)
    with pytest.raises(IsAFolder):
        engine.commit(files.rename, store.no, store.root, "note", store.root, "a")
    with pytest.raises(PathConflict):
        engine.commit(files.rename, store.no, store.root, "note", store.root, "a", replace=False)


def test_rename_over_keeps_the_target_and_ends_the_source(engine: Engine, store: Store):
    source, target = make(engine, store, "/source", "new"), make(engine, store, "/target", "old")
    there = engine.commit(files.rename, store.no, store.root, "source", store.root, "target")
    assert (there.node, id_of(there)) == (target.node, id_of(target))
    assert read(engine, store, "/target") == "new"
    page = engine.view(versions.list_page, store.id)
    assert [(v.operation.word, v.note_id) for v in page.items[:2]] == [
        ("modified", id_of(target)),
        ("deleted", id_of(source)),
    ]
    assert engine.view(stores.get, store.id).notes == 1


def test_folder_rename_checks_empty_folders_below_too(engine: Engine, store: Store):
    deep = store.root
    for _ in range(limits.PATH_SEGMENTS):
        deep = engine.commit(files.make_folder, store.no, deep, "d", 0o755).node
    engine.commit(files.make_folder, store.no, store.root, "up", 0o755)
    up = engine.view(tree.child, store.no, store.root, "up")
    assert up is not None
    with pytest.raises(InvalidPath):
        engine.commit(files.rename, store.no, store.root, "d", up.node, "d")
    with pytest.raises(InvalidPath):
        engine.commit(files.make_folder, store.no, deep, "d", 0o755)


def test_folder_rename_keeps_every_path_within_its_bytes(engine: Engine, store: Store):
    long = "l" * 255
    make(engine, store, f"/{long}/{long}/{long}/x")
    engine.commit(files.make_folder, store.no, store.root, "t" * 254, 0o755)
    top = engine.view(tree.child, store.no, store.root, "t" * 254)
    assert top is not None
    with pytest.raises(NameTooLong):
        engine.commit(files.rename, store.no, store.root, long, top.node, long)
    engine.commit(files.rename, store.no, store.root, long, top.node, "l" * 254)
    where = f"/{'t' * 254}/{'l' * 254}/{long}/{long}/x"
    assert len(where) == limits.PATH_BYTES
    assert paths(engine, store) == [where]


def test_move_with_a_text_sets_mtime_and_one_without_keeps_it(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    moved = engine.commit(notes.update, store.id, id_of(note), None, path.parse("/b"))
    assert moved.mtime == note.mtime
    both = engine.commit(notes.update, store.id, id_of(note), text("new"), path.parse("/c"))
    assert both.mtime == engine.clock


def test_names_that_cannot_be_are_missing_when_asked_for_and_refused_when_made(
    engine: Engine, store: Store
):
    for name, error in (("x" * 256, NameTooLong), ("x" * 1_024, NameTooLong), ("a/b", InvalidPath)):
        assert engine.view(tree.child, store.no, store.root, name) is None
        with pytest.raises(NotFound):
            engine.commit(files.unlink, store.no, store.root, name)
        with pytest.raises(error):
            engine.commit(files.make_folder, store.no, store.root, name, 0o755)


# ------------------------------------------------------------------------- saves of the mount


def test_appends_move_behind_another_head_and_other_writes_are_refused(
    engine: Engine, store: Store
):
    note = make(engine, store, "/log", "one\n")
    engine.commit(notes.update, store.id, id_of(note), text("one\ntwo\n"))
    appended = a_save("one\nthree\n", "one\n", "three\n")
    engine.commit(files.save, note.node, appended, NO_SECRETS)
    assert read(engine, store, "/log") == "one\ntwo\nthree\n"
    with pytest.raises(PreconditionFailed):
        engine.commit(files.save, note.node, a_save("other", "one\n"), NO_SECRETS)
    assert read(engine, store, "/log") == "one\ntwo\nthree\n"


def test_moved_appends_keep_to_the_limit(engine: Engine, store: Store):
    note = make(engine, store, "/log", "x\n")
    engine.commit(notes.update, store.id, id_of(note), text("y " * (limits.NOTE_BYTES // 2)))
    with pytest.raises(TextTooLong):
        engine.commit(files.save, note.node, a_save("x\nz", "x\n", "z"), NO_SECRETS)


def test_two_new_files_of_one_name_made_of_appends_become_one_note(engine: Engine, store: Store):
    where = (store.no, store.root, "log")
    engine.commit(files.save_new, *where, a_save("one\n", None, "one\n"), NO_SECRETS)
    engine.commit(files.save_new, *where, a_save("two\n", None, "two\n"), NO_SECRETS)
    assert read(engine, store, "/log") == "one\ntwo\n"
    with pytest.raises(PreconditionFailed):
        engine.commit(files.save_new, *where, a_save("three\n"), NO_SECRETS)


def test_new_file_continues_the_note_in_waiting(engine: Engine, store: Store):
    note = make(engine, store, "/draft", "old")
    where = (store.no, store.root, "draft")
    save = a_save("new", "old")
    there = engine.commit(files.save_new, *where, save, NO_SECRETS, note.node)
    assert (there.node, notes.note_of(there).ordinal) == (note.node, 2)
    with pytest.raises(PreconditionFailed):
        engine.commit(files.save_new, *where, a_save("mine", "old"), NO_SECRETS, note.node)


def test_save_of_a_deleted_note_does_not_bring_it_back(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    engine.commit(notes.delete, store.id, id_of(note))
    with pytest.raises(PreconditionFailed):
        engine.commit(files.save, note.node, a_save("x", "text\n"), NO_SECRETS)
    assert paths(engine, store) == []


def test_guard_refuses_what_another_actor_changed_since_and_not_ones_own(
    engine: Engine, store: Store
):
    note = make(engine, store, "/a", "one")
    seen = files.Seen(id_of(note), text("one").sha256)
    engine.commit(notes.update, store.id, id_of(note), text("two"))
    install = (files.install, store.no, store.root, "a", a_save("mine"), seen)
    with pytest.raises(PreconditionFailed):
        engine.commit_as(API, *install)
    assert read(engine, store, "/a") == "two"
    engine.commit_as(USER, *install)
    assert read(engine, store, "/a") == "mine"


def test_modes_hold_permission_bits_only(engine: Engine, store: Store):
    folder = engine.commit(files.make_folder, store.no, store.root, "d", 0o40755)
    save = files.Save(text("x"), None, None, 0o100640, Time(5))
    note = engine.commit(files.save_new, store.no, folder.node, "n", save, NO_SECRETS)
    assert (folder.mode, note.mode, note.mtime) == (0o755, 0o640, 5)


@pytest.mark.parametrize("mtime", [2**70, -(2**70)])
def test_times_beyond_64_bits_become_the_nearest_that_fits(
    engine: Engine, store: Store, mtime: int
):
    save = files.Save(text("x"), None, None, 0o644, Time(mtime))
    note = engine.commit(files.save_new, store.no, store.root, "n", save, NO_SECRETS)
    edge = 2**63 - 1 if mtime > 0 else -(2**63)
    assert note.mtime == edge
    engine.commit(files.set_attr, note.node, None, Time(0))
    assert engine.commit(files.set_attr, note.node, None, Time(mtime)).mtime == edge


# -------------------------------------------------------------------------- listing and changes


def test_listing_pages_are_stable_while_others_write(engine: Engine, store: Store):
    before = [f"/{folder}/{name:02}" for folder in "ab" for name in range(10)] + ["/c"]
    for where in before:
        make(engine, store, where)
    found: list[str] = []
    after = None
    for turn in range(100):
        page = engine.view(notes.list_page, store.id, (), 0, 2, after)
        found += [each for each, _ in page.items]
        after = page.after
        if after is None:
            break
        for where in (f"/a/{turn:02}x", f"/b/new{turn}", f"/0{turn}"):
            make(engine, store, where)
        if turn == 3:  # the very note the cursor stands on goes, and its folder later
            info = engine.view(notes.at, store.id, path.parse(after))
            engine.commit(notes.delete, store.id, id_of(info))
    assert len(set(found)) == len(found)
    assert set(before) <= set(found)
    assert found == sorted(found)


def test_listing_survives_the_loss_of_the_cursors_folder(engine: Engine, store: Store):
    for where in ("/a/1", "/b/1", "/b/2", "/c/1"):
        make(engine, store, where)
    page = engine.view(notes.list_page, store.id, (), 0, 2)
    assert page.after == "/b/1"
    for where in ("/b/1", "/b/2"):
        engine.commit(
            notes.delete, store.id, id_of(engine.view(notes.at, store.id, path.parse(where)))
        )
    page = engine.view(notes.list_page, store.id, (), 0, 2, page.after)
    assert [each for each, _ in page.items] == ["/c/1"]


def test_listing_with_depth_one_shows_folders_that_hold_notes(engine: Engine, store: Store):
    for where in ("/b/x/y", "/a.md", "/c"):
        make(engine, store, where)
    engine.commit(files.make_folder, store.no, store.root, "empty", 0o755)
    assert paths(engine, store, depth=1) == ["/a.md", "/b/", "/c"]
    page = engine.view(notes.list_page, store.id, (), 1, 2)
    rest = engine.view(notes.list_page, store.id, (), 1, 2, page.after)
    assert page.after == "/b/"
    assert [each for each, _ in rest.items] == ["/c"]
    assert engine.view(notes.list_page, store.id, ("missing",)).items == []


def test_change_rows_name_entry_actor_and_attachment(engine: Engine, store: Store):
    agent = Caller(Actor("session_actor", "t"), AttachmentNo(0))
    note = make(engine, store, "/a")
    engine.commit_as(agent, files.rename, store.no, store.root, "a", store.root, "b")
    row = engine.view(change.newest, 1)[0]
    assert (row.kind, row.node, row.actor) == (ChangeKind.NOTE, note.node, agent.actor)
    assert (row.parent, row.name) == (store.root, "b")
    assert (row.old_parent, row.old_name) == (store.root, "a")
    assert engine.view(change.read, Seq(row.seq), 5) == []


def test_purge_leaves_no_row_but_changes(engine: Engine, store: Store):
    note = make(engine, store, "/a")
    engine.commit(notes.update, store.id, id_of(note), text("two"))
    engine.commit(notes.purge, store.id, id_of(note))
    with pytest.raises(NotFound):
        engine.commit(notes.purge, store.id, id_of(note))
    tables = ("version", "by_note", "by_operation", "by_actor", "content", "dentry")
    with engine.env.read() as txn:
        assert {table: txn.count(table) for table in tables} == dict.fromkeys(tables, 0)
        assert tree.get(txn, store.root).node == Node(1)
    rows = engine.view(change.read, Seq(0), 100)
    assert {row.name for row in rows if row.kind is ChangeKind.NOTE} == {""}
