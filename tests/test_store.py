"""The cellar alone: lock, format, checksums, scans, a full map, compaction, check and FORMAT.md."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfs import types
from memfs.engine import files, notes, path, refused, stores, tasks, tree, versions
from memfs.errors import Corrupt, FormatTooNew, NoSpace, NotFound, Unavailable
from memfs.store import change, content, keys
from memfs.store.check import check
from memfs.store.env import FORMAT, Env
from memfs.store.records import CHANGE, NODE, STORE, TASK, VERSION
from memfs.types import Node, Seq, StoreNo, Time
from tests.conftest import SECOND, Engine, text

ROOT = Path(__file__).parents[1]
FORMAT_MD = (ROOT / "memfs" / "FORMAT.md").read_text()

# ------------------------------------------------------------------------------- open and close


def test_second_process_is_refused_and_told_the_pid(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from memfs.store.env import Env\n"
        "env = Env(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(Unavailable, match=rf"in use by process {holder.pid}\b"):
            Env(tmp_path)
        holder.communicate("")
    Env(tmp_path).close()


def test_lock_is_free_again_after_a_kill(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from memfs.store.env import Env\n"
        "env = Env(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.wait()
    Env(tmp_path).close()


def test_newer_format_is_refused_and_nothing_is_written(tmp_path: Path):
    with closing(Env(tmp_path)) as env, env.write() as txn:
        txn.put("meta", b"format", keys.pack_u64(FORMAT + 1))
    before = (tmp_path / "data.mdb").read_bytes()
    for _ in range(2):  # the refusal leaves neither lock nor environment behind
        with pytest.raises(FormatTooNew, match=f"format {FORMAT + 1}"):
            Env(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("old", range(1, FORMAT))
def test_an_older_format_is_upgraded_at_open(tmp_path: Path, old: int):
    since = {2: ("live", "key"), 3: ("made",)}  # tables; those that came later were not there
    with closing(Engine(tmp_path)) as engine:
        for number in range(3):
            engine.commit(tasks.create, "ada", (), f"t{number}")
        engine.commit(tasks.end, "t1")
        listed = engine.view(tasks.list_page)
        with engine.env.write() as txn:
            for table in (name for made in range(old + 1, FORMAT + 1) for name in since[made]):
                for key, _ in list(txn.scan(table)):
                    txn.delete(table, key)
            txn.put("meta", b"format", keys.pack_u64(old))
        assert check(engine.env) != []
        engine.reopen()
        assert check(engine.env) == []
        assert engine.view(tasks.list_page) == listed
        assert [task.id for task in engine.view(tasks.live)] == ["t0", "t2"]


def test_an_upgrade_leaves_damaged_tasks_to_check(tmp_path: Path):
    with closing(Engine(tmp_path)) as engine:
        for number in range(2):
            engine.commit(tasks.create, "ada", (), f"t{number}")
        damage(engine.env, "task", b"t0")
        with engine.env.write() as txn:
            txn.put("meta", b"format", keys.pack_u64(1))
        engine.reopen()
        assert [line.split(":")[0] for line in check(engine.env)] == ["task t0"]


def test_data_files_are_private(tmp_path: Path):
    Env(tmp_path / "new" / "data").close()
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    for name in ("data.mdb", "daemon.lock"):
        assert (tmp_path / "new" / "data" / name).stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------------------------------- scans

short_keys = st.binary(min_size=1, max_size=6) | st.lists(
    st.sampled_from([0, 1, 0xFE, 0xFF]), min_size=1, max_size=6
).map(bytes)


@given(
    rows=st.dictionaries(short_keys, st.binary(max_size=3), max_size=30),
    prefix=st.one_of(st.just(b""), short_keys.map(lambda key: key[:2])),
    tail=st.none() | st.binary(max_size=4),
    reverse=st.booleans(),
)
@settings(max_examples=200)
def test_scan_is_a_sorted_dict(scanned: Env, rows, prefix, tail, reverse):
    """prefix: what keys begin with; start: prefix + tail, where the scan begins."""
    with scanned.write() as txn:
        for key, _ in list(txn.scan("by_actor")):
            txn.delete("by_actor", key)
        for key, value in rows.items():
            txn.put("by_actor", key, value)
    start = None if tail is None or not prefix + tail else prefix + tail
    expected = [(key, rows[key]) for key in sorted(rows) if key.startswith(prefix)]
    if start is not None:
        expected = [(k, v) for k, v in expected if (k <= start if reverse else k >= start)]
    if reverse:
        expected.reverse()
    with scanned.read() as txn:
        assert list(txn.scan("by_actor", prefix, start, reverse=reverse)) == expected
        assert txn.count("by_actor") == len(rows)


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Env]:
    with closing(Env(tmp_path_factory.mktemp("scan"))) as env:
        yield env


def test_rows_may_be_deleted_while_they_are_scanned(env: Env):
    with env.write() as txn:
        for number in range(2_000):
            txn.put("by_actor", b"%05d" % number, b"x" * 50)
        seen = []
        for key, _ in txn.scan("by_actor"):
            txn.delete("by_actor", key)
            seen.append(key)
        assert len(seen) == 2_000
        assert txn.count("by_actor") == 0


def test_counters_never_give_a_number_twice(env: Env):
    with env.write() as txn:
        assert [txn.next("node"), txn.next("node"), txn.next("seq")] == [1, 2, 1]
    with env.read() as txn:
        assert (txn.counter("node"), txn.counter("store")) == (2, 0)


# ------------------------------------------------------------------------------ texts and damage


def test_texts_read_by_many_threads_are_not_mixed_up():
    packed = {}
    for number in range(8):
        data = b"line %d of a text that compresses well\n" % number * 2_000
        packed[content.pack(data)] = data
    wrong: list[int] = []

    def read() -> None:
        for _ in range(300):
            for value, data in packed.items():
                if content.unpack(b"", value) != data:
                    wrong.append(len(data))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(data=st.binary(max_size=400) | st.binary(max_size=9).map(lambda part: part * 40))
def test_text_comes_back_and_any_flipped_bit_shows(data):
    value = content.pack(data)  # the first eight bytes count the uses; check knows them
    assert content.unpack(b"", value) == data
    for position in {8, 9, 16, len(value) // 2 + 8, len(value) - 1} - {len(value)}:
        damaged = bytearray(value)
        damaged[position] ^= 1
        with pytest.raises(Corrupt):
            content.unpack(b"", bytes(damaged))


def filled(engine: Engine) -> tuple[types.Store, list[types.NodeInfo]]:
    """A store with folders, notes, an archived and a deleted one, a refused text, a task."""
    task = engine.commit(tasks.create, "worker")
    store = engine.commit(stores.create, "shared")
    made = [
        engine.commit(notes.create, store.id, path.parse(each), text(f"text of {each}\n" * 20))
        for each in ("/a", "/f/b", "/f/g/c", "/d", "/e")
    ]
    for info in made[:3]:
        assert info.note is not None
        engine.commit(notes.update, store.id, info.note.id, text("again " + info.name))
    assert made[3].note is not None
    engine.commit(notes.archive, store.id, made[3].note.id, "superseded")
    assert made[4].note is not None
    engine.commit(notes.delete, store.id, made[4].note.id)
    engine.commit(files.make_folder, store.no, store.root, "empty", 0o755)
    engine.clock -= 100 * SECOND
    engine.commit(notes.create, store.id, path.parse("/set-back"), text("by the clock"))
    engine.commit(refused.keep, store.no, "/a", text("refused"), "changed", None)
    engine.commit(tasks.create, task.worker_id, (tasks.Wanted(store.id),), "second")
    assert check(engine.env) == []
    return store, made


def damage(env: Env, table: str, key: bytes) -> None:
    with env.write() as txn:
        value = txn.get(table, key)
        assert value
        txn.put(table, key, value[:-1] + bytes([value[-1] ^ 1]))


def test_damaged_text_is_named_and_the_rest_is_readable(tmp_path: Path):
    with closing(Engine(tmp_path)) as engine:
        store, made = filled(engine)
        first, second = notes.note_of(made[0]), notes.note_of(made[1])
        old = engine.view(lambda txn: list(versions.of_note(txn, store.no, made[0].node)))[-1]
        assert old.sha256 is not None
        damage(engine.env, "content", keys.sha256(old.sha256))
        with pytest.raises(Corrupt, match=old.sha256):
            engine.view(versions.text_of, old)
        for each in (first, second):
            info = engine.view(notes.get, store.id, each.id)
            assert engine.view(notes.text_of, info).startswith(b"again")
        (problem,) = check(engine.env)
        assert problem.startswith(f"content {old.sha256}: ")


def test_damaged_record_is_named_once_and_the_rest_is_still_checked(tmp_path: Path):
    with closing(Engine(tmp_path)) as engine:
        store, made = filled(engine)
        info = engine.view(tree.get, made[0].node)
        key = keys.in_store(store.no, notes.note_of(info).head_seq)
        damage(engine.env, "version", key)
        with pytest.raises(Corrupt, match=f"damaged record {key.hex()} in table version"):
            engine.view(versions.get, store.id, notes.note_of(info).version_id)
        assert [p.split(":")[0] for p in check(engine.env)] == [f"version {key.hex()}"]
        damage(engine.env, "node", keys.node(made[1].node))
        found = [p.split(":")[0] for p in check(engine.env)]
        assert found == [f"node {keys.node(made[1].node).hex()}", f"version {key.hex()}"]
        page = engine.view(notes.list_page, store.id, ("f", "g"))
        assert [each for each, _ in page.items] == ["/f/g/c"]


def remove(table: str, number: int = 0):
    """A tampering that takes a row away; FORMAT's checks must miss it."""

    def tamper(env: Env) -> None:
        with env.write() as txn:
            rows = [key for key, _ in txn.scan(table)]
            txn.delete(table, rows[number])

    return tamper


