"""A listing that is walked page by page while others change what is there (SEMANTICS: HTTP)."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memfs.engine import files, notes, stores, tasks, tree, versions
from memfs.engine import path as paths
from memfs.errors import MemfsError
from memfs.store.check import check
from memfs.types import Node, NodeInfo, Operation, Page
from tests.conftest import SECOND, USER, Engine, text
from tests.test_model import MEMORY

# What a listing's rows are known by, and what rises from row to row of a walk.
Row = tuple[Hashable, Any]


def note_row(found: tuple[str, NodeInfo]) -> Row:
    where, info = found
    place = tuple(name.encode() for name in where.strip("/").split("/"))
    return (where if info.note is None else (info.note.id, where)), place


class Walk:
    """One walk of one listing, and what has been there all the time since it began."""

    def __init__(self, read: Callable[..., Page[Row]]) -> None:
        self.read = read
        self.after: str | None = None
        self.done = False
        self.seen: list[Row] = []
        self.lasting = self.everything()

    def everything(self) -> set[Hashable]:
        return {known for known, _ in self.read(limit=10_000, after=None).items}

    def page(self, limit: int) -> None:
        page = self.read(limit=limit, after=self.after)
        assert len(page.items) <= limit
        assert {known for known, _ in page.items} <= self.everything()
        assert (page.after is None) or len(page.items) == limit
        ranks = [rank for _, rank in self.seen[-1:] + page.items]
        assert all(a < b for a, b in pairwise(ranks)), "out of order, or twice"
        self.seen += page.items
        self.after, self.done = page.after, page.after is None

    def notice(self) -> None:
        """See what a change took away."""
        if not self.done:
            self.lasting &= self.everything()

    def finish(self) -> None:
        while not self.done:
            self.page(3)
        times = Counter(known for known, _ in self.seen)
        assert {known: times[known] for known in self.lasting} == dict.fromkeys(self.lasting, 1)


class World:
    """An engine with two stores, and walks of all listings of it."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder)
        self.store = self.engine.commit(stores.create, "walked")
        self.walks: list[Walk] = []

    def begin(self) -> None:
        view, where = self.engine.view, self.store.id

        def listed(rule: Callable[..., Page[Any]], row: Callable[[Any], Row], *args, **kwargs):
            def read(limit: int, after: str | None) -> Page[Row]:
                page = view(rule, *args, limit=limit, after=after, **kwargs)
                return Page([row(each) for each in page.items], page.after)

            return Walk(read)

        newest = partial(listed, versions.list_page, lambda each: (each.id, -each.seq), where)
        made = partial(listed, tasks.list_page, lambda each: (each.id, -each.attachments[0].no))
        self.walks += [
            listed(notes.list_page, note_row, where),
            listed(notes.list_page, note_row, where, depth=1),
            listed(notes.list_page, note_row, where, prefix=("b",)),
            listed(notes.list_page, note_row, where, prefix=("b",), depth=1),
            listed(notes.archived_page, lambda each: (each[1].node, each[1].node), where),
            newest(),
            newest(operation=Operation.CREATED),
            newest(actor=USER.actor),
            newest(since=self.engine.clock - 20 * SECOND, until=self.engine.clock + 5 * SECOND),
            listed(stores.list_page, lambda each: (each.id, -each.no)),
            listed(stores.list_page, lambda each: (each.id, -each.no), include_archived=True),
            made(),
            made(include_ended=False),
            made(store_id=where),
        ]

    def nodes(self) -> list[NodeInfo]:
        """Return all folders and notes, the root first."""

        def read(txn) -> list[NodeInfo]:
            root = tree.get(txn, self.store.root)
            return [root, *tree.folders_below(txn, root), *tree.notes_below(txn, root)]

        return self.engine.view(read)

    def change(self, what: str, a: int, b: int, where: str) -> None:
        """Do something, to the a-th and b-th thing there is; what is refused changes nothing."""
        commit, here = self.engine.commit, self.store.id
        found = self.nodes()
        node = found[a % len(found)]
        note_id = "mem_none" if node.note is None else node.note.id
        folders = [each.node for each in found if each.note is None]
        with suppress(MemfsError):
            match what:
                case "write":
                    commit(notes.create, here, paths.parse(where), text(where))
                case "edit":
                    commit(notes.update, here, note_id, text(f"{a} {b}"))
                case "delete":
                    commit(notes.delete, here, note_id)
                case "purge":
                    commit(notes.purge, here, note_id)
                case "move":
                    commit(notes.update, here, note_id, None, paths.parse(where))
                case "move folder" if node.parent:
                    target = Node(folders[b % len(folders)])
                    name = where.rpartition("/")[2]
                    commit(files.rename, self.store.no, node.parent, node.name, target, name)
                case "archive":
                    commit(notes.archive, here, note_id, "away")
                case "clock":
                    self.engine.clock -= 10 * SECOND
                case "store":
                    commit(stores.create, "other")
                case "drop store" | "archive store":
                    rule = stores.delete if what == "drop store" else stores.archive
                    others = self.engine.view(stores.list_page, name="other", limit=100).items
                    commit(rule, others[b % len(others)].id if others else "none")
                case "task":
                    commit(tasks.create, "ada", [tasks.Wanted(here)] * (b % 2))
                case "end":
                    live = self.engine.view(tasks.live)
                    commit(tasks.end, live[b % len(live)].id if live else "none")


