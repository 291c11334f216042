"""Stores as tars: what goes out comes in again, and nothing hostile does."""

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import pty
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from daemon import tar
from daemon.http.bounds import Bounds
from memfs import limits
from memfs.engine import notes, stores, transfer
from memfs.engine import path as paths
from memfs.engine.service import Txn
from memfs.errors import Invalid
from memfs.types import Actor, Caller, Time
from tests.conftest import Engine, text
from tests.served import AStore, Served, serving
from tests.test_cli import Shell

pytest_plugins = ("tests.served",)

USER = Caller(Actor("user_actor", "u"))
MANIFEST = ".memfs/manifest.json"


@pytest.fixture
def memfs(served: Served) -> Shell:
    return Shell(served)


def exported(served: Served, store: AStore, **query: Any) -> bytes:
    answer = served.http.get(f"/v1/memory_stores/{store.id}/export", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-tar"
    return answer.content


def members(data: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Read a tar as the standard library does."""
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        for info in file:
            content = file.extractfile(info)
            found[info.name] = info, b"" if content is None else content.read()
        return found


def texts(served: Served, store_id: str) -> dict[str, str]:
    rows = served.call("GET", f"memory_stores/{store_id}/memories", limit=20, view="full")["data"]
    return {row["path"]: row["content"] for row in rows}


def imported(
    served: Served, data: bytes, store: AStore | None = None, status: int = 200, **q: Any
) -> Any:
    route = "memory_stores/import" if store is None else f"memory_stores/{store.id}/import"
    return served.call("POST", route, data, status, **q)


def packed(*entries: tuple[str, bytes], end: bytes = tar.END) -> bytes:
    return b"".join(tar.pack(name, data) for name, data in entries) + end


def made(build: Callable[[tarfile.TarFile], None], **how: Any) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **how) as archive:
        build(archive)
    return file.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes = b"x", **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(data))


# Round trips ------------------------------------------------------------------------------------


def test_what_is_exported_comes_in_again_as_it_was(served: Served, store: AStore) -> None:
    store.call("POST", "", {"description": "d é", "metadata": {"k": "v"}})
    wanted = {"/a.md": "one\n", "/b/ü/c": "", "/" + "n" * 200 + "/" + "m" * 200: "x" * 102_400}
    for path, content in wanted.items():
        store.write(path, content)
    data = exported(served, store)
    done = imported(served, data)
    new = done["memory_store_id"]
    assert (done["created"], done["replaced"], done["unchanged"]) == (3, 0, 0)
    assert texts(served, new) == wanted
    shape = served.call("GET", f"memory_stores/{new}")
    assert (shape["name"], shape["description"], shape["metadata"]) == ("notes", "d é", {"k": "v"})
    assert shape["memory_count"] == 3
    again = members(exported(served, AStore(served, new)))
    for name, (info, content) in members(data).items():
        if not name.startswith(".memfs/"):
            assert again[name][1] == content
            assert again[name][0].mode == info.mode
            assert again[name][0].pax_headers.get("mtime") == info.pax_headers.get("mtime")
    assert served.call("POST", "memory_stores/import", data, name="other")["created"] == 3


def test_an_export_is_a_folder_of_files_for_tar(
    served: Served, store: AStore, tmp_path: Path
) -> None:
    store.write("/a.md", "one")
    store.write("/f/b.md", "two")
    (tmp_path / "x.tar").write_bytes(exported(served, store))
    subprocess.run(["tar", "-xf", "x.tar"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "f" / "b.md").read_text() == "two"
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert [row["path"] for row in manifest["notes"]] == ["/a.md", "/f/b.md"]
    at = manifest["notes"][0]
    assert at["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert os.stat(tmp_path / "a.md").st_mtime_ns == at["mtime_ns"]
    (tmp_path / "f" / "b.md").write_text("three")  # and what tar packs comes in, edited or not
    (tmp_path / ".memfs" / "manifest.json").unlink()
    packed = subprocess.run(
        ["tar", "-c", "--exclude=x.tar", "."],
        cwd=tmp_path,
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
    )
    assert imported(served, packed.stdout, store, 409)["type"] == "conflict_error"
    done = imported(served, packed.stdout, store, replace=True)
    assert (done["created"], done["replaced"], done["unchanged"]) == (0, 1, 1)
    assert texts(served, store.id) == {"/a.md": "one", "/f/b.md": "three"}


def test_versions_say_who_and_when_and_texts_come_if_asked_for(
    served: Served, store: AStore
) -> None:
    note = store.write("/a", "one")
    store.call("POST", f"/memories/{note['id']}", {"content": "two"})
    store.call("POST", f"/memories/{note['id']}", {"content": "three"})
    gone = store.versions()[1]
    store.call("POST", f"/memory_versions/{gone['id']}/redact")
    plain, full = members(exported(served, store)), members(exported(served, store, versions=True))
    rows = [json.loads(line) for line in plain[".memfs/versions/000000.jsonl"][1].splitlines()]
    assert rows == store.versions()
    assert not [name for name in plain if name.startswith(".memfs/texts/")]
    kept = {name: data for name, (_, data) in full.items() if name.startswith(".memfs/texts/")}
    assert kept == {
        f".memfs/texts/{rows[0]['id']}": b"three",
        f".memfs/texts/{rows[2]['id']}": b"one",
    }
    assert imported(served, exported(served, store, versions=True))["created"] == 1


def test_ten_thousand_notes_go_out_and_in(served: Served, store: AStore) -> None:
    def fill(txn: Txn, caller: Caller, now: Time) -> None:
        for n in range(limits.NOTES_PER_STORE):
            where = paths.parse(f"/{n % 100}/{n}.md")
            notes.create(txn, caller, now, store.id, where, text(f"note {n}\n" * 9))

    served.commit(fill, USER)
    data = exported(served, store)
    assert imported(served, data)["created"] == limits.NOTES_PER_STORE
    done = imported(served, data, store)
    assert done["unchanged"] == limits.NOTES_PER_STORE
    one_more = packed(*((f"{n}", b"") for n in range(limits.NOTES_PER_STORE + 1)))
    assert "10000" in imported(served, one_more, status=400, name="big")["message"]
    assert "limit" in imported(served, packed(("new", b"")), store, 400)["message"]


# Policies ---------------------------------------------------------------------------------------


def test_an_import_into_a_store_is_all_or_nothing_and_names_the_conflicts(
    served: Served, store: AStore
) -> None:
    store.write("/same", "same")
    store.write("/other", "mine")
    store.write("/folder/x", "x")
    store.write("/note", "x")
    data = packed(
        ("same", b"same"), ("other", b"theirs"), ("folder", b""), ("note/y", b""), ("new", b"new")
    )
    before = served.service.feed.seq
    for replace in (False, True):
        error = imported(served, data, store, 409, replace=replace)
        assert error["type"] == "conflict_error"
        for path in ("/folder", "/note/y"):
            assert path in error["message"]
        assert ("/other" in error["message"]) is not replace
        assert "/same" not in error["message"]
    assert served.service.feed.seq == before
    data = packed(("same", b"same"), ("other", b"theirs"), ("new", b"new"))
    done = imported(served, data, store, replace=True)
    assert (done["created"], done["replaced"], done["unchanged"]) == (1, 1, 1)
    row = next(row for row in store.versions() if row["path"] == "/other")
    assert row["operation"] == "modified"  # its history goes on


def test_an_import_needs_to_write_and_a_new_store_a_person(served: Served, store: AStore) -> None:
    data = packed(("a", b"a"))
    resources = [{"type": "memory_store", "memory_store_id": store.id, "access": "read_only"}]
    served.call("POST", "tasks", {"id": "t-imp", "worker": "Imp", "resources": resources})
    foreign = served.store()
    key = served.call("POST", "keys", {"power": "agent", "worker": "Imp"})["secret"]
    only = served.call("POST", "keys", {"power": "readonly"})["secret"]
    own = served.call("GET", "workers/Imp")["memory_store_id"]
    for secret, route, status in (
        (key, "import", 403),
        (key, f"{store.id}/import", 403),
        (key, f"{foreign.id}/import", 404),
        (key, f"{own}/import", 200),
        (only, "import", 403),
        (only, f"{own}/import", 403),
    ):
        headers = {"x-api-key": secret}
        url = f"/v1/memory_stores/{route}"
        answer = served.http.post(url, content=data, headers=headers, params={"name": "n"})
        assert answer.status_code == status, (route, answer.text)
    for secret, at, status in ((key, store, 200), (key, foreign, 404), (only, foreign, 200)):
        answer = served.http.get(f"/v1/memory_stores/{at.id}/export", headers={"x-api-key": secret})
        assert answer.status_code == status
    store.call("POST", "/archive")
    assert "archived" in imported(served, data, store, 400)["message"]
    assert exported(served, store)


def test_a_store_without_a_name_is_not_made(served: Served) -> None:
    assert "name" in imported(served, packed(("a", b"a")), status=400)["message"]
    assert imported(served, packed(), name="empty")["created"] == 0


# Hostile tars -----------------------------------------------------------------------------------


def _header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.type = kind
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse(archive: tarfile.TarFile) -> None:
    add(archive, "GNUSparseFile.0/a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.name": "a"})


HOSTILE = {
    "absolute": packed(("/etc/passwd", b"x")),
    "dots": packed(("a/../../b", b"x")),
    "dots alone": packed(("..", b"x")),
    "dots in a folder": made(lambda t: add(t, "../d", b"", type=tarfile.DIRTYPE)),
    "symbolic link": made(lambda t: add(t, "a", b"", type=tarfile.SYMTYPE, linkname="/etc")),
    "hard link": made(lambda t: add(t, "a", b"", type=tarfile.LNKTYPE, linkname="b")),
    "device": made(lambda t: add(t, "a", b"", type=tarfile.CHRTYPE, devmajor=1)),
    "pipe": made(lambda t: add(t, "a", b"", type=tarfile.FIFOTYPE)),
    "contiguous": made(lambda t: add(t, "a", type=tarfile.CONTTYPE)),
    "sparse by pax": made(sparse, format=tarfile.PAX_FORMAT),
    "sparse by GNU": made(lambda t: add(t, "a", b"", type=tarfile.GNUTYPE_SPARSE)),
    "twice": packed(("a", b"1"), ("a", b"1")),
    "twice by other names": packed(("a", b"1"), ("./a", b"2")),
    "a note and its folder": packed(("a", b"1"), ("a/b", b"2")),
    "too long": packed(("a", b"x" * 102_401)),
    "huge": _header("a", 2**40) + tar.END,
    "negative": _header("a", -1) + tar.END,
    "size by pax": made(
        lambda t: add(t, "a", pax_headers={"size": "99999999999999"}), format=tarfile.PAX_FORMAT
    ),
    "no number by pax": made(
        lambda t: add(t, "a", pax_headers={"size": "1e3"}), format=tarfile.PAX_FORMAT
    ),
    "huge pax header": _header("pax", 2**30, tarfile.XHDTYPE),
    "for everybody": made(
        lambda t: add(t, "a"), format=tarfile.PAX_FORMAT, pax_headers={"path": "b"}
    ),
    "binary": packed(("a", b"\xff\xfe")),
    "a credential": packed(("a", b"AKIA" + b"ABCDEFGHIJKLMNOP")),
    "a name that is none": packed(("a\u202eb", b"")),
    "not NFC": packed(("e\u0301", b"")),
    "not UTF-8": made(lambda t: add(t, "\udcff"), format=tarfile.GNU_FORMAT),
    "too deep": packed(("/".join("a" * 21), b"")),
    "cut off in a file": packed(("a", b"x" * 2000))[:1000],
    "cut off after a file": packed(("a", b"x"), end=b""),
    "cut off in the end": packed(("a", b"x"), end=bytes(512)),
    "nothing": b"",
    "compressed": gzip.compress(os.urandom(5_000)),
    "no tar": b"hello " * 1000,
    "a damaged header": packed(("a", b"x")).replace(b"ustar", b"ustbr", 1),
    "manifest of another store": packed(
        ("a", b"x"),
        (MANIFEST, b'{"store": {"name": "n"}, "seq": 1, "notes": []}'),
    ),
    "manifest that is none": packed((MANIFEST, b"[" * 100_000)),
    "manifest twice": packed(*[(MANIFEST, b'{"store":{"name":"n"},"seq":1,"notes":[]}')] * 2),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_tar_is_refused_and_leaves_nothing(
    served: Served, store: AStore, what: str
) -> None:
    store.write("/kept", "x")
    before = served.service.feed.seq
    names = os.listdir(served.config.data_dir)
    good = tar.pack("first", b"fine")
    for data in (HOSTILE[what], good + HOSTILE[what]):
        imported(served, data, status=400, name="n")
        imported(served, data, store, 400, replace=True)
    assert served.service.feed.seq == before
    assert os.listdir(served.config.data_dir) == names


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("deep/one.md", b"AKIA" + b"ABCDEFGHIJKLMNOP"), ("/deep/one.md", "credential")),
        (("deep/one.md", b"\xff"), ("/deep/one.md", "UTF-8")),
        (("deep/one.md", b"x" * 102_401), ("deep/one.md", "102401")),
        (("../one.md", b""), ("../one.md",)),
    ],
)
def test_a_refusal_names_the_entry(
    served: Served, entry: tuple[str, bytes], words: tuple[str, ...]
) -> None:
    message = imported(served, packed(("ok", b""), entry), status=400, name="n")["message"]
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"x"), ("gzip", "gunzip it first")),
        (gzip.compress(os.urandom(5_000)), ("gzip", "gunzip it first")),
        (bz2.compress(b"x"), ("bzip2", "bunzip2 it first")),
        (lzma.compress(b"x"), ("xz", "unxz it first")),
        (zstandard.compress(b"x" * 5_000), ("zstd", "unzstd it first")),
        (b"PK\x03\x04" + os.urandom(2_000), ("zip", "unzip it", "tar -cf")),
        ("Grüße, a note.\n".encode(), ("plain text", "memfs put")),
        ("Grüße, a note.\n".encode() * 1_000, ("plain text", "memfs put")),
        (b"\x89PNG\r\n\x1a\n" + os.urandom(2_000), ("no tar",)),
        (b"", ("nothing came",)),
    ],
)
def test_what_is_no_tar_is_told_what_it_is_and_what_to_do(
    served: Served, data: bytes, words: tuple[str, ...]
) -> None:
    message = imported(served, data, status=400, name="n")["message"]
    for word in words:
        assert word in message


def test_a_tar_that_stalls_is_408_and_frees_its_turn(tmp_path: Path) -> None:
    def stalling() -> Iterator[bytes]:
        yield tar.pack("a", b"x")
        time.sleep(1)
        yield tar.END

    with serving(tmp_path, bounds=Bounds(body_s=0.3)) as served:
        for _ in range(3):  # more than may import at once
            with served.other_clients(), client(served) as http:
                url = "/v1/memory_stores/import"
                answer = http.post(url, params={"name": "n"}, content=stalling())
                assert answer.status_code == 408
        assert imported(served, packed(), name="n")


def test_a_callers_second_import_at_once_is_told_to_wait(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(body_s=0.3)) as served, contextlib.ExitStack() as stack:
        gate = threading.Event()

        def slow() -> Iterator[bytes]:
            for _ in range(400):  # a mebibyte within the time
                yield tar.pack(".memfs/x", bytes(20_000))
                if gate.wait(0.001):
                    break
            yield tar.END

        def send() -> None:
            with client(served) as http:
                http.post("/v1/memory_stores/import", params={"name": "n"}, content=slow())

        stack.enter_context(served.other_clients())
        senders = [threading.Thread(target=send) for _ in range(1)]
        for one in senders:
            one.start()
        statuses: list[int] = []
        end = time.monotonic() + 20
        while 503 not in statuses and time.monotonic() < end:
            url = "/v1/memory_stores/import"
            answer = served.http.post(url, params={"name": "n"}, content=packed())
            statuses.append(answer.status_code)
        gate.set()
        for one in senders:
            one.join(20)
        assert statuses[-1] == 503
        assert imported(served, packed(), name="n")


def client(served: Served) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(served.config.socket_path))
    return httpx.Client(transport=transport, base_url="http://memfs", timeout=20)


def test_a_client_that_leaves_in_an_import_leaves_nothing(served: Served) -> None:
    before, names = served.service.feed.seq, os.listdir(served.config.data_dir)
    for _ in range(3):
        with served.other_clients(), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(served.config.socket_path))
            head = "POST /v1/memory_stores/import?name=n HTTP/1.1\r\nhost: x\r\n"
            sock.sendall(f"{head}content-length: 100000\r\n\r\n".encode() + tar.pack("a", b"x"))
    assert served.service.feed.seq == before
    assert os.listdir(served.config.data_dir) == names
    assert imported(served, packed(), name="n")  # their turns are free


def test_a_client_that_leaves_in_an_export_is_noticed(served: Served, store: AStore) -> None:
    for n in range(40):
        store.write(f"/{n}", "x" * 100_000)
    for _ in range(3):
        with (
            served.other_clients(),
            client(served) as http,
            http.stream("GET", f"/v1/memory_stores/{store.id}/export") as response,
        ):
            assert response.status_code == 200


# The tar itself ---------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150)


@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1500), st.integers(-(2**62), 2**62)), max_size=4),
    st.integers(1, 1600),
    st.sampled_from(["ours", tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_a_tar_is_read_the_same_however_it_is_cut(
    files: list[tuple[str, bytes, int]], step: int, how: Any
) -> None:
    if how == "ours":
        data = b"".join(tar.pack(name, body, 0o640, Time(at)) for name, body, at in files) + tar.END
    else:
        data = made(lambda t: [add(t, name, body) for name, body, _ in files] and None, format=how)
    reader = tar.Reader(lambda member: 2_000)
    found = [
        (member.name, body, member.mtime)
        for start in range(0, len(data), step)
        for member, body in reader.feed(data[start : start + step])
    ]
    reader.close()
    assert [one[:2] for one in found] == [(name, body) for name, body, _ in files]
    if how == "ours":
        assert [one[2] for one in found] == [at for _, _, at in files]
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            assert archive.getnames() == [name.rstrip("/") for name, _, _ in files]


@given(st.binary(max_size=3000), st.integers(0, 3000), st.binary(max_size=8))
def test_a_reader_takes_any_bytes(noise: bytes, at: int, patch: bytes) -> None:
    whole = bytearray(packed(("a" * 120, b"x" * 700), ("b", b"y")))
    whole[at : at + len(patch)] = patch
    for data in (noise, bytes(whole), noise + bytes(whole)):
        reader = tar.Reader(lambda member: 1_000)
        try:
            for member, body in reader.feed(data):
                assert len(body) == member.size <= 1_000
            reader.close()
        except Invalid:
            pass


def test_extended_headers_have_a_bound() -> None:
    for kind in (b"x", b"g", b"L"):
        reader = tar.Reader(lambda member: 10)
        with pytest.raises(Invalid):
            list(reader.feed(_header("pax", 2**30, kind)))


# The engine -------------------------------------------------------------------------------------


def test_a_text_that_is_gone_meanwhile_is_left_out(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    info = engine.commit(notes.create, store.id, paths.parse("/a"), text("one"))
    assert info.note is not None
    found = engine.view(transfer.snapshot, store.id)
    assert [path for path, _ in found.notes] == ["/a"]
    assert engine.view(transfer.texts, [info.note.sha256]) == [b"one"]
    engine.commit(notes.purge, store.id, info.note.id)
    assert engine.view(transfer.texts, [info.note.sha256]) == [None]
    assert engine.view(transfer.versions_until, found.store, found.seq, 10) == ([], None)


def test_an_import_keeps_mode_and_mtime_and_all_invariants(engine: Engine) -> None:
    store = engine.commit(stores.create, "s")
    old = engine.commit(notes.create, store.id, paths.parse("/b"), text("old"))
    content = {"/a/x": text("one"), "/b": text("two")}
    incoming = [
        transfer.Incoming(paths.parse(path), one.sha256, 0o600, Time(-5))
        for path, one in content.items()
    ]
    done = engine.commit(
        transfer.import_into,
        store.id,
        incoming,
        lambda one: content[one.path].data,
        replace=True,
    )
    assert (done.created, done.replaced, done.store.notes) == (1, 1, 2)
    for path, info in engine.view(notes.list_page, store.id).items:
        assert (info.mode, info.mtime) == (0o600, -5)
        if path == "/b":
            assert info.node == old.node


# The command line -------------------------------------------------------------------------------


def test_export_and_import_on_the_command_line(
    memfs: Shell, served: Served, store: AStore, tmp_path: Path
) -> None:
    store.write("/a", "one")
    target = tmp_path / "x.tar"
    target.write_bytes(b"old")
    said = memfs.json("export", store.id, "-o", str(target), "--versions")
    assert said["size_bytes"] == target.stat().st_size
    assert {"a", MANIFEST} < set(members(target.read_bytes()))
    assert os.listdir(tmp_path) == ["x.tar"]
    piped = memfs.process("export", store.id, stdout=subprocess.PIPE).stdout
    assert members(piped)["a"][1] == b"one"
    done = memfs.json("import", str(target), "--name", "copy")
    assert texts(served, done["memory_store_id"]) == {"/a": "one"}
    assert done["memory_store_name"] == "copy"
    assert "third (memstore_" in memfs("import", str(target), "--name", "third")
    assert memfs.json("import", "-", "--into", "copy", stdin=piped)["unchanged"] == 1
    memfs("put", "copy", "a", stdin=b"two")
    assert "/a" in memfs.run("import", str(target), "--into", "copy", code=9).stderr
    assert "1 replaced" in memfs("import", str(target), "--into", "copy", "--replace")
    assert "called 'third', too" in memfs.run("import", str(target), "--name", "third").stderr
    memfs("import", str(target), "--into", "copy", "--name", "x", code=2)
    memfs("import", str(target), "--replace", code=2)
    memfs("import", str(tmp_path / "none.tar"), code=4)
    memfs("export", "no such store", code=4)
    memfs("export", store.id, "-o", str(tmp_path / "none" / "x"), code=1)
    memfs("import", "-", stdin=b"no tar" * 500, code=5)


def test_export_writes_no_tar_to_a_terminal_and_shows_progress_there(
    memfs: Shell, store: AStore, tmp_path: Path
) -> None:
    store.write("/a", "one")
    leader, follower = pty.openpty()
    try:
        done = memfs.process("export", store.id, stdout=follower, stderr=subprocess.PIPE)
        assert done.returncode == 2
        out = tmp_path / "x.tar"
        done = memfs.process("export", store.id, "-o", str(out), stderr=follower)
        assert done.returncode == 0
        assert b"exporting" in os.read(leader, 65_536)
        done = memfs.process("import", str(out), stderr=follower)
        assert b"importing" in os.read(leader, 65_536)
        assert done.returncode == 0
    finally:
        os.close(leader)
        os.close(follower)
