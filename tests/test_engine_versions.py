"""Versions: history, filters, redaction, retention, restore."""

import pytest

from memfs.engine import files, notes, path, secrets, stores, versions
from memfs.errors import Conflict, Invalid, NotFound, PathConflict, SecretRefused
from memfs.store import change, content
from memfs.types import NodeInfo, NoteId, NoteInfo, Operation, Seq, Store, Time, Version
from tests.conftest import API, NO_SECRETS, SECOND, Engine, text


@pytest.fixture
def store(engine: Engine) -> Store:
    return engine.commit(stores.create, "notes")


def make(engine: Engine, store: Store, where: str, *texts: str) -> NoteInfo:
    """A note with a version for each text."""
    info = engine.commit(notes.create, store.id, path.parse(where), text(texts[0]))
    for data in texts[1:]:
        info = engine.commit(notes.update, store.id, notes.note_of(info).id, text(data))
    return notes.note_of(info)


def history(engine: Engine, store: Store, note: NoteId) -> list[Version]:
    """A note's versions, oldest first."""
    return engine.view(versions.list_page, store.id, note_id=note, limit=100).items[::-1]


def expire(engine: Engine, store: Store, keep_s: int, batch: int = 100) -> None:
    seen: Seq | None = Seq(0)
    while seen is not None:
        seen = engine.commit(versions.expire, store.no, keep_s * SECOND, seen, batch)


