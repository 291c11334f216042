import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from memfs import ids, limits
from memfs.engine import files, notes, past, refused, stores, tasks, versions
from memfs.engine import path as paths
from memfs.engine.service import Service
from memfs.errors import IsAFolder, MemfsError, NotAFolder, NotFound
from memfs.fs import control
from memfs.fs.control import Control, Kind
from memfs.store.env import Env
from memfs.types import (
    Access,
    Actor,
    Attachment,
    AttachmentNo,
    Caller,
    Node,
    NoteId,
    Operation,
    Refused,
    Seq,
    Sha256,
    StoreId,
    StoreNo,
    Task,
    TaskId,
    Text,
    Time,
    Version,
    VersionId,
    WorkerId,
)

CALLER = Caller(Actor("user_actor", "ada"))
START = 1_796_119_872_123_456_789  # 2026-12-01T10:11:12.123456789Z
FILE, FOLDER = Kind.FILE, Kind.FOLDER


def text(words: str) -> Text:
    data = words.encode()
    return Text(data, Sha256(hashlib.sha256(data).hexdigest()))


class World:
    """A service with a task of two stores, and the `.memfs` of the second."""

    def __init__(self, service: Service, clock: list[int]) -> None:
        self.service = service
        self.clock = clock
        self.status: dict[str, object] = {"index_lag": 3}

    async def attach(self) -> None:
        store = await self.commit(stores.create, "Notes of Ada", "What Ada knows")
        wanted = tasks.Wanted(store.id, Access.READ_WRITE, "Keep it short.")
        self.task = await self.commit(tasks.create, "worker", [wanted], "task_1")
        self.attachment = self.task.attachments[1]
        self.store = store
        self.control = Control(self.service, self.task, self.attachment, lambda: self.status)

    async def commit(self, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.clock[0] += 10**9
        return await self.service.commit(rule, CALLER, *args, **kwargs)

    async def create(self, path: str, words: str) -> str:
        info = await self.commit(notes.create, self.store.id, paths.parse(path), text(words))
        return notes.note_of(info).id

    async def update(self, note_id: str, words: str) -> None:
        await self.commit(notes.update, self.store.id, note_id, text(words))

    async def move(self, note_id: str, path: str) -> None:
        await self.commit(notes.update, self.store.id, note_id, None, paths.parse(path))

    async def delete(self, note_id: str) -> None:
        await self.commit(notes.delete, self.store.id, note_id)

    async def refuse(self, path: str, words: str, reason: str = "changed meanwhile") -> Refused:
        return await self.commit(
            refused.keep, self.store.no, path, text(words), reason, Sha256("0" * 64)
        )

    def versions(self, note_id: str) -> list[Version]:
        """Oldest first."""
        found = self.service.view(versions.list_page, self.store.id, note_id=note_id, limit=1_000)
        return found.items[::-1]

    def now(self) -> str:
        return control.format_time(Time(self.clock[0]))

    async def names(self, *parts: str) -> list[str]:
        return [name for name, _ in await self.control.list(parts)]

    async def read(self, *parts: str) -> str:
        return (await self.control.read(parts)).decode()

    async def walk(self, *top: str) -> dict[str, bytes]:
        """Read a folder with all below it, checking that every answer agrees with the others."""
        found: dict[str, bytes] = {}
        folders: list[tuple[str, ...]] = [top]
        for folder in folders:
            assert await self.control.kind(folder) is FOLDER
            with pytest.raises(IsAFolder):
                await self.control.read(folder)
            listed = await self.control.list(folder)
            assert listed == sorted(listed, key=lambda item: item[0].encode())
            assert len({name for name, _ in listed}) == len(listed)
            for name, kind in listed:
                assert 0 < len(name.encode()) <= limits.SEGMENT_BYTES
                assert "/" not in name
                parts = (*folder, name)
                assert await self.control.kind(parts) is kind
                assert isinstance(await self.control.mtime(parts), int)
                if kind is FOLDER:
                    folders.append(parts)
                    continue
                with pytest.raises(NotAFolder):
                    await self.control.list(parts)
                with pytest.raises(NotFound):
                    await self.control.kind((*parts, "x"))
                found["/".join(parts[len(top) :])] = await self.control.read(parts)
        return found


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    env = Env(tmp_path, 2**28)
    clock = [START]
    service = Service(env, lambda: clock[0])
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        made = World(service, clock)
        await made.attach()
        yield made
        service.close()
    env.close()


async def test_the_top_shows_what_there_is(w: World) -> None:
    assert await w.control.list(()) == [
        ("archived", FOLDER),
        ("at", FOLDER),
        ("context.md", FILE),
        ("log", FILE),
        ("refused", FOLDER),
        ("status.json", FILE),
        ("versions", FOLDER),
    ]
    found = await w.walk()
    assert sorted(found) == ["context.md", "log", "status.json"]


@pytest.mark.parametrize(
    "parts",
    [
        ("nothing",),
        ("context.md", "x"),
        ("versions", "a"),
        ("versions", "a", "0001-created-20261201T101113Z-memver_01M8S2MNYFK7T1JTWBS4B5DN2T.md"),
        ("versions", "0001-created-20261201T101113Z-memver_01M8S2MNYFK7T1JTWBS4B5DN2T.md"),
        ("archived", "mem_01M8S2MNYFK7T1JTWBS4B5DN2T.md"),
        ("archived", "x", "y"),
        ("refused", "000001-a"),
        ("refused", "999999999999999999-a"),
        ("refused", "9999999999999999999999999-a"),
        ("refused", "000001-a", "b"),
        ("at", "2026-12-01", "a"),
        ("at", "yesterday"),
        ("versions", "a" * 256),
        ("versions", "a" * 1024, "b"),
        ("versions", "\udcff"),
        ("\udcff",),
        ("versions", ""),
        ("versions", "a/b"),
        ("versions", "a\0"),
        ("versions", *["a"] * 100),
        ("at", "2026-12-01", *["a" * 255] * 9),
    ],
)
async def test_what_is_not_there_is_not_found(w: World, parts: tuple[str, ...]) -> None:
    for ask in (w.control.kind, w.control.list, w.control.read, w.control.mtime):
        with pytest.raises(NotFound) as caught:
            await ask(parts)
        str(caught.value).encode()


async def test_every_answer_checkpoints(w: World) -> None:
    for ask in (w.control.kind, w.control.list, w.control.mtime):
        with trio.testing.assert_checkpoints():
            await ask(())
    with trio.testing.assert_checkpoints():
        await w.control.read(("context.md",))


# -------------------------------------------------------------------------------------- versions


async def test_each_kept_text_is_a_file_below_the_path_of_its_note(w: World) -> None:
    note = await w.create("/d/a.md", "one")
    await w.update(note, "two")
    found = await w.walk("versions")
    first, second = w.versions(note)
    assert found == {
        f"d/a.md/0001-created-20261201T101115Z-{first.id}.md": b"one",
        f"d/a.md/0002-modified-20261201T101116Z-{second.id}.md": b"two",
    }
    at = ("versions", "d", "a.md", f"0001-created-20261201T101115Z-{first.id}.md")
    assert await w.control.mtime(at) == first.created_at


async def test_restoring_is_writing_what_the_file_says(w: World) -> None:
    note = await w.create("/a.md", "précis\n")
    await w.update(note, "two")
    old = await w.read("versions", "a.md", (await w.names("versions", "a.md"))[0])
    await w.update(note, old)
    info = w.service.view(notes.get, w.store.id, note)
    assert w.service.view(notes.text_of, info) == "précis\n".encode()


async def test_only_a_versions_whole_name_leads_to_it(w: World) -> None:
    await w.create("/a.md", "one")
    (name,) = await w.names("versions", "a.md")
    for other in (name.replace("0001", "0002"), name.replace("created", "modified")):
        with pytest.raises(NotFound):
            await w.control.read(("versions", "a.md", other))


async def test_a_moved_note_takes_its_versions_along(w: World) -> None:
    note = await w.create("/a.md", "one")
    name = (await w.names("versions", "a.md"))[0]
    await w.move(note, "/b/c.md")
    assert await w.names("versions") == ["b"]
    assert len(await w.names("versions", "b", "c.md")) == 2
    with pytest.raises(NotFound):
        await w.control.read(("versions", "a.md", name))
    assert await w.read("versions", "b", "c.md", name) == "one"


async def test_deleted_notes_stay_reachable_also_below_a_new_one(w: World) -> None:
    first = await w.create("/a", "first")
    await w.delete(first)
    second = await w.create("/a/b", "second")
    await w.delete(second)
    await w.create("/a/b", "third")
    assert [kind for _, kind in await w.control.list(("versions", "a"))] == [FILE, FOLDER]
    found = await w.walk("versions")
    assert sorted(found.values()) == [b"first", b"second", b"third"]
    assert {name.rpartition("/")[0] for name in found} == {"a", "a/b"}


async def test_a_folder_that_bears_a_versions_name_goes_before_it(w: World) -> None:
    await w.delete(await w.create("/a", "first"))
    name = (await w.names("versions", "a"))[0]
    await w.create(f"/a/{name}", "copied")
    assert await w.control.list(("versions", "a")) == [(name, FOLDER)]
    assert list((await w.walk("versions")).values()) == [b"copied"]


async def test_versions_without_a_text_leave_a_gap(w: World) -> None:
    note = await w.create("/a", "one")
    await w.update(note, "two")
    await w.update(note, "three")
    await w.delete(note)
    names = await w.names("versions", "a")
    await w.commit(versions.redact, w.store.id, w.versions(note)[1].id)
    assert await w.names("versions", "a") == [names[0], names[2]]
    with pytest.raises(NotFound):
        await w.control.read(("versions", "a", names[1]))


async def test_a_purged_note_is_gone_at_once(w: World) -> None:
    note = await w.create("/a", "one")
    await w.delete(note)
    assert await w.names("versions") == ["a"]
    await w.commit(notes.purge, w.store.id, note)
    assert await w.names("versions") == []
    with pytest.raises(NotFound):
        await w.control.list(("versions", "a"))


async def test_expired_versions_are_gone_at_once(w: World) -> None:
    await w.delete(await w.create("/a", "one"))
    when = w.now()
    assert await w.names("versions") == ["a"]
    assert await w.names("at", when) == []
    await w.commit(versions.expire, w.store.no, -(10**12), Seq(0), 100)
    assert await w.names("versions") == []


async def test_folders_made_in_the_mount_show_empty(w: World) -> None:
    await w.commit(files.make_folder, w.store.no, w.store.root, "d", 0o755)
    assert await w.control.list(("versions",)) == [("d", FOLDER)]
    assert await w.names("versions", "d") == []


# -------------------------------------------------------------------------------------------- at


async def test_a_time_shows_the_store_as_it_was(w: World) -> None:
    note = await w.create("/d/a.md", "one")
    then = w.now()
    await w.update(note, "two")
    await w.move(note, "/b.md")
    assert await w.walk("at", then) == {"d/a.md": b"one"}
    assert await w.walk("at", w.now()) == {"b.md": b"two"}
    assert await w.walk("at", "2026-11-30") == {}
    assert await w.names("at") == []
    assert await w.control.mtime(("at", then, "d", "a.md")) == w.versions(note)[0].created_at


async def test_a_time_that_was_looked_at_shows_later_redactions(w: World) -> None:
    note = await w.create("/a", "one")
    then = w.now()
    await w.update(note, "two")
    assert await w.read("at", then, "a") == "one"
    await w.commit(versions.redact, w.store.id, w.versions(note)[0].id)
    assert await w.names("at", then) == []
    with pytest.raises(NotFound):
        await w.control.read(("at", then, "a"))


async def test_the_future_is_the_present(w: World) -> None:
    await w.create("/a", "one")
    assert await w.names("at", "9999-12-31T23:59:59-23:59") == ["a"]
    await w.create("/b", "two")
    assert await w.names("at", "9999-12-31T23:59:59-23:59") == ["a", "b"]
    assert await w.control.mtime(("at", "9999-12-31")) == w.clock[0]
    assert await w.control.mtime(("at", "0001-01-01")) == 0


async def test_the_past_is_read_once_while_the_store_goes_on(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await w.create("/a", "one")
    then = w.now()
    built: list[Time] = []
    real = past.snapshot_at

    def counting(txn: Any, no: StoreNo, at: Time) -> past.Snapshot:
        built.append(at)
        return real(txn, no, at)

    monkeypatch.setattr(past, "snapshot_at", counting)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(w.names, "at", then)
    for number in range(5):
        await w.create(f"/b{number}", "two")
        assert await w.names("at", then) == ["a"]
    assert len(built) == 1
    for day in range(1, 10):
        await w.names("at", f"2026-11-0{day}")
    await w.names("at", then)
    assert len(built) == 11


@pytest.mark.parametrize(
    ("words", "ns"),
    [
        ("2026-12-01T10:11:12.123456789Z", START),
        ("2026-12-01T10:11:12.1234567891111Z", START),
        ("2026-12-01t10:11:12.123456789z", START),
        ("2026-12-01 10:11:12.123456789Z", START),
        ("2026-12-01T12:11:12.123456789+02:00", START),
        ("2026-11-30T22:41:12.123456789-11:30", START),
        ("2026-12-01T10:11:12.5+00:00", START // 10**9 * 10**9 + 5 * 10**8),
        ("1970-01-01", 0),
        ("1969-12-31T23:59:59.9Z", -(10**8)),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1972-06-30T23:59:60Z", 78_796_800 * 10**9),
    ],
)
def test_times_are_read_to_the_nanosecond(words: str, ns: int) -> None:
    assert control.parse_time(words) == ns


@pytest.mark.parametrize(
    "words",
    [
        "",
        "now",
        "2026-12-01T10:11:12",
        "2026-12-01T10:11Z",
        "2026-12-01T24:00:00Z",
        "2026-12-01T10:60:00Z",
        "2026-12-01T10:00:61Z",
        "2026-12-01T10:00:00.Z",
        "2026-12-01T10:00:00+24:00",
        "2026-12-01T10:00:00+0200",
        "2026-02-30",
        "0000-01-01",
        "2026-12-01Z",
        "2026-12-01\n",
        "٢٠٢٦-12-01",
        "20261201T101112Z",
    ],
)
def test_other_words_are_no_times(words: str) -> None:
    with pytest.raises(NotFound):
        control.parse_time(words)


@given(st.integers(-(2**62), 2**62))
def test_a_time_that_was_written_is_read_back(ns: int) -> None:
    assert control.parse_time(control.format_time(Time(ns))) == ns


# ------------------------------------------------------------------------------ archived, refused


async def test_archived_notes_are_read_by_id(w: World) -> None:
    note = await w.create("/d/a.md", "one")
    with pytest.raises(NotFound):
        await w.control.kind(("archived", f"{note}.md"))
    await w.commit(notes.archive, w.store.id, note, "stale")
    assert await w.walk("archived") == {f"{note}.md": b"one"}
    assert list((await w.walk("versions")).values()) == [b"one"]
    await w.commit(notes.unarchive, w.store.id, note)
    assert await w.names("archived") == []


async def test_a_refused_text_is_kept_with_its_reason(w: World) -> None:
    one = await w.refuse("/d/50%.md", "lost\n")
    found = await w.walk("refused")
    assert found.pop("000001-d%2F50%25.md") == b"lost\n"
    ((name, why),) = found.items()
    assert name == "000001-d%2F50%25.md.why.json"
    assert json.loads(why) == {
        "n": 1,
        "path": "/d/50%.md",
        "reason": "changed meanwhile",
        "base": "0" * 64,
        "head": None,
        "sha256": text("lost\n").sha256,
        "size_bytes": 5,
        "time": control.format_time(one.at),
        "actor": {"type": "user_actor", "id": "ada"},
    }


async def test_names_that_look_alike_stay_apart(w: World) -> None:
    await w.refuse("/x", "text of x")
    await w.refuse("/x.why.json", "text of why")
    found = await w.walk("refused")
    assert sorted(found) == [
        "000001-x",
        "000001-x.why.json",
        "000002-x.why.json",
        "000002-x.why.json.why.json",
    ]
    assert found["000002-x.why.json"] == b"text of why"
    with pytest.raises(NotFound):
        await w.control.kind(("refused", "0000001-x"))
    with pytest.raises(NotFound):
        await w.control.kind(("refused", "000001-y"))


async def test_long_paths_are_shortened_in_the_middle(w: World) -> None:
    await w.refuse("/" + "/".join(["folder" + "é" * 120] * 4) + "/note.md", "lost")
    found = await w.walk("refused")
    name = min(found, key=len)
    assert name.startswith("000001-folderé")
    assert name.endswith("%2Fnote.md")
    assert len(f"{name}.why.json".encode()) <= limits.SEGMENT_BYTES


characters = st.characters(exclude_categories=["Cs"])


@given(st.integers(1, 2**40), st.text(characters, max_size=400))
def test_every_refused_name_can_be_a_file_name(n: int, path: str) -> None:
    sha256 = Sha256("0" * 64)
    one = Refused(n, StoreNo(1), path, "", None, None, sha256, 0, Time(0), CALLER.actor)
    name = control.refused_name(one)
    assert name.isprintable()
    assert "/" not in name
    assert len(f"{name}{control.WHY}".encode()) <= limits.SEGMENT_BYTES


@given(st.integers(1, 10**9), st.sampled_from(Operation), st.integers(-(2**63), 2**63))
def test_every_version_name_can_be_a_file_name(ordinal: int, operation: Operation, at: int) -> None:
    version = Version(
        id=VersionId(ids.new("memver_")),
        seq=Seq(1),
        store=StoreNo(1),
        node=Node(1),
        note_id=NoteId("mem_"),
        operation=operation,
        ordinal=ordinal,
        path="/a",
        sha256=None,
        size_bytes=None,
        created_at=Time(at),
        created_by=CALLER.actor,
    )
    assert control._VERSION_NAME.fullmatch(control.version_name(version))


# --------------------------------------------------------------------------------- words: context


async def test_the_context_names_each_folder(w: World) -> None:
    words = await w.read("context.md")
    for line in (
        "## worker",
        "- Folder: `.little-worker/tasks/task_1/memory/worker/`, your own",
        "## notes-of-ada",
        "- Folder: `.little-worker/tasks/task_1/memory/notes-of-ada/`, the folder of this file",
        "- Access: read and write (`read_write`)",
        "> Notes of Ada",
        "> What Ada knows",
        "> Keep it short.",
    ):
        assert line in words.splitlines()
    for folder in ("versions", "at", "refused", "archived"):
        assert f"`.memfs/{folder}/" in words


@given(
    st.text(max_size=60), st.text(st.sampled_from("\n\r\x0b\x0c\x1c\x85\u2028> #`-<x"), max_size=60)
)
def test_no_text_of_a_user_can_leave_its_quotation(free: str, nasty: str) -> None:
    def section(words: str) -> list[str]:
        attachment = Attachment(
            no=AttachmentNo(1),
            store=StoreNo(1),
            store_id=StoreId("memstore_1"),
            name="notes",
            store_name=f"x{words}",
            description=f"x{words}",
            access=Access.READ_ONLY,
            instructions=f"x{words}",
            root=Node(1),
        )
        task = Task(TaskId("task_1"), WorkerId("agt_1"), Time(0), (attachment,))
        return control.context_section(task).splitlines()

    def frame(lines: list[str]) -> list[str]:
        return [line for line in lines if line != ">" and not line.startswith("> ")]

    for words in (free, nasty):
        assert frame(section(words)) == frame(section("y"))


async def test_a_deleted_store_leaves_the_context_and_nothing_else(w: World) -> None:
    await w.create("/a", "one")
    await w.commit(stores.delete, w.store.id)
    assert "Notes of Ada" in await w.read("context.md")
    for name in ("log", "status.json"):
        with pytest.raises(NotFound):
            await w.control.read((name,))
    for name in ("archived", "versions"):
        with pytest.raises(NotFound):
            await w.control.list((name,))
    assert await w.names("refused") == []
    assert await w.names("at", "2026-12-02") == []


# ------------------------------------------------------------------------------------ status, log


async def test_the_status_counts_and_adds_what_the_daemon_knows(w: World) -> None:
    await w.create("/a", "one")
    w.status["store"] = "ours goes first"
    found = json.loads(await w.read("status.json"))
    assert found["index_lag"] == 3
    assert found["store"]["id"] == w.store.id
    assert found["store"]["notes"] == 1
    assert found["store"]["archived_at"] is None
    assert found["limits"]["notes_left"] == limits.NOTES_PER_STORE - 1
    assert found["attachment"] == {
        "name": "notes-of-ada",
        "access": "read_write",
        "task_id": "task_1",
    }
    assert found["last_seq"] == w.service.feed.seq
    await w.commit(stores.archive, w.store.id)
    found = json.loads(await w.read("status.json"))
    assert found["store"]["archived_at"] == w.now()


async def test_the_log_has_a_line_for_each_change_and_no_text(w: World) -> None:
    note = await w.create("/a.md", "a text that is nobody's business")
    await w.refuse("/a.md", "another such text", "line one\nline\ttwo\x1b[31m")
    w.control.note_refusal("/b.md", "the store is full")
    await w.delete(note)
    lines = (await w.read("log")).splitlines()
    times = [line.split("\t")[0] for line in lines]
    assert times == sorted(times)
    assert [line.split("\t")[1:] for line in lines] == [
        ["user_actor:ada", "store", w.store.id],
        ["user_actor:ada", "created", "/a.md"],
        ["user_actor:ada", "refused", "/a.md", "line one\ufffdline two\ufffd[31m"],
        ["session_actor:task_1", "refused", "/b.md", "the store is full"],
        ["user_actor:ada", "deleted", "/a.md"],
    ]
    assert await w.names("at", times[1]) == ["a.md"]


async def test_the_log_ends_with_the_last_two_hundred(w: World) -> None:
    def make_many(txn: Any, caller: Caller, now: Time) -> None:
        for number in range(250):
            path = paths.parse(f"/{number:03}")
            notes.create(txn, caller, now, w.store.id, path, text("x"))

    await w.commit(make_many)
    lines = (await w.read("log")).splitlines()
    assert len(lines) == control.LOG_LINES
    assert [line.split("\t")[3] for line in (lines[0], lines[-1])] == ["/050", "/249"]


# -------------------------------------------------------------------------------- all of it at once


async def test_readers_meet_a_writer_and_only_domain_errors(w: World) -> None:
    done = trio.Event()

    async def write() -> None:
        for number in range(40):
            note = await w.create(f"/d/{number % 4}", f"text {number}")
            await w.update(note, f"again {number}")
            if number % 3 == 0:
                await w.commit(notes.archive, w.store.id, note, "stale")
            else:
                await w.delete(note)
            if number % 5 == 0:
                await w.commit(notes.purge, w.store.id, note)
        done.set()

    async def read(*top: str) -> int:
        seen = 0
        while not done.is_set():
            folders: list[tuple[str, ...]] = [top]
            for folder in folders:
                try:
                    listed = await w.control.list(folder)
                except MemfsError:
                    continue
                for name, kind in listed:
                    if kind is FOLDER:
                        folders.append((*folder, name))
                        continue
                    try:
                        await w.control.read((*folder, name))
                        seen += 1
                    except MemfsError:
                        pass
        return seen

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for top in ((), ("at", "2030-01-01"), ("versions",)):
            nursery.start_soon(read, *top)
    found = await w.walk("at", w.now())
    living = w.service.view(notes.list_page, w.store.id, limit=1_000).items
    assert sorted(found) == sorted(path[1:] for path, _ in living)
