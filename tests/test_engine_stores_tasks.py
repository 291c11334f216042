"""Stores, workers, tasks, refused texts and credentials by their rules."""

import pytest

from memfs import limits
from memfs.engine import credentials, holders, notes, path, refused, secrets, stores, tasks, workers
from memfs.errors import (
    Conflict,
    Invalid,
    LimitReached,
    NotFound,
    PathConflict,
    SecretRefused,
    StoreArchived,
)
from memfs.store import change, content
from memfs.types import Access, ChangeKind, Seq, StoreNo, Time
from tests.conftest import Engine, text

SECRET = "hunter2-secret99"

# --------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x7fb", "\ud800"])
def test_store_name_has_1_to_255_characters_without_control_ones(engine: Engine, name: str):
    with pytest.raises(Invalid):
        engine.commit(stores.create, name)
    store = engine.commit(stores.create, "ü" * 255)
    with pytest.raises(Invalid):
        engine.commit(stores.update, store.id, name)
    assert engine.view(stores.get, store.id) == store


def test_metadata_is_patched_and_limited(engine: Engine):
    labels = {f"k{n}": "v" for n in range(16)}
    store = engine.commit(stores.create, "s", "", labels)
    with pytest.raises(Invalid):
        engine.commit(stores.update, store.id, None, None, {"one": "more"})
    changed = engine.commit(stores.update, store.id, None, None, {"k0": None, "one": "more"})
    assert set(changed.metadata) == {*labels, "one"} - {"k0"}
    for bad in ({"": "v"}, {"k" * 65: "v"}, {"k": "v" * 513}):
        with pytest.raises(Invalid):
            engine.commit(stores.create, "s", "", bad)
    with pytest.raises(Invalid):
        engine.commit(stores.create, "s", "d" * 1_025)


def test_store_update_that_changes_nothing_writes_no_row(engine: Engine):
    store = engine.commit(stores.create, "s", "about")
    before = engine.view(change.last_seq)
    assert engine.commit(stores.update, store.id, "s", "about", {}) == store
    assert engine.view(change.last_seq) == before


def test_archive_is_one_way_idempotent_and_frees_a_place(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "LIVE_SHARED_STORES", 2)
    first = engine.commit(stores.create, "first")
    engine.commit(stores.create, "second")
    with pytest.raises(LimitReached):
        engine.commit(stores.create, "third")
    workers_store = engine.commit(workers.create, "outside the limit").store
    done = engine.commit(stores.archive, first.id)
    assert engine.commit(stores.archive, first.id) == done
    engine.commit(stores.create, "third")
    with pytest.raises(StoreArchived):
        engine.commit(stores.update, first.id, "again")
    assert engine.view(stores.live_shared) == 2
    assert engine.view(stores.by_no, workers_store).name == "outside the limit"


def test_deleted_store_is_gone_with_everything_and_its_number_is_not_used_again(engine: Engine):
    kept = engine.commit(stores.create, "kept")
    engine.commit(notes.create, kept.id, path.parse("/same"), text("same text"))
    store = engine.commit(stores.create, "gone")
    made = engine.commit(notes.create, store.id, path.parse("/same"), text("same text"))
    away = engine.commit(notes.create, store.id, path.parse("/f/away"), text("archived"))
    engine.commit(notes.archive, store.id, notes.note_of(away).id, "stale")
    engine.commit(refused.keep, store.no, "/x", text("refused"), "changed", None)
    engine.commit(stores.delete, store.id)
    for rule, arguments in (
        (stores.get, (store.id,)),
        (stores.by_no, (store.no,)),
        (notes.get, (store.id, notes.note_of(made).id)),
    ):
        with pytest.raises(NotFound):
            engine.view(rule, *arguments)
    with engine.env.read() as txn:
        assert (txn.count("version"), txn.count("content"), txn.count("refused")) == (1, 1, 0)
    assert engine.commit(stores.create, "new").no > store.no
    assert engine.view(content.get, text("same text").sha256) == b"same text"


def test_store_pages_go_newest_first_and_skip_archived_ones(engine: Engine):
    made = [engine.commit(stores.create, f"s{n}") for n in range(5)]
    engine.commit(stores.archive, made[2].id)
    page = engine.view(stores.list_page, limit=2)
    assert [s.name for s in page.items] == ["s4", "s3"]
    engine.commit(stores.create, "newer")
    page = engine.view(stores.list_page, limit=2, after=page.after)
    assert [s.name for s in page.items] == ["s1", "s0"]
    assert page.after is None
    everything = engine.view(stores.list_page, include_archived=True, until=made[3].created_at)
    assert [s.name for s in everything.items] == ["s3", "s2", "s1", "s0"]