def add(table: str, key: bytes, value: bytes = b""):
    def tamper(env: Env) -> None:
        with env.write() as txn:
            txn.put(table, key, value)

    return tamper


def rewrite(table, number: int = 0, **fields):
    """A tampering that changes fields of a record and keeps its checksum right."""

    def tamper(env: Env) -> None:
        with env.write() as txn:
            key, record = list(table.scan(txn))[number]
            table.put(txn, key, msgspec.structs.replace(record, **fields))

    return tamper


def cycle(env: Env) -> None:
    """Move /f into its own folder /f/g."""
    with env.write() as txn:
        folders = {i.name: i for _, i in NODE.scan(txn) if i.note is None}
        tree.unlink(txn, folders["f"])
        tree.link(txn, msgspec.structs.replace(folders["f"], parent=folders["g"].node))


def rewrite_head(env: Env) -> None:
    with env.write() as txn:
        key, info = next((k, i) for k, i in NODE.scan(txn) if i.note is not None)
        note = msgspec.structs.replace(info.note, size_bytes=1)
        NODE.put(txn, key, msgspec.structs.replace(info, note=note))


def count_more(env: Env) -> None:
    """Say that a text has one use more than it has."""
    with env.write() as txn:
        key, value = next(txn.scan("content"))
        txn.put("content", key, keys.pack_u64(content.uses(value) + 1) + value[8:])


