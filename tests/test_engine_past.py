import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfs import ids, limits
from memfs.engine import files, notes, past, refused, stores, tree, versions
from memfs.engine import path as paths
from memfs.errors import MemfsError, NotFound
from memfs.store import content
from memfs.store.env import Env, Txn
from memfs.types import Actor, Caller, NotePath, Seq, Sha256, Store, Text, Time

CALLER = Caller(Actor("user_actor", "ada"))
EARLY, LATE = Time(-(2**63)), Time(2**63)


def text(words: str) -> Text:
    data = words.encode()
    return Text(data, Sha256(hashlib.sha256(data).hexdigest()))


class World:
    """A store in one write transaction, with a clock that moves by ten at each operation."""

    def __init__(self, txn: Txn, name: str = "notes") -> None:
        self.txn = txn
        self.now = Time(1_000)
        self.store = stores.create(txn, CALLER, self.now, name)

    def tick(self) -> Time:
        self.now = Time(self.now + 10)
        return self.now

    def create(self, path: str, words: str) -> str:
        return notes.note_of(
            notes.create(
                self.txn, CALLER, self.tick(), self.store.id, paths.parse(path), text(words)
            )
        ).id

    def update(self, note_id: str, words: str | None = None, path: str | None = None) -> None:
        notes.update(
            self.txn,
            CALLER,
            self.tick(),
            self.store.id,
            note_id,
            None if words is None else text(words),
            None if path is None else paths.parse(path),
        )

    def delete(self, note_id: str) -> None:
        notes.delete(self.txn, CALLER, self.tick(), self.store.id, note_id)

    def archive(self, note_id: str) -> None:
        notes.archive(self.txn, CALLER, self.tick(), self.store.id, note_id, "stale")

    def unarchive(self, note_id: str) -> None:
        notes.unarchive(self.txn, CALLER, self.tick(), self.store.id, note_id)

    def purge(self, note_id: str) -> None:
        notes.purge(self.txn, CALLER, self.tick(), self.store.id, note_id)

    def redact(self, version_id: str) -> None:
        versions.redact(self.txn, CALLER, self.tick(), self.store.id, version_id)

    def rename(self, name: str, new_name: str) -> None:
        root = self.store.root
        files.rename(self.txn, CALLER, self.tick(), self.store.no, root, name, root, new_name)

    def expire(self, keep_ns: int) -> None:
        versions.expire(self.txn, CALLER, self.tick(), self.store.no, keep_ns, Seq(0), 1_000)

    def versions(self, note_id: str | None = None) -> list[versions.Version]:
        """Oldest first."""
        found = versions.list_page(self.txn, self.store.id, note_id=note_id, limit=10_000)
        return found.items[::-1]

    def at(self, time: int) -> dict[str, str]:
        found = past.tree_at(self.txn, self.store.no, Time(time))
        return {
            path: content.get(self.txn, version.sha256 or Sha256("")).decode()
            for path, version in found.items()
        }

    def living(self) -> dict[str, str]:
        found = notes.list_page(self.txn, self.store.id, limit=10_000)
        return {path: notes.text_of(self.txn, info).decode() for path, info in found.items}


class Undo(Exception):
    pass


@contextmanager
def world(env: Env) -> Iterator[World]:
    """Make a world that leaves nothing behind, so that an example costs no fsync."""
    with suppress(Undo), env.write() as txn:
        yield World(txn)
        raise Undo


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Env]:
    made = Env(tmp_path_factory.mktemp("data"), 2**28)
    yield made
    made.close()


@pytest.fixture
def w(env: Env) -> Iterator[World]:
    with world(env) as made:
        yield made


# ----------------------------------------------------------------------------------------- Paths


def test_paths_are_browsed_as_folders_in_byte_order() -> None:
    found = past.Paths([("/a/b", 3), ("/a", 1), ("/a b", 2), ("/é", 4), ("/a/b", 9), ("/a/c/d", 5)])
    assert list(found.children(())) == [("a", True), ("a b", False), ("é", False)]
    assert list(found.children(("a",))) == [("b", False), ("c", True)]
    assert found.numbers(("a", "b")) == [3, 9]
    assert found.numbers(("a",)) == [1]
    assert found.numbers(("a", "c")) == []
    assert found.has_below(("a", "c"))
    assert not found.has_below(("a", "b"))
    assert not past.Paths([]).has_below(())