# ------------------------------------------------------------------------------ workers and tasks


def test_worker_has_one_own_store_that_cannot_go(engine: Engine):
    worker = engine.commit(workers.create, "Ada")
    own = engine.view(stores.by_no, worker.store)
    assert (own.name, own.worker_id) == ("Ada", worker.id)
    for rule in (stores.archive, stores.delete):
        with pytest.raises(Conflict):
            engine.commit(rule, own.id)
    with pytest.raises(Conflict):
        engine.commit(workers.create, "Ada")
    assert engine.view(workers.get, "Ada") == engine.view(workers.get, worker.id) == worker


def test_task_freezes_its_attachments_own_store_first(engine: Engine):
    shared = engine.commit(stores.create, "Team  Notes!", "what we know")
    wanted = (tasks.Wanted(shared.id, Access.READ_ONLY, "read before work"),)
    task = engine.commit(tasks.create, "Ada", wanted, "run.1")
    own, other = task.attachments
    assert (own.name, own.access) == ("ada", Access.READ_WRITE)
    assert (other.name, other.access) == ("team-notes", Access.READ_ONLY)
    assert (other.store_name, other.description) == ("Team  Notes!", "what we know")
    assert (other.instructions, other.root) == ("read before work", shared.root)
    engine.commit(stores.update, shared.id, "Renamed", "other")
    assert engine.view(tasks.get, "run.1") == task


def test_same_short_names_are_numbered(engine: Engine):
    made = [engine.commit(stores.create, name) for name in ("ADA", "a d a", "a-d-a", "…")]
    task = engine.commit(tasks.create, "ada", tuple(tasks.Wanted(s.id) for s in made))
    assert [a.name for a in task.attachments] == ["ada", "ada-2", "a-d-a", "a-d-a-2", made[3].id]


def test_task_refuses_bad_ids_repeats_too_many_and_archived_stores(engine: Engine):
    made = [engine.commit(stores.create, f"s{n}") for n in range(9)]
    nine = tuple(tasks.Wanted(s.id) for s in made)
    engine.commit(tasks.create, "w", nine[:8], "full")
    engine.commit(stores.archive, made[0].id)
    own = engine.view(workers.get, "w").store
    own_id = engine.view(stores.by_no, StoreNo(own)).id
    for wanted, task_id, error in (
        (nine, "t", Invalid),
        (nine[1:2] * 2, "t", Invalid),
        (nine[:1], "t", StoreArchived),
        ((tasks.Wanted("memstore_x"),), "t", NotFound),
        ((tasks.Wanted(own_id),), "t", Invalid),
        ((tasks.Wanted(made[1].id, instructions="x" * 4_097),), "t", Invalid),
        ((), "..", Invalid),
        ((), "a/b", Invalid),
        ((), "", Invalid),
        ((), "x" * 65, Invalid),
        ((), "full", Conflict),
    ):
        with pytest.raises(error):
            engine.commit(tasks.create, "w", wanted, task_id)
    with pytest.raises(Invalid):
        engine.commit(tasks.create, "")
    assert [worker.name for worker in engine.view(lambda txn: list(workers.everything(txn)))] == [
        "w"
    ]


def test_ended_task_stays_listed_and_ending_twice_changes_nothing(engine: Engine):
    for n in range(3):
        engine.commit(tasks.create, "w", (), f"t{n}")
    done = engine.commit(tasks.end, "t1")
    assert engine.commit(tasks.end, "t1") == done
    assert [t.id for t in engine.view(tasks.live)] == ["t0", "t2"]
    page = engine.view(tasks.list_page, limit=2)
    assert [t.id for t in page.items] == ["t2", "t1"]
    rest = engine.view(tasks.list_page, limit=2, after=page.after)
    assert ([t.id for t in rest.items], rest.after) == (["t0"], None)
    page = engine.view(tasks.list_page, include_ended=False, limit=1)
    engine.commit(tasks.end, "t2")  # a walk goes on although what it ended with has left
    rest = engine.view(tasks.list_page, include_ended=False, limit=1, after=page.after)
    assert [t.id for t in rest.items] == ["t0"]