def test_each_change_is_one_version_with_who_when_and_what(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one")
    engine.commit_as(API, notes.update, store.id, note.id, text("two"))
    engine.commit(notes.delete, store.id, note.id)
    first, second, third = history(engine, store, note.id)
    assert [v.operation for v in (first, second, third)] == list(Operation)
    assert [v.ordinal for v in (first, second, third)] == [1, 2, 3]
    assert second.created_by == API.actor
    assert (third.path, third.sha256, third.size_bytes) == ("/a", None, None)
    assert engine.view(versions.text_of, first) == b"one"
    assert engine.view(versions.text_of, third) is None
    assert first.created_at < second.created_at < third.created_at


def test_order_is_the_logs_even_when_the_clock_jumps_back(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one")
    engine.clock -= 100 * SECOND
    engine.commit(notes.update, store.id, note.id, text("two"))
    assert [v.ordinal for v in history(engine, store, note.id)] == [1, 2]
    newest = engine.view(versions.list_page, store.id).items[0]
    assert newest.ordinal == 2
    first, second = history(engine, store, note.id)
    for since, until, expected in (
        (None, Time(2**62), [2, 1]),
        (first.created_at, None, [1]),
        (None, second.created_at, [2]),
        (second.created_at, first.created_at, [2, 1]),
        (Time(second.created_at + 1), Time(first.created_at - 1), []),
    ):
        found = engine.view(versions.list_page, store.id, since=since, until=until).items
        assert [v.ordinal for v in found] == expected


def test_filters_narrow_and_combine_and_pages_go_on(engine: Engine, store: Store):
    first = make(engine, store, "/a", "1", "2", "3")
    other = make(engine, store, "/b", "1", "2")
    engine.commit_as(API, notes.delete, store.id, other.id)
    listed = versions.list_page

    def found(**wanted: object) -> list[tuple[str, int]]:
        items: list[Version] = []
        after = None
        while True:
            page = engine.view(listed, store.id, **wanted, limit=2, after=after)
            items += page.items
            after = page.after
            if after is None:
                return [(v.note_id, v.ordinal) for v in items]

    assert found() == [(other.id, n) for n in (3, 2, 1)] + [(first.id, n) for n in (3, 2, 1)]
    assert found(note_id=first.id) == [(first.id, n) for n in (3, 2, 1)]
    assert found(operation=Operation.CREATED) == [(other.id, 1), (first.id, 1)]
    assert found(actor=API.actor) == [(other.id, 3)]
    assert found(actor=API.actor, note_id=first.id) == []
    assert found(operation=Operation.MODIFIED, note_id=first.id) == [(first.id, 3), (first.id, 2)]
    at = history(engine, store, first.id)[1].created_at
    assert found(since=at, until=at) == [(first.id, 2)]
    assert found(since=at, operation=Operation.CREATED) == [(other.id, 1)]
    assert found(note_id="mem_missing") == []


def test_version_of_another_store_is_not_found(engine: Engine, store: Store):
    other = engine.commit(stores.create, "other")
    note = make(engine, store, "/a", "one")
    for missing in (note.version_id, "memver_x", "", "x" * 600, note.id):
        with pytest.raises(NotFound):
            engine.view(versions.get, other.id, missing)


# ------------------------------------------------------------------------------------ redaction


def test_head_of_a_living_or_archived_note_cannot_be_redacted(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one", "two")
    with pytest.raises(Conflict):
        engine.commit(versions.redact, store.id, note.version_id)
    engine.commit(notes.archive, store.id, note.id, "superseded")
    with pytest.raises(Conflict):
        engine.commit(versions.redact, store.id, note.version_id)


def test_redaction_keeps_who_and_when_and_is_idempotent(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one", "two")
    first = history(engine, store, note.id)[0]
    done = engine.commit_as(API, versions.redact, store.id, first.id)
    assert (done.path, done.sha256, done.size_bytes) == (None, None, None)
    assert (done.created_at, done.created_by) == (first.created_at, first.created_by)
    assert done.redacted_by == API.actor
    assert engine.commit(versions.redact, store.id, first.id) == done
    assert engine.view(versions.get, store.id, first.id) == done
    assert engine.view(versions.text_of, done) is None
    assert first.sha256 is not None
    with engine.env.read() as txn:
        assert txn.get("content", bytes.fromhex(first.sha256)) is None
    rows = engine.view(change.read, Seq(0), 100)
    assert next(row for row in rows if row.seq == first.seq).name == ""
    with pytest.raises(Invalid):
        engine.commit(notes.restore, store.id, first.id, NO_SECRETS)


def test_text_shared_with_another_version_survives_redaction_of_one(engine: Engine, store: Store):
    note = make(engine, store, "/a", "same", "other")
    keeper = make(engine, store, "/b", "same")
    engine.commit(versions.redact, store.id, history(engine, store, note.id)[0].id)
    assert engine.view(content.get, keeper.sha256) == b"same"


def test_last_version_of_a_deleted_note_can_be_redacted(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one")
    engine.commit(notes.delete, store.id, note.id)
    for version in history(engine, store, note.id):
        engine.commit(versions.redact, store.id, version.id)
    assert [v.path for v in history(engine, store, note.id)] == [None, None]


# ------------------------------------------------------------------------------------ retention


def test_retention_keeps_the_two_newest_of_a_living_note(engine: Engine, store: Store):
    note = make(engine, store, "/a", *"12345")
    fresh = make(engine, store, "/b", "x")
    engine.clock += 100 * SECOND
    expire(engine, store, 10, batch=2)
    assert [v.ordinal for v in history(engine, store, note.id)] == [4, 5]
    assert [v.ordinal for v in history(engine, store, fresh.id)] == [1]


def test_retention_keeps_what_is_young_enough(engine: Engine, store: Store):
    note = make(engine, store, "/a", *"12345")
    engine.clock = history(engine, store, note.id)[2].created_at + 10 * SECOND - SECOND
    expire(engine, store, 10)
    assert [v.ordinal for v in history(engine, store, note.id)] == [3, 4, 5]


def test_retention_takes_all_of_a_deleted_note_and_keeps_an_archived_ones_two(
    engine: Engine, store: Store
):
    gone, away = make(engine, store, "/gone", *"123"), make(engine, store, "/away", *"123")
    engine.commit(notes.delete, store.id, gone.id)
    engine.commit(notes.archive, store.id, away.id, "stale")
    first = history(engine, store, gone.id)[0]
    engine.commit(versions.redact, store.id, first.id)
    engine.clock += 100 * SECOND
    expire(engine, store, 10)
    assert history(engine, store, gone.id) == []
    assert [v.ordinal for v in history(engine, store, away.id)] == [2, 3]
    with pytest.raises(NotFound):
        engine.commit(notes.purge, store.id, gone.id)
    with pytest.raises(NotFound):
        engine.view(versions.get, store.id, first.id)


def test_retention_leaves_no_gap_when_the_clock_was_set_back(engine: Engine, store: Store):
    engine.clock += 1_000 * SECOND
    note = make(engine, store, "/a", "1")
    engine.clock -= 1_000 * SECOND
    engine.commit(notes.update, store.id, note.id, text("2"))
    engine.commit(notes.delete, store.id, note.id)
    engine.clock += 100 * SECOND
    expire(engine, store, 50)
    assert [v.ordinal for v in history(engine, store, note.id)] == [1, 2, 3]
    engine.clock += 2_000 * SECOND
    expire(engine, store, 50, batch=1)
    assert history(engine, store, note.id) == []


# -------------------------------------------------------------------------------------- restore


def test_restore_is_a_new_version_with_the_old_text(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one", "two")
    first = history(engine, store, note.id)[0]
    engine.commit(notes.update, store.id, note.id, None, path.parse("/moved"))
    back = engine.commit(notes.restore, store.id, first.id, NO_SECRETS)
    assert engine.view(notes.text_of, back) == b"one"
    assert (notes.note_of(back).id, back.name) == (note.id, "moved")
    assert [v.ordinal for v in history(engine, store, note.id)] == [1, 2, 3, 4]
    again = engine.commit(notes.restore, store.id, first.id, NO_SECRETS)
    assert notes.note_of(again).ordinal == 4


def test_restore_of_a_deleted_note_makes_a_new_one_at_its_path(engine: Engine, store: Store):
    note = make(engine, store, "/f/a", "one")
    engine.commit(notes.delete, store.id, note.id)
    back: NodeInfo = engine.commit(notes.restore, store.id, note.version_id, NO_SECRETS)
    assert notes.note_of(back).id != note.id
    assert engine.view(notes.at, store.id, path.parse("/f/a")) == back
    with pytest.raises(PathConflict):
        engine.commit(notes.restore, store.id, note.version_id, NO_SECRETS)
    deleted = history(engine, store, note.id)[-1]
    with pytest.raises(Invalid):
        engine.commit(notes.restore, store.id, deleted.id, NO_SECRETS)


def test_restore_refuses_a_text_with_a_credential_that_was_registered_since(
    engine: Engine, store: Store
):
    note, gone = (
        make(engine, store, "/a", "it is hunter2-secret99", "two"),
        make(engine, store, "/b", "hunter2-secret99 too"),
    )
    engine.commit(notes.delete, store.id, gone.id)
    scanner = secrets.Scanner((secrets.register("mail", "hunter2-secret99", Time(0)),))
    before = engine.view(change.last_seq)
    for version in (history(engine, store, note.id)[0].id, gone.version_id):
        with pytest.raises(SecretRefused, match="mail"):
            engine.commit(notes.restore, store.id, version, scanner)
    assert engine.view(change.last_seq) == before


def test_versions_of_a_path_are_of_every_note_that_was_there(engine: Engine, store: Store):
    first = make(engine, store, "/a", "1")
    engine.commit(notes.update, store.id, first.id, None, path.parse("/b"))
    second = make(engine, store, "/a", "2", "3")
    found = engine.view(versions.list_page, store.id, path="/a", limit=2)
    assert [version.note_id for version in found.items] == [second.id, second.id]
    rest = engine.view(versions.list_page, store.id, path="/a", limit=2, after=found.after)
    assert [version.note_id for version in rest.items] == [first.id]
    assert rest.after is None


def test_archived_note_must_be_brought_back_before_a_restore(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one", "two")
    first = history(engine, store, note.id)[0]
    engine.commit(notes.archive, store.id, note.id, "superseded")
    with pytest.raises(Invalid):
        engine.commit(notes.restore, store.id, first.id, NO_SECRETS)
    make(engine, store, "/a/b", "in the way")
    with pytest.raises(PathConflict):
        engine.commit(notes.unarchive, store.id, note.id)


def test_unlinked_note_has_the_same_history_as_a_deleted_one(engine: Engine, store: Store):
    note = make(engine, store, "/a", "one")
    engine.commit(files.unlink, store.no, store.root, "a")
    assert [v.operation.word for v in history(engine, store, note.id)] == ["created", "deleted"]


HOUR = 3600 * SECOND
DAY = 24 * HOUR


def retention_time(engine: Engine, now: int, uptime: int) -> int:
    with engine.env.write() as txn:
        return versions.retention_time(txn, API, Time(now), uptime)


def test_a_clock_that_runs_ahead_moves_retention_by_days_not_years(engine: Engine, store: Store):
    start = retention_time(engine, 100 * DAY, 0)
    ahead = retention_time(engine, 30_000 * DAY, HOUR)
    assert ahead == start + 2 * DAY  # an hour up, and the day of grace
    assert retention_time(engine, 101 * DAY, HOUR) <= 101 * DAY  # set right again


def test_retention_follows_a_clock_that_is_right(engine: Engine, store: Store):
    made = engine.view(change.newest, 1)[0].at
    assert retention_time(engine, made + HOUR, 0) == made + HOUR
    assert retention_time(engine, made + 2 * HOUR, HOUR) == made + 2 * HOUR