names = st.sampled_from(["a", "b", "a b", "a-", "é", "\U0001f600"])
some_paths = st.lists(names, min_size=1, max_size=3).map(tuple)


@given(st.lists(some_paths, max_size=12), some_paths)
def test_paths_agree_with_a_plain_search(rows: list[tuple[str, ...]], at: tuple[str, ...]) -> None:
    found = past.Paths(("/" + "/".join(row), number) for number, row in enumerate(rows))
    assert found.numbers(at) == [number for number, row in enumerate(rows) if row == at]
    for folder in ((), at):
        below = [row for row in rows if row[: len(folder)] == folder and row != folder]
        assert found.has_below(folder) == bool(below)
        there = sorted({row[len(folder)] for row in below}, key=str.encode)
        assert list(found.children(folder)) == [
            (name, any(row[: len(folder) + 1] == (*folder, name) != row for row in below))
            for name in there
        ]


# --------------------------------------------------------------------------------------- tree_at


def test_a_time_shows_the_texts_and_paths_of_then(w: World) -> None:
    note = w.create("/a.md", "one")
    created = w.now
    w.update(note, "two")
    changed = w.now
    w.update(note, path="/d/b.md")
    moved = w.now
    w.delete(note)
    assert w.at(created - 1) == {}
    assert w.at(created) == {"/a.md": "one"}
    assert w.at(changed - 1) == {"/a.md": "one"}
    assert w.at(changed) == {"/a.md": "two"}
    assert w.at(moved) == {"/d/b.md": "two"}
    assert w.at(w.now) == {}


def test_an_archived_note_is_away_only_while_it_was(w: World) -> None:
    note = w.create("/a.md", "one")
    w.archive(note)
    first = w.now
    w.unarchive(note)
    back = w.now
    w.archive(note)
    w.create("/a.md", "another")
    assert w.at(first - 1) == w.at(back) == {"/a.md": "one"}
    assert w.at(first) == w.at(back - 1) == {}
    assert w.at(w.now) == w.living() == {"/a.md": "another"}


def test_a_note_archived_before_expired_versions_is_where_it_was(w: World) -> None:
    note = w.create("/a.md", "one")
    w.archive(note)
    other = w.create("/b.md", "other")
    w.unarchive(note)
    w.update(note, "two")
    w.update(note, "three")
    at = w.now
    w.delete(other)
    w.expire(keep_ns=-1_000_000)
    assert [version.ordinal for version in w.versions(note)] == [2, 3]
    assert w.at(at) == w.living() == {"/a.md": "three"}


def test_a_redacted_version_shows_nothing_and_no_older_text(w: World) -> None:
    note = w.create("/a.md", "one")
    w.update(note, "two")
    second = w.now
    w.update(note, "three")
    w.redact(w.versions(note)[1].id)
    assert w.at(second) == {}
    assert w.at(second - 1) == {"/a.md": "one"}
    assert w.at(w.now) == {"/a.md": "three"}


def test_other_stores_are_not_seen(w: World) -> None:
    w.create("/a.md", "one")
    other = World(w.txn, "other")
    assert other.at(LATE) == {}
    assert w.at(EARLY) == {}


def test_a_clock_that_jumps_back_leaves_the_newest_of_those_it_had(w: World) -> None:
    note = w.create("/a.md", "one")
    first = w.now
    w.update(note, "two")
    w.now = Time(first - 500)
    w.update(note, "three")
    assert w.at(w.now) == w.at(first) == w.at(LATE) == w.living() == {"/a.md": "three"}


operations = st.lists(
    st.tuples(
        st.sampled_from(["create", "update", "move", "delete", "archive", "unarchive", "rename"]),
        st.integers(0, 5),
        st.sampled_from(["/a", "/b", "/a/b", "/c/a", "/c/b/d"]),
    ),
    max_size=25,
)