def test_tasks_are_listed_by_time_and_in_either_order(engine: Engine):
    made = [engine.commit(tasks.create, "w", (), f"t{n}") for n in range(4)]
    window = {"since": made[1].created_at, "until": made[3].created_at}
    page = engine.view(tasks.list_page, oldest_first=True, limit=2, **window)
    rest = engine.view(tasks.list_page, oldest_first=True, limit=2, after=page.after, **window)
    assert [t.id for t in page.items + rest.items] == ["t1", "t2", "t3"]
    engine.commit(tasks.end, "t2")
    assert [t.id for t in engine.view(tasks.list_page, include_live=False).items] == ["t2"]


def test_title_and_metadata_are_patched_and_the_same_again_changes_nothing(engine: Engine):
    made = engine.commit(tasks.create, "w", (), "t", title="Fix it", metadata={"a": "1"})
    assert (made.title, made.metadata, made.updated_at) == ("Fix it", {"a": "1"}, None)
    changed = engine.commit(tasks.update, "t", None, {"a": None, "b": "2"})
    assert (changed.title, changed.metadata) == ("Fix it", {"b": "2"})
    assert changed.updated_at is not None
    assert engine.commit(tasks.update, "t", "Fix it", {"b": "2"}) == changed
    assert engine.commit(tasks.update, "t", "").title is None
    for bad in ({"title": "x" * 1_025}, {"metadata": {"k": "x" * 513}}):
        with pytest.raises(Invalid):
            engine.commit(tasks.update, "t", **bad)
        with pytest.raises(Invalid):
            engine.commit(tasks.create, "w", **bad)


@pytest.mark.parametrize("ended", [False, True])
def test_deleted_task_has_ended_is_in_no_listing_and_its_id_is_not_used_again(
    engine: Engine, ended: bool
):
    engine.commit(tasks.create, "w", (), "t")
    at = engine.commit(tasks.end, "t").ended_at if ended else None
    gone = engine.commit(tasks.delete, "t")
    assert gone.ended_at == (at or gone.deleted_at)
    assert engine.view(tasks.live) == []
    assert engine.view(tasks.list_page).items == []
    assert engine.view(tasks.find, "t") == gone
    for rule in (tasks.end, tasks.delete, tasks.update):
        with pytest.raises(NotFound):
            engine.commit(rule, "t")
    with pytest.raises(NotFound):
        engine.view(tasks.get, "t")
    with pytest.raises(Conflict):
        engine.commit(tasks.create, "w", (), "t")


def test_deleted_store_leaves_the_tasks_record_as_it_was(engine: Engine):
    shared = engine.commit(stores.create, "s")
    task = engine.commit(tasks.create, "w", (tasks.Wanted(shared.id),), "t")
    engine.commit(stores.delete, shared.id)
    assert engine.view(tasks.get, "t") == task


# --------------------------------------------------------------------------------- refused texts


def test_refused_texts_are_kept_with_the_head_and_the_oldest_go_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "REFUSED_PER_STORE", 2)
    store = engine.commit(stores.create, "s")
    note = engine.commit(notes.create, store.id, path.parse("/a"), text("head"))
    for n in range(4):
        data = text(f"refused {n // 2}")
        engine.commit(refused.keep, store.no, "/a", data, "changed", None, note.node)
    kept = engine.view(lambda txn: list(refused.everything(txn, store.no)))
    assert [each.n for each in kept] == [3, 4]
    assert kept[0].head == text("head").sha256
    assert engine.view(refused.text_of, store.no, 4) == b"refused 1"
    with pytest.raises(NotFound):
        engine.view(refused.text_of, store.no, 1)
    with engine.env.read() as txn:
        assert txn.count("content") == 2


def test_purge_takes_the_refused_texts_of_all_paths_the_note_had(engine: Engine):
    store = engine.commit(stores.create, "s")
    note = notes.note_of(engine.commit(notes.create, store.id, path.parse("/old"), text("head")))
    engine.commit(notes.update, store.id, note.id, None, path.parse("/new"))
    for where in ("/old", "/new", "/other"):
        engine.commit(refused.keep, store.no, where, text("refused"), "changed", None)
    engine.commit(notes.purge, store.id, note.id)
    kept = engine.view(lambda txn: list(refused.everything(txn, store.no)))
    assert [each.path for each in kept] == ["/other"]