U64 = keys.pack_u64
TAMPERINGS = {
    "content": [remove("content"), add("content", b"x" * 32, content.pack(b"orphan")),
                count_more],
    "dentry": [remove("dentry"), add("dentry", keys.dentry(StoreNo(2), Node(2), "x"),
                                     keys.dentry_value(Node(99), keys.NOTE)),
               add("dentry", keys.dentry(StoreNo(9), Node(2), "x"),
                   keys.dentry_value(Node(3), keys.NOTE)),
               add("dentry", keys.dentry(StoreNo(2), Node(2), "a"),
                   keys.dentry_value(Node(3), keys.FOLDER)), cycle],
    "node": [remove("node", 3), rewrite(NODE, 3, name="other"), rewrite(NODE, 3, mode=0o4755),
             rewrite_head],
    "store": [rewrite(STORE, 1, notes=9), rewrite(STORE, 1, root=Node(3)),
              rewrite(STORE, 1, archived_at=Time(1)), rewrite(STORE, 0, worker_id=None),
              rewrite(STORE, 1, refused=0), rewrite(STORE, 1, id="memstore_x")],
    "archived": [remove("archived"), add("archived", keys.in_store(StoreNo(2), 3))],
    "version": [remove("version"), remove("version", -1), rewrite(VERSION, 0, ordinal=5),
                rewrite(VERSION, 0, path=None), rewrite(VERSION, 0, sha256="0" * 64),
                rewrite(VERSION, 0, size_bytes=1), rewrite(VERSION, 0, created_at=Time(2**62)),
                rewrite(VERSION, 0, id="memver_x"), rewrite(VERSION, 0, note_id="mem_x"),
                rewrite(VERSION, 0, node=Node(4))],
    "by_note": [remove("by_note"), add("by_note", keys.by_note(Node(3), Seq(99)))],
    "by_operation": [remove("by_operation"),
                     add("by_operation", b"\0\0\0\2\7" + U64(5))],
    "by_actor": [remove("by_actor"), add("by_actor", b"\0\0\0\2" + U64(7) + U64(5))],
    "setback": [remove("setback")],
    "change": [remove("change"), remove("change", 5),
               rewrite(CHANGE, 5, operation=types.Operation.DELETED),
               rewrite(CHANGE, 5, parent=Node(999))],
    "meta": [add("meta", b"node", U64(1)),
             add("meta", b"live_shared", U64(5)), add("meta", b"x", U64(1)),
             add("meta", b"store", U64(0)), add("meta", b"attachment", U64(0)),
             add("meta", b"format", U64(FORMAT + 1))],
    "worker": [remove("worker")],
    "live": [remove("live"), add("live", b"agt_x\0task_x"), add("live", b"x", b"x")],
    "made": [remove("made"), add("made", keys.pack_u32(99), b"task_x"),
             add("made", keys.pack_u32(1), b"task_x")],
    "refused": [remove("refused")],
    "task": [rewrite(TASK, 0, deleted_at=Time(1))],
    "credential": [add("credential", b"x", b"\1" + b"\0" * 20)],
}  # fmt: skip


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(tamper, id=f"{table}{number}")
        for table, tamperings in TAMPERINGS.items()
        for number, tamper in enumerate(tamperings)
    ],
)
def test_check_finds(tmp_path: Path, tamper):
    with closing(Engine(tmp_path)) as engine:
        filled(engine)
        tamper(engine.env)
        assert check(engine.env) != []