PATHS = [
    *("/a", "/b/c", "/b/d/e", "/b/d/f", "/b-x", "/c/a/a", "/c/b", "/d", "/a/x", "/b", "/b/d"),
    *("/\U0001f9e0/z", "/\ufb00", "/z"),
]
CHANGES = [
    *("write", "edit", "delete", "purge", "move", "move folder", "archive", "clock"),
    *("store", "drop store", "archive store", "task", "end"),
]
changes = st.tuples(
    st.sampled_from(CHANGES), st.integers(0, 30), st.integers(0, 30), st.sampled_from(PATHS)
)
steps = st.lists(st.integers(1, 4) | changes | changes, max_size=40)


@given(before=st.lists(changes, max_size=30), steps=steps)
def test_what_lasts_comes_once_in_every_walk(
    before: Sequence[tuple[str, int, int, str]], steps: Sequence[Any]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="memfs-walk-", dir=MEMORY))
    try:
        world = World(folder)
        with closing(world.engine):
            for where in PATHS[:8]:
                world.change("write", 0, 0, where)
            for what in ("task", "task", "store", "store", "archive"):
                world.change(what, 4, 1, "")
            for each in before:
                world.change(*each)
            world.begin()
            for step in steps:
                if isinstance(step, int):
                    for walk in world.walks:
                        if not walk.done:
                            walk.page(step)
                    continue
                world.change(*step)
                for walk in world.walks:
                    walk.notice()
            for walk in world.walks:
                walk.finish()
            assert check(world.engine.env) == []
    finally:
        shutil.rmtree(folder)


def test_a_listing_of_live_tasks_goes_on_after_one_that_ended(engine: Engine) -> None:
    for n in range(4):
        engine.commit(tasks.create, "ada", (), f"t{n}")
    page = engine.view(tasks.list_page, include_ended=False, limit=2)
    engine.commit(tasks.end, page.items[-1].id)
    rest = engine.view(tasks.list_page, include_ended=False, after=page.after)
    assert [task.id for task in rest.items] == ["t1", "t0"]


def test_tasks_are_listed_in_the_order_of_making_whatever_the_clock_says(engine: Engine) -> None:
    for n in range(5):
        engine.clock -= 100 * SECOND * (n % 2)
        engine.commit(tasks.create, "ada", (), f"t{9 - n}")
    page = engine.view(tasks.list_page, limit=3)
    rest = engine.view(tasks.list_page, after=page.after)
    assert [task.id for task in page.items + rest.items] == ["t5", "t6", "t7", "t8", "t9"]
