"""The engine does what the model does, whatever the order of requests."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar
from unittest import mock

import outcome
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from memfs import limits
from memfs.engine import files, notes, refused, secrets, stores, tasks, tree, versions
from memfs.engine import path as paths
from memfs.errors import MemfsError
from memfs.store import content
from memfs.store.check import check
from memfs.store.env import Txn
from memfs.types import Caller, Node, NodeInfo, NotePath, Operation, Sha256, Text, Time
from tests import model as plain
from tests.conftest import API, SECOND, USER, Engine, text
from tests.model import Folder, Model, Note, Save, Store

T = TypeVar("T")

SECRET = "hunter2-secret99"
SCANNER = secrets.Scanner((secrets.register("test", SECRET, Time(0)),))
AGENT = Caller(plain.Actor("session_actor", "task_1"))

NOTE_BYTES = 2_000
SMALL_LIMITS = {
    "NOTE_BYTES": NOTE_BYTES,
    "NOTES_PER_STORE": 6,
    "LIVE_SHARED_STORES": 2,
    "REFUSED_PER_STORE": 3,
}

LONG = "l" * 255  # four of them with their slashes are exactly the longest path
DEEP = tuple("abcabcabcabcabcabcab")  # the deepest path
TEXTS = (
    b"", b"one\n", b"two\n", "drei ü\n".encode(), b"a line that compresses\n" * 9,
    b"my dog is called hunter2-", b"x y\n" * (NOTE_BYTES // 4),
)  # fmt: skip

# fsync costs nothing there; durability is the business of test_crash.py
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

picks = st.integers(0, 40)
names = st.sampled_from(["a", "b", "c", "a.md", LONG])
any_names = st.one_of(
    *[names] * 8,
    st.sampled_from(
        ["ä", ".memfs", "", ".", "..", "x" * 256, "x" * 600, "e\u0301", "a\u200bb", "a/b", "a\n"]
    ),
)
api_paths = st.one_of(
    st.lists(names, min_size=1, max_size=3).map(tuple),
    st.sampled_from([DEEP, DEEP[:12], (LONG,) * 4, (*DEEP[:10], "b"), ("a", "b", "c", "a")]),
)
texts = st.sampled_from(TEXTS)
tails = st.none() | st.sampled_from([b"more\n", b"secret99 or not\n"])
modes = st.sampled_from([0o644, 0o600, 0o100755])
ago = st.none() | st.integers(-5, 40)
callers = st.sampled_from([USER, API, AGENT])


def sha(data: bytes | None) -> Sha256 | None:
    return None if data is None else Sha256(hashlib.sha256(data).hexdigest())


def kind(result: outcome.Outcome[object]) -> object:
    """Return what must be equal: the class of an error, and what a path conflicts with."""
    if isinstance(result, outcome.Value):
        return "done"
    if not isinstance(result.error, MemfsError):
        raise result.error  # a bug in one of the two
    return type(result.error), getattr(result.error, "conflicting_path", None)


def as_path(path: plain.Path) -> NotePath:
    return paths.parse(plain.spelled(path))


class EngineAgainstModel(RuleBasedStateMachine):
    """Each rule runs in both; results or error classes are compared, then everything there is."""

    def __init__(self) -> None:
        super().__init__()
        self.cleanup = ExitStack()
        self.cleanup.enter_context(mock.patch.multiple(limits, **SMALL_LIMITS))
        self.cleanup.enter_context(mock.patch.object(secrets, "NOTE_BYTES", NOTE_BYTES))
        folder = tempfile.mkdtemp(prefix="memfs-model-", dir=MEMORY)
        self.cleanup.callback(shutil.rmtree, folder)
        self.engine = Engine(Path(folder))
        self.cleanup.callback(self.engine.close)
        self.model = Model(SECRET.encode())
        self.caller = USER

    def teardown(self) -> None:
        with self.cleanup:
            assert check(self.engine.env) == []

    # ----------------------------------------------------------------------------------- running

    def both(self, engine: Callable[..., object], model: Callable[..., T], *args, **kwargs):
        """Return the results of a rule and of the model, None if both refused alike."""
        self.model.now = self.engine.clock + SECOND
        self.model.actor = self.caller.actor
        expected = outcome.capture(model)
        done = outcome.capture(self.engine.commit_as, self.caller, engine, *args, **kwargs)
        assert kind(done) == kind(expected), f"engine {done!r:.300}, model {expected!r:.300}"
        return None if isinstance(done, outcome.Error) else (done.unwrap(), expected.unwrap())

    def both_place(self, engine: Callable[..., object], model: Callable[..., T], *args, **kwargs):
        """As both, for rules that return a node; its numbers are remembered with the model's."""
        pair = self.both(engine, model, *args, **kwargs)
        if pair is not None:
            info, each = pair
            assert isinstance(info, NodeInfo)
            self.bind(each, info)

    def bind(self, each: Folder | Note, info: NodeInfo) -> None:
        assert each.node in (0, info.node), "another node than before"
        each.node = info.node
        if isinstance(each, Note):
            assert info.note is not None
            assert each.id in ("", info.note.id), "another note than before"
            each.id = info.note.id

    @staticmethod
    def pick(pick: int, choices: Sequence[T]) -> T:
        return choices[-1 - pick % len(choices)]  # small picks are the newest, and shrink to them

    def store(self, pick: int) -> Store:
        """A store, mostly one that may be written."""
        live = [each for each in self.model.stores if not each.is_gone and not each.is_archived]
        return self.pick(pick, live if live and pick % 8 else self.model.stores)

    def folder(self, pick: int) -> Folder:
        return self.pick(pick, self.mostly_live(pick, self.model.folders))

    def note(self, pick: int) -> Note:
        return self.pick(pick, self.mostly_live(pick, self.model.notes))

    @staticmethod
    def mostly_live(pick: int, choices: list[T]) -> list[T]:
        live = [e for e in choices if not e.is_gone and not e.store.is_archived]
        return live if live and pick % 8 else choices

    def entry(self, folder_pick: int, pick: int, name: str) -> tuple[Folder, str]:
        """An entry of a folder: mostly one that is there."""
        folder = self.folder(folder_pick)
        if pick % 4 and not folder.is_gone and not folder.store.below(folder.path):
            top = folder.store.tree[()]
            assert isinstance(top, Folder)
            folder = top
        there = [path[-1] for path in folder.store.tree if path and path[:-1] == folder.path]
        if pick % 4 == 0 or not there or folder.is_gone:
            return folder, name
        return folder, self.pick(pick, there)

    def seen(self, pick: int, data: bytes) -> tuple[Note, bytes] | None:
        if pick % 2 == 0 or not self.model.notes:
            return None
        return self.pick(pick // 2, self.model.notes), data

    has_notes = precondition(lambda self: bool(self.model.notes))
    has_versions = precondition(lambda self: any(each.versions for each in self.model.stores))

    # ------------------------------------------------------------------------------------- rules

    @initialize()
    def first_store(self) -> None:
        self.create_store("first", own=False)

    @rule(name=st.sampled_from(["notes"] * 6 + ["", "x" * 256, "a\nb"]), own=st.booleans())
    def create_store(self, name: str, own: bool) -> None:
        worker = f"{name}{len(self.model.stores)}" if own and name == "notes" else name

        def task(txn: Txn, caller: Caller, now: Time) -> stores.Store:
            made = tasks.create(txn, caller, now, worker)
            return stores.by_no(txn, made.attachments[0].store)

        def create(txn: Txn, caller: Caller, now: Time) -> stores.Store:
            return stores.create(txn, caller, now, worker)

        pair = self.both(task if own else create, lambda: self.model.create_store(worker, own=own))
        if pair is not None:
            there, made = pair
            made.id, made.no = there.id, there.no
            root = made.tree[()]
            root.node = there.root

    @rule(store=picks, name=st.sampled_from(["other", ""]))
    def rename_store(self, store: int, name: str) -> None:
        of = self.store(store)
        self.both(stores.update, lambda: self.model.rename_store(of, name), of.id, name)

    @rule(store=picks, really=st.integers(0, 5))
    def archive_store(self, store: int, really: int) -> None:
        of = self.store(store)
        if really == 0 or of.is_own:
            self.both(stores.archive, lambda: self.model.archive_store(of), of.id)

    @rule(store=picks, really=st.integers(0, 5))
    def delete_store(self, store: int, really: int) -> None:
        of = self.store(store)
        if really == 0 or of.is_own:
            self.both(stores.delete, lambda: self.model.delete_store(of), of.id)

    @rule(store=picks, path=api_paths, data=texts)
    def create(self, store: int, path: plain.Path, data: bytes) -> None:
        of = self.store(store)
        self.both_place(
            notes.create,
            lambda: self.model.create(of, path, data),
            of.id,
            as_path(path),
            text(data),
        )

    @has_notes
    @rule(note=picks, data=st.none() | texts, path=st.none() | api_paths, right=st.integers(0, 3))
    def update(self, note: int, data: bytes | None, path: plain.Path | None, right: int) -> None:
        of = self.note(note)
        expected = (None, of.text, of.text, b"stale")[right]
        self.both_place(
            notes.update,
            lambda: self.model.update(of, data, path, expected),
            of.store.id,
            of.id,
            None if data is None else text(data),
            None if path is None else as_path(path),
            sha(expected),
        )

    @has_notes
    @rule(note=picks, right=st.integers(0, 3))
    def delete(self, note: int, right: int) -> None:
        of = self.note(note)
        expected = (None, of.text, of.text, b"stale")[right]
        self.both(
            notes.delete,
            lambda: self.model.delete(of, expected),
            of.store.id,
            of.id,
            sha(expected),
        )

    @has_notes
    @rule(note=picks, reason=st.sampled_from(["superseded", "vetoed", "stale", "", "x" * 501]))
    def archive(self, note: int, reason: str) -> None:
        of = self.note(note)
        self.both(notes.archive, lambda: self.model.archive(of, reason), of.store.id, of.id, reason)

    @has_notes
    @rule(note=picks)
    def unarchive(self, note: int) -> None:
        archived = [each for each in self.model.notes if each.is_archived]
        of = self.pick(note, archived or self.model.notes)
        self.both_place(notes.unarchive, lambda: self.model.unarchive(of), of.store.id, of.id)

    @has_notes
    @rule(note=picks)
    def purge(self, note: int) -> None:
        of = self.note(note)
        self.both(notes.purge, lambda: self.model.purge(of), of.store.id, of.id)

    def version(self, pick: int) -> plain.Version:
        return self.pick(pick, [v for each in self.model.stores for v in each.versions])

    @has_versions
    @rule(version=picks)
    def restore(self, version: int) -> None:
        of = self.version(version)
        again = (of.note.store.id, of.id, SCANNER)
        self.both_place(notes.restore, lambda: self.model.restore(of), *again)

    @has_versions
    @rule(version=picks)
    def redact(self, version: int) -> None:
        of = self.version(version)
        self.both(versions.redact, lambda: self.model.redact(of), of.note.store.id, of.id)

    @rule(store=picks, keep_s=st.integers(0, 20), batch=st.integers(1, 3))
    def expire(self, store: int, keep_s: int, batch: int) -> None:
        of = self.store(store)

        def expire(txn: Txn, caller: Caller, now: Time) -> None:
            seen = versions.Seq(0)
            while seen is not None:
                seen = versions.expire(
                    txn, caller, now, versions.StoreNo(of.no), keep_s * SECOND, seen, batch
                )

        self.both(expire, lambda: self.model.expire(of, keep_s * SECOND))

    # ------------------------------------------------------------------------ rules of the mount

    def a_save(self, base: bytes | None, data: bytes, tail: bytes | None, mode: int) -> Save:
        if tail is not None:
            data = (base or b"") + tail
        return Save(data, base, tail, mode, self.engine.clock - 5 * SECOND)

    def engine_save(self, save: Save) -> files.Save:
        digest = sha(save.text)
        assert digest is not None
        return files.Save(
            Text(save.text, digest), sha(save.base), save.tail, save.mode, Time(save.mtime)
        )

    def engine_seen(self, seen: tuple[Note, bytes] | None) -> files.Seen | None:
        if seen is None:
            return None
        digest = sha(seen[1])
        assert digest is not None
        return files.Seen(notes.NoteId(seen[0].id), digest)

    @has_notes
    @rule(
        note=picks, fresh=st.booleans(), same=st.booleans(), old=texts, data=texts, tail=tails,
        mode=modes,
    )  # fmt: skip
    def save(
        self,
        note: int,
        fresh: bool,
        same: bool,
        old: bytes,
        data: bytes,
        tail: bytes | None,
        mode: int,
    ) -> None:
        of = self.note(note)
        data = of.text if same else data
        save = self.a_save(of.text if fresh else old, data, tail, mode)
        self.both_place(
            files.save,
            lambda: self.model.save(of, save),
            Node(of.node),
            self.engine_save(save),
            SCANNER,
        )

    @rule(
        folder=picks, there=picks, name=any_names, waits=st.booleans(), data=texts, tail=tails,
        mode=modes,
    )  # fmt: skip
    def save_new(
        self,
        folder: int,
        there: int,
        name: str,
        waits: bool,
        data: bytes,
        tail: bytes | None,
        mode: int,
    ) -> None:
        at, name = self.entry(folder, there, name)
        found = at.store.tree.get((*at.path, name))
        waiting = found if waits and isinstance(found, Note) else None
        save = self.a_save(waiting.text if waiting else None, data, tail, mode)
        self.both_place(
            files.save_new,
            lambda: self.model.save_new(at, name, save, waiting),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
            self.engine_save(save),
            SCANNER,
            Node(waiting.node) if waiting else None,
        )

    @rule(folder=picks, there=picks, name=any_names, seen=picks, old=texts, data=texts, mode=modes)
    def install(
        self, folder: int, there: int, name: str, seen: int, old: bytes, data: bytes, mode: int
    ) -> None:
        at, name = self.entry(folder, there, name)
        known = self.seen(seen, old)
        save = self.a_save(None, data, None, mode)
        self.both_place(
            files.install,
            lambda: self.model.install(at, name, save, known),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
            self.engine_save(save),
            self.engine_seen(known),
        )

    @rule(folder=picks, there=picks, name=any_names, expected=st.none() | st.none() | texts)
    def unlink(self, folder: int, there: int, name: str, expected: bytes | None) -> None:
        at, name = self.entry(folder, there, name)
        self.both_place(
            files.unlink,
            lambda: self.model.unlink(at, name, expected),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
            sha(expected),
        )

    def entries(self) -> list[tuple[Folder, str]]:
        """Every entry of every store."""
        found: list[tuple[Folder, str]] = []
        for store in self.model.stores:
            for path in store.tree:
                above = store.tree[path[:-1]]
                if path and isinstance(above, Folder):
                    found.append((above, path[-1]))
        return found

    @rule(there=picks)
    def remove_what_is_there(self, there: int) -> None:
        entries = self.entries()
        if entries:
            at, name = self.pick(there, entries)
            is_note = isinstance(at.store.tree[*at.path, name], Note)
            rules = (files.unlink, self.model.unlink, [None]) if is_note else None
            engine, model, rest = rules or (files.remove_folder, self.model.remove_folder, [])
            where = (stores.StoreNo(at.store.no), Node(at.node), name)
            self.both_place(engine, lambda: model(at, name, *rest), *where)

    @rule(folder=picks, there=picks, name=any_names, mode=modes)
    def make_folder(self, folder: int, there: int, name: str, mode: int) -> None:
        at, name = self.entry(folder, there * 4, name)
        self.both_place(
            files.make_folder,
            lambda: self.model.make_folder(at, name, mode),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
            mode,
        )

    @rule(folder=picks, there=picks, name=any_names)
    def remove_folder(self, folder: int, there: int, name: str) -> None:
        at, name = self.entry(folder, there, name)
        self.both_place(
            files.remove_folder,
            lambda: self.model.remove_folder(at, name),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
        )

    @rule(
        folder=picks, there=picks, name=any_names, new_folder=picks, new_there=picks,
        new_name=any_names, seen=picks, old=texts, replace=st.booleans(),
    )  # fmt: skip
    def rename(
        self,
        folder: int,
        there: int,
        name: str,
        new_folder: int,
        new_there: int,
        new_name: str,
        seen: int,
        old: bytes,
        replace: bool,
    ) -> None:
        at, name = self.entry(folder, there, name)
        to, new_name = self.entry(new_folder, new_there, new_name)
        self.rename_entry(at, name, to, new_name, self.seen(seen, old), replace=replace)

    @rule(there=picks, new_folder=picks, new_there=picks, name=names, seen=picks, old=texts)
    def rename_what_is_there(
        self, there: int, new_folder: int, new_there: int, name: str, seen: int, old: bytes
    ) -> None:
        entries = self.entries()
        if entries:
            at, old_name = self.pick(there, entries)
            to, name = self.entry(new_folder, new_there, name)
            self.rename_entry(at, old_name, to, name, self.seen(seen, old), replace=True)

    def rename_entry(
        self,
        at: Folder,
        name: str,
        to: Folder,
        new_name: str,
        known: tuple[Note, bytes] | None,
        *,
        replace: bool,
    ) -> None:
        if at.store is not to.store:
            to = at  # the mount answers EXDEV
        self.both_place(
            files.rename,
            lambda: self.model.rename(at, name, to, new_name, known, replace=replace),
            stores.StoreNo(at.store.no),
            Node(at.node),
            name,
            Node(to.node),
            new_name,
            self.engine_seen(known),
            replace=replace,
        )

    @rule(is_note=st.booleans(), pick=picks, mode=st.none() | modes, moved=st.booleans())
    def set_attr(self, is_note: bool, pick: int, mode: int | None, moved: bool) -> None:
        each = self.note(pick) if is_note and self.model.notes else None
        each = each or self.folder(pick)
        mtime = self.engine.clock - 7 * SECOND if moved else None
        self.both_place(
            files.set_attr,
            lambda: self.model.set_attr(each, mode, mtime),
            Node(each.node),
            mode,
            None if mtime is None else Time(mtime),
        )

    @rule(store=picks, path=api_paths, data=texts)
    def keep_refused(self, store: int, path: plain.Path, data: bytes) -> None:
        of = self.store(store)
        self.both(
            refused.keep,
            lambda: self.model.keep_refused(of, plain.spelled(path), data),
            stores.StoreNo(of.no),
            plain.spelled(path),
            text(data),
            "changed meanwhile",
            None,
        )

    # ------------------------------------------------------------------------------------ others

    @rule()
    def reopen(self) -> None:
        self.engine.reopen()

    @rule(caller=callers)
    def somebody_else(self, caller: Caller) -> None:
        self.caller = caller

    @rule(seconds=st.integers(-30, 30))
    def clock_jumps(self, seconds: int) -> None:
        self.engine.clock += seconds * SECOND

    @rule(store=picks, prefix=st.lists(names, max_size=2).map(tuple), limit=st.integers(1, 4))
    def list_pages(self, store: int, prefix: plain.Path, limit: int) -> None:
        of = self.store(store)
        if of.is_gone:
            return
        found: list[str] = []
        after = None
        while True:
            page = self.engine.view(notes.list_page, of.id, prefix, 0, limit, after)
            found += [path for path, _ in page.items]
            after = page.after
            if after is None:
                break
            assert len(page.items) == limit
        assert found == [
            plain.spelled(path) for path in of.below(prefix) if isinstance(of.tree[path], Note)
        ]

    @rule(
        store=picks, note=picks, by=st.sampled_from(["none", "none", "note", "operation", "actor"]),
        operation=st.sampled_from(list(Operation)), limit=st.integers(1, 4), since=ago, until=ago,
    )  # fmt: skip
    def version_pages(
        self,
        store: int,
        note: int,
        by: str,
        operation: Operation,
        limit: int,
        since: int | None,
        until: int | None,
    ) -> None:
        of = self.store(store)
        if of.is_gone:
            return
        expected = list(reversed(of.versions))
        wanted: dict[str, object] = {}
        if by == "note" and self.model.notes:
            one = self.note(note)
            wanted = {"note_id": one.id}
            expected = [each for each in expected if each.note is one]
        elif by == "operation":
            wanted = {"operation": operation}
            expected = [each for each in expected if each.operation == operation.word]
        elif by == "actor":
            wanted = {"actor": self.caller.actor}
            expected = [each for each in expected if each.actor == self.caller.actor]
        if since is not None:
            wanted["since"] = Time(self.engine.clock - since * SECOND)
            expected = [each for each in expected if each.at >= self.engine.clock - since * SECOND]
        if until is not None:
            wanted["until"] = Time(self.engine.clock - until * SECOND)
            expected = [each for each in expected if each.at <= self.engine.clock - until * SECOND]
        found: list[str] = []
        after = None
        while True:
            page = self.engine.view(versions.list_page, of.id, **wanted, limit=limit, after=after)
            found += [each.id for each in page.items]
            after = page.after
            if after is None:
                break
            assert len(page.items) == limit
        assert found == [each.id for each in expected]

    # --------------------------------------------------------------------------------- comparison

    @invariant()
    def everything_is_the_same(self) -> None:
        with self.engine.env.read() as txn:
            there = {store.no: store for store in stores.everything(txn)}
            assert set(there) == {each.no for each in self.model.stores if not each.is_gone}
            for store in self.model.stores:
                if not store.is_gone:
                    self.compare_store(txn, there[stores.StoreNo(store.no)], store)

    def compare_store(self, txn: Txn, there: stores.Store, store: Store) -> None:
        assert there.name == store.name
        assert (there.archived_at is not None) == store.is_archived
        assert there.notes == len(list(store.notes()))
        found = {(): tree.get(txn, there.root)}
        self.gather(txn, there, (), found)
        assert set(found) == set(store.tree)
        for path, info in found.items():
            self.compare_node(txn, info, store.tree[path])
        away = {info.node: info for info in notes.list_archived(txn, store.id)}
        assert set(away) == {each.node for each in store.archived}
        for each in store.archived:
            self.compare_node(txn, away[Node(each.node)], each)
            assert away[Node(each.node)].name == each.where
        history = list(reversed(versions.list_page(txn, store.id, limit=10_000).items))
        assert len(history) == len(store.versions)
        for version, each in zip(history, store.versions, strict=True):
            assert each.id in ("", version.id)
            each.id = version.id
            assert version.note_id == each.note.id
            assert (version.operation.word, version.ordinal) == (each.operation, each.ordinal)
            assert (version.path, version.sha256) == (each.path, sha(each.text))
            assert (version.created_at, version.created_by) == (each.at, each.actor)
            assert (version.redacted_at is not None) == each.is_redacted
        kept = [(r.n, r.path, r.sha256) for r in refused.everything(txn, there.no)]
        assert kept == [(each.n, each.path, sha(each.text)) for each in store.refused]

    def gather(
        self, txn: Txn, store: stores.Store, at: plain.Path, found: dict[plain.Path, NodeInfo]
    ) -> None:
        for name, node, _ in list(tree.entries(txn, store.no, found[at].node)):
            info = found[*at, name] = tree.get(txn, node)
            if info.note is None:
                self.gather(txn, store, (*at, name), found)

    def compare_node(self, txn: Txn, info: NodeInfo, each: Folder | Note) -> None:
        assert (info.note is None) == isinstance(each, Folder)
        self.bind(each, info)
        assert info.mode == each.mode
        if isinstance(each, Folder):
            assert info.kept == each.is_kept, each.path
            return
        note = notes.note_of(info)
        assert note.sha256 == sha(each.text)
        assert content.get(txn, note.sha256) == each.text
        assert (note.ordinal, info.mtime) == (each.ordinal, each.mtime)
        assert (note.created_at, note.updated_at) == (each.created_at, each.updated_at)


class TestModel(EngineAgainstModel.TestCase):
    settings = settings(max_examples=200, stateful_step_count=40)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))  # five of 400 examples, each from another seed
def test_model_deep(part: int):
    deep = settings(max_examples=400, stateful_step_count=50, derandomize=False)
    run_state_machine_as_test(EngineAgainstModel, settings=deep)