def test_check_of_a_new_directory_is_clean(env: Env):
    assert check(env) == []


# ------------------------------------------------------------------------------- full and compact


def test_full_map_refuses_writes_and_deletes_go_on(tmp_path: Path):
    with closing(Engine(tmp_path, map_size_bytes=2 * 2**20)) as engine:
        store = engine.commit(stores.create, "full")
        made: list[types.NoteId] = []

        def fill() -> None:
            for number in range(1_000):
                where = path.parse(f"/{number}")
                info = engine.commit(notes.create, store.id, where, text(os.urandom(9_000).hex()))
                made.append(notes.note_of(info).id)

        with pytest.raises(NoSpace, match="map"):
            fill()
        assert made
        first = engine.view(notes.get, store.id, made[0])
        save = files.Save(text("new"), notes.note_of(first).sha256, None, 0o644, Time(0))
        for refused_rule, arguments in (
            (notes.create, (store.id, path.parse("/more"), text("more"))),
            (notes.update, (store.id, made[0], text("new"))),
            (files.save, (first.node, save, None)),
            (files.save_new, (store.no, store.root, "new", save, None)),
            (files.install, (store.no, store.root, "new", save)),
            (files.rename, (store.no, store.root, "0", store.root, "1")),
            (files.make_folder, (store.no, store.root, "folder", 0o755)),
            (stores.create, ("another",)),
        ):
            with pytest.raises(NoSpace):
                engine.commit(refused_rule, *arguments)
        assert len(engine.view(notes.text_of, first)) == 18_000
        for note in made:
            engine.commit(notes.delete, store.id, note)
        for note in made:
            engine.commit(notes.purge, store.id, note)
        assert engine.view(notes.list_page, store.id).items == []
        engine.commit(notes.create, store.id, path.parse("/again"), text("there is room again"))
        assert check(engine.env) == []


def test_full_map_in_the_middle_of_a_transaction_is_no_space_and_changes_nothing(tmp_path: Path):
    with closing(Env(tmp_path, 2**20)) as env:

        def overfill() -> None:
            with env.write() as txn:
                for number in range(10_000):
                    txn.put("by_actor", b"%d" % number, os.urandom(4_000))

        with pytest.raises(NoSpace):
            overfill()
        with env.write() as txn:
            assert txn.count("by_actor") == 0
            txn.put("by_actor", b"a", b"b")


def test_copy_is_smaller_consistent_and_opens(tmp_path: Path):
    with closing(Engine(tmp_path / "data")) as engine:
        store, made = filled(engine)
        for number in range(50):
            where = path.parse(f"/big/{number}")
            info = engine.commit(notes.create, store.id, where, text(os.urandom(20_000).hex()))
            engine.commit(notes.purge, store.id, notes.note_of(info).id)
        (tmp_path / "copy").mkdir()
        engine.env.copy(tmp_path / "copy")
        original = (tmp_path / "data" / "data.mdb").stat().st_size
    assert (tmp_path / "copy" / "data.mdb").stat().st_size < original
    with closing(Env(tmp_path / "copy")) as env:
        assert check(env) == []
        with env.read() as txn:
            assert notes.text_of(txn, tree.get(txn, made[0].node)) == b"again a"