def run(w: World, made: list[str], operation: str, which: int, path: str) -> None:
    """Run one operation; those that the rules refuse change nothing."""
    note = made[which % len(made)] if made else ids.new("mem_")
    try:
        if operation == "create":
            made.append(w.create(path, f"made at {w.now}"))
        elif operation == "update":
            w.update(note, f"changed at {w.now}")
        elif operation == "move":
            w.update(note, path=path)
        elif operation == "rename":
            w.rename("abc"[which % 3], "abc"[which // 3])
        elif operation == "redact":
            found = w.versions()
            w.redact(found[which % len(found)].id if found else "")
        elif operation == "expire":
            w.expire(which * 20)
        else:
            getattr(w, operation)(note)
    except MemfsError:
        pass


@settings(deadline=None)
@given(ops=operations)
def test_every_time_shows_the_tree_that_was_living_then(
    env: Env, ops: list[tuple[str, int, str]]
) -> None:
    with world(env) as w:
        made: list[str] = []
        then = {w.now: w.living()}
        for operation in ops:
            run(w, made, *operation)
            then[w.now] = w.living()
        assert w.at(w.now) == w.at(LATE) == w.living()
        for time, living in then.items():
            assert w.at(time) == living


taking = st.sampled_from(["create", "update", "delete", "archive", "redact", "purge", "expire"])


@settings(deadline=None)
@given(
    ops=operations,
    later=st.lists(st.tuples(taking, st.integers(0, 5), st.just("/z")), max_size=3),
)
def test_a_snapshot_that_still_holds_reads_the_same_again(
    env: Env, ops: list[tuple[str, int, str]], later: list[tuple[str, int, str]]
) -> None:
    with world(env) as w:
        made: list[str] = []
        for operation in ops:
            run(w, made, *operation)
        no, at = w.store.no, Time(w.now - 50)
        tree_then = past.snapshot_at(w.txn, no, at)
        gone_then = past.departed(w.txn, no)
        for operation in later:
            run(w, made, *operation)
        everything = past.snapshot_at(w.txn, no, at)
        gone = past.departed(w.txn, no)
        still = past.still(w.txn, no, tree_then, at)
        assert still is None or (still.stamp, rows(still)) == (everything.stamp, rows(everything))
        still = past.still(w.txn, no, gone_then)
        assert still is None or (still.stamp, rows(still)) == (gone.stamp, rows(gone))


def rows(snapshot: past.Snapshot) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    folders: list[tuple[str, ...]] = [()]
    for folder in folders:
        for name, below in snapshot.paths.children(folder):
            found += [
                ("/".join((*folder, name)), n) for n in snapshot.paths.numbers((*folder, name))
            ]
            if below:
                folders.append((*folder, name))
    assert len(found) == len(snapshot.paths)
    return found


def test_a_snapshot_of_the_past_outlives_new_changes_but_not_redaction(w: World) -> None:
    note = w.create("/a.md", "one")
    at = w.now
    w.update(note, "two")
    snapshot = past.snapshot_at(w.txn, w.store.no, at)
    World(w.txn, "other").create("/a.md", "elsewhere")
    w.update(note, "three")
    still = past.still(w.txn, w.store.no, snapshot, at)
    assert still is not None
    w.redact(w.versions(note)[0].id)
    assert past.still(w.txn, w.store.no, still, at) is None


def test_a_redaction_after_many_other_changes_ends_a_snapshot(w: World) -> None:
    note = w.create("/a.md", "one")
    at = w.now
    w.update(note, "two")
    info = notes.get(w.txn, w.store.id, note)
    snapshot = past.snapshot_at(w.txn, w.store.no, at)
    for number in range(limits.SCAN_BATCH + 1):
        files.set_attr(w.txn, CALLER, w.tick(), info.node, mode=number % 2)
    w.redact(w.versions(note)[0].id)
    assert past.still(w.txn, w.store.no, snapshot, at) is None


def test_expired_versions_end_a_snapshot(w: World) -> None:
    w.delete(w.create("/a.md", "one"))
    snapshot = past.departed(w.txn, w.store.no)
    w.expire(keep_ns=-1_000_000)
    assert past.still(w.txn, w.store.no, snapshot) is None
    assert len(past.departed(w.txn, w.store.no).paths) == 0


# --------------------------------------------------------------------------------------- history


def history(w: World, path: str) -> tuple[set[str], list[str]]:
    gone = past.departed(w.txn, w.store.no).paths
    names = paths.segments(NotePath(path)) if path != "/" else ()
    below, kept = past.history(w.txn, w.store.no, names, gone)
    return below, sorted(
        content.get(w.txn, version.sha256 or Sha256("")).decode() for version in kept
    )


def test_a_living_note_has_all_its_texts_at_the_path_it_has_now(w: World) -> None:
    note = w.create("/a.md", "one")
    w.update(note, "two", "/d/b.md")
    assert history(w, "/") == ({"d"}, [])
    assert history(w, "/d") == ({"b.md"}, [])
    assert history(w, "/d/b.md") == (set(), ["one", "two"])
    with pytest.raises(NotFound):
        history(w, "/a.md")


def test_deleted_and_archived_notes_are_where_they_were_last(w: World) -> None:
    w.delete(w.create("/a", "old"))
    w.create("/a/b", "new")
    w.delete(w.create("/a/c", "first"))
    w.create("/a/c", "second")
    w.archive(w.create("/z/y", "away"))
    assert history(w, "/") == ({"a", "z"}, [])
    assert history(w, "/a") == ({"b", "c"}, ["old"])
    assert history(w, "/a/c") == (set(), ["first", "second"])
    assert history(w, "/z/y") == (set(), ["away"])


def test_purged_and_wholly_redacted_notes_have_no_history(w: World) -> None:
    purged, redacted = w.create("/a", "one"), w.create("/b", "two")
    w.delete(purged)
    w.delete(redacted)
    w.purge(purged)
    for version in w.versions(redacted):
        w.redact(version.id)
    assert history(w, "/") == (set(), [])


# ------------------------------------------------------------------------------------------- log


def test_changes_are_told_in_words_oldest_first(w: World) -> None:
    note = w.create("/d/a.md", "one")
    w.update(note, "two")
    w.archive(note)
    w.unarchive(note)
    w.archive(note)
    w.delete(note)
    w.purge(note)
    kept = w.create("/b.md", "x")
    info = notes.get(w.txn, w.store.id, kept)
    files.set_attr(w.txn, CALLER, w.tick(), info.node, mode=0o600)
    files.make_folder(w.txn, CALLER, w.tick(), w.store.no, w.store.root, "e", 0o755)
    refused.keep(w.txn, CALLER, w.tick(), w.store.no, "/b.md", text("lost"), "why", None)
    told = [line[2:] for line in past.recent(w.txn, w.store.no, 100)]
    assert told == [
        ("store", w.store.id, ""),
        ("folder", "/d", ""),
        ("created", note, ""),  # purged: the path is forgotten
        ("modified", note, ""),
        ("folder", "/d", ""),  # went with its last note
        ("archived", note, ""),
        ("folder", "/d", ""),
        ("unarchived", note, ""),
        ("folder", "/d", ""),
        ("archived", note, ""),
        ("deleted", note, ""),
        ("purged", note, ""),
        ("created", "/b.md", ""),
        ("attr", "/b.md", ""),
        ("folder", "/e", ""),
        ("refused", "/b.md", "why"),
    ]
    assert [line[2:] for line in past.recent(w.txn, w.store.no, 3)] == told[-3:]


def test_a_redacted_version_names_no_path(w: World) -> None:
    note = w.create("/secret-name", "one")
    w.update(note, path="/b")
    w.redact(w.versions(note)[0].id)
    told = past.recent(w.txn, w.store.no, 100)
    assert not any("secret-name" in line.where for line in told)
    assert (told[-1].what, told[-1].where) == ("redacted", w.versions(note)[0].id)


def test_the_store_of_another_does_not_show(w: World) -> None:
    other: Store = stores.create(w.txn, CALLER, w.tick(), "other")
    w.create("/a", "one")
    assert [line.what for line in past.recent(w.txn, other.no, 100)] == ["store"]


def test_the_current_tree_holds_what_the_log_says(w: World) -> None:
    w.create("/a", "one")
    info = tree.resolve(w.txn, w.store, ("a",))
    assert info is not None
    seq = notes.note_of(info).head_seq
    assert past.text_at(w.txn, w.store.no, seq) == b"one"
    with pytest.raises(NotFound):
        past.text_at(w.txn, w.store.no, seq + 1)