def test_a_refused_text_becomes_a_note_at_a_free_path_or_stays(engine: Engine):
    store = engine.commit(stores.create, "s")
    engine.commit(notes.create, store.id, path.parse("/a"), text("head"))
    for data in ("mine", f"it is {SECRET}"):
        engine.commit(refused.keep, store.no, "/a", text(data), "changed", None)
    before = engine.view(change.last_seq)
    none, scanner = secrets.Scanner(()), secrets.Scanner((secrets.register("m", SECRET, Time(0)),))
    for n, where, error in (
        (1, "/a", PathConflict),
        (1, "/a/b", PathConflict),
        (2, "/b", SecretRefused),
        (3, "/b", NotFound),
        (2**64, "/b", NotFound),
        (-1, "/b", NotFound),
    ):
        with pytest.raises(error):
            engine.commit(refused.to_note, store.id, n, path.parse(where), scanner)
    assert engine.view(change.last_seq) == before
    made = engine.commit(refused.to_note, store.id, 1, path.parse("/f/mine"), none)
    assert engine.view(notes.text_of, made) == b"mine"
    assert [each.n for each in engine.view(refused.list_page, store.id).items] == [2]
    with pytest.raises(NotFound):
        engine.commit(refused.to_note, store.id, 1, path.parse("/g"), none)


def test_a_discarded_refused_text_is_gone_with_its_bytes_and_the_others_are_listed(engine: Engine):
    store, other = engine.commit(stores.create, "s"), engine.commit(stores.create, "s")
    for data in ("1", "2", "3"):
        engine.commit(refused.keep, store.no, "/a", text(data), "changed", None)
    engine.commit(refused.discard, store.id, 2)
    for where, n in ((store, 2), (other, 1)):
        with pytest.raises(NotFound, match="memfs refused list"):
            engine.commit(refused.discard, where.id, n)
    page = engine.view(refused.list_page, store.id, limit=1)
    rest = engine.view(refused.list_page, store.id, limit=1, after=page.after)
    assert ([each.n for each in page.items], [each.n for each in rest.items]) == ([3], [1])
    assert rest.after is None
    with engine.env.read() as txn:
        assert txn.count("content") == 2
    last = engine.view(change.read, Seq(0), 99)[-1]
    assert (last.kind, last.subject) == (ChangeKind.PURGE, "refused/2")
    assert engine.commit(refused.keep, store.no, "/a", text("4"), "changed", None).n == 4


# ------------------------------------------------------------------------------------ credentials


def test_registered_credential_is_recognised_and_not_revealed(engine: Engine):
    engine.commit(credentials.add, "mail", SECRET)
    with pytest.raises(Conflict):
        engine.commit(credentials.add, "mail", "another-secret")
    engine.reopen()
    records = engine.view(lambda txn: tuple(credentials.everything(txn)))
    assert [each.name for each in records] == ["mail"]
    with pytest.raises(SecretRefused, match="mail") as caught:
        secrets.screen(f"it is {SECRET}!".encode(), secrets.Scanner(records))
    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in (engine.path / "data.mdb").read_bytes()
    engine.commit(credentials.remove, "mail")
    with pytest.raises(NotFound):
        engine.commit(credentials.remove, "mail")
    rows = engine.view(change.read, Seq(0), 10)
    assert [row.kind for row in rows] == [ChangeKind.CREDENTIAL] * 2


def test_what_holds_a_credential_already_is_found_wherever_it_is(engine: Engine):
    store, other = engine.commit(stores.create, "s"), engine.commit(stores.create, "t")
    holding = [text(f"{n}: {SECRET}") for n in range(4)]

    def note(store_id: str, where: str, *texts: str) -> str:
        made = engine.commit(notes.create, store_id, path.parse(where), text(texts[0]))
        assert made.note is not None
        for one in texts[1:]:
            engine.commit(notes.update, store_id, made.note.id, text(one))
        return made.note.id

    leak = [one.data.decode() for one in holding]
    now = note(store.id, "/now", "clean", leak[0], leak[1])
    before = note(store.id, "/before", leak[0], "clean")
    engine.commit(notes.update, store.id, before, None, path.parse("/after"))
    deleted = note(other.id, "/deleted", leak[2])
    engine.commit(notes.delete, other.id, deleted)
    archived = note(other.id, "/archived", leak[2])
    engine.commit(notes.archive, other.id, archived, "r")
    note(other.id, "/clean", "clean", SECRET[:-1])
    engine.commit(refused.keep, other.no, "/refused", holding[3], "why", None)
    record = engine.commit(credentials.add, "mail", SECRET)
    found = [tuple(one)[1:] for one in engine.view(holders.find, record)]
    assert found == [
        ("/now", now, True, 1, None),
        ("/after", before, False, 1, None),
        ("/deleted", deleted, False, 1, None),
        ("/archived", archived, True, 0, None),
        ("/refused", None, False, 0, 1),
    ]
    unused = engine.commit(credentials.add, "other", "never-written-anywhere-7")
    assert engine.view(holders.find, unused) == []