def test_redacted_bytes_are_nowhere_after_a_compact_copy(tmp_path: Path):
    needle = b"the-needle-that-must-go-away"
    with closing(Engine(tmp_path / "data")) as engine:
        store = engine.commit(stores.create, "s")
        where = path.parse("/needle-name.md")
        note = notes.note_of(engine.commit(notes.create, store.id, where, text(needle)))
        moved = path.parse("/plain.md")
        engine.commit(notes.update, store.id, note.id, text("harmless"), moved)
        engine.commit(versions.redact, store.id, note.version_id)
        version = engine.view(versions.get, store.id, note.version_id)
        assert (version.path, version.sha256, version.size_bytes) == (None, None, None)
        (tmp_path / "copy").mkdir()
        engine.env.copy(tmp_path / "copy")
    data = (tmp_path / "copy" / "data.mdb").read_bytes()
    assert needle not in data
    assert note.sha256.encode() not in data
    assert bytes.fromhex(note.sha256) not in data


# -------------------------------------------------------------------------------------- FORMAT.md


def test_format_lists_the_tables_of_keys_py():
    listed = re.search(r"```\n(table  .*?)```", FORMAT_MD, re.DOTALL)
    assert listed is not None
    assert listed[1].strip() in (keys.__doc__ or "")
    assert tuple(line.split()[0] for line in listed[1].splitlines()[1:]) == keys.TABLES


def test_format_lists_the_fields_of_types_py():
    listed = re.search(r"```\n(Store  .*?)```", FORMAT_MD, re.DOTALL)
    assert listed is not None
    for line in listed[1].splitlines():
        name, *words = line.split()
        kind = getattr(types, name)
        if issubclass(kind, types.Record):
            fields = [
                f.name + ("?" if type(None) in getattr(f.type, "__args__", ()) else "")
                for f in msgspec.structs.fields(kind)
            ]
            assert words == fields, name
        else:
            pairs = [word for each in kind for word in (str(each.value), each.name.lower())]
            assert words == pairs, name
    written = set(
        re.findall(r"^class (\w+)\(Record, frozen", (ROOT / "memfs/types.py").read_text(), re.M)
    )
    listed_names = {line.split()[0] for line in listed[1].splitlines()}
    assert written - listed_names == {"Caller", "Text"}  # these two are never stored


def test_format_names_every_invariant_that_check_names():
    said = set(re.findall(r"\((I\d+)\)", (ROOT / "memfs/store/check.py").read_text()))
    listed = re.findall(r"^- \*\*(I\d+)\*\*", FORMAT_MD, re.MULTILINE)
    assert listed == [f"I{number}" for number in range(1, len(listed) + 1)]
    assert said == set(listed)
    assert FORMAT_MD.startswith(f"# memfs on disk: format {FORMAT}\n")


def test_record_with_fewer_fields_takes_the_defaults_and_more_are_ignored():
    full = types.Worker(types.WorkerId("agt_x"), "w", Time(1), StoreNo(1))
    as_list = msgspec.to_builtins(full)
    assert msgspec.convert([*as_list, "later"], types.Worker) == full
    old = types.Task(types.TaskId("t"), types.WorkerId("agt_x"), Time(1), ())
    assert msgspec.convert(msgspec.to_builtins(old)[:4], types.Task) == old


def test_change_log_is_read_in_order_from_a_seq(engine: Engine):
    filled(engine)
    rows = engine.view(change.read, Seq(0), 1_000)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert engine.view(change.read, Seq(3), 2) == rows[3:5]
    assert engine.view(change.newest, 3) == rows[:-4:-1]
    assert engine.view(change.last_seq) == rows[-1].seq
    assert rows[-1].kind is types.ChangeKind.TASK


def test_missing_text_is_corrupt_not_a_crash(tmp_path: Path):
    with closing(Engine(tmp_path)) as engine:
        store, made = filled(engine)
        info = engine.view(tree.get, made[0].node)
        with engine.env.write() as txn:
            txn.delete("content", keys.sha256(notes.note_of(info).sha256))
        with pytest.raises(Corrupt):
            engine.view(notes.text_of, info)
        with pytest.raises(NotFound):
            engine.view(notes.get, store.id, "mem_missing")
        assert any("is missing (I3)" in problem for problem in check(engine.env))


def test_lmdb_error_outside_our_list_stays_a_bug(env: Env):
    with pytest.raises(lmdb.Error), env.write() as txn:
        txn.put("by_actor", b"", b"an empty key is no key")
