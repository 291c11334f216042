"""An export is made in parts, so that a client that takes none of it costs little."""

import io
import json
import tarfile

import pytest
import trio

from daemon.http import transfer
from daemon.http.cursor import Cursors
from daemon.http.door import Door
from memfs.engine import notes, stores
from memfs.engine import path as paths
from memfs.engine.service import Service
from tests.conftest import USER, Engine, text

MOST = 2**18 + 2**17  # a part, and the headers of its files


async def settle(_: object) -> None:
    pass


@pytest.mark.parametrize("with_versions", [False, True])
async def test_an_export_is_made_in_small_parts(engine: Engine, with_versions: bool) -> None:
    store = engine.commit(stores.create, "s")
    wanted: dict[str, bytes] = {}
    for n in range(12):
        path = f"large/{n:02}"
        wanted[path] = b"%d" % n + b"x" * 100_000
        info = engine.commit(notes.create, store.id, paths.parse(f"/{path}"), text(wanted[path]))
    assert info.note is not None
    for n in range(600):
        path = f"{n % 2}/{'n' * 250}/{'n' * 250}/{n:03}"
        wanted[path] = b"%d" % n
        engine.commit(notes.create, store.id, paths.parse(f"/{path}"), text(wanted[path]))
    door = Door(Service(engine.env), Cursors(b"k"), settle, lambda *_: "", dict, USER)
    answer = await transfer.export(door, store.id, with_versions)
    parts: list[bytes] = []

    async def send(message: dict[str, object]) -> None:
        part = message.get("body", b"")
        assert isinstance(part, bytes)
        parts.append(part)

    async def receive() -> None:
        await trio.sleep_forever()

    await answer({"type": "http"}, receive, send)  # pyright: ignore[reportArgumentType] - as ASGI has it
    assert max(len(part) for part in parts) < MOST
    assert len(parts) < 60  # and not in crumbs
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        found = {
            one.name: file.read()
            for one in archive
            if (file := archive.extractfile(one)) is not None
        }
    assert {name: data for name, data in found.items() if not name.startswith(".memfs")} == wanted
    assert len(json.loads(found[".memfs/manifest.json"])["notes"]) == len(wanted)
    rows = [
        json.loads(line)
        for name, data in sorted(found.items())
        if name.startswith(".memfs/versions/")
        for line in data.splitlines()
    ]
    assert [row["path"][1:] for row in rows] == list(reversed(wanted))
    kept = [data for name, data in found.items() if name.startswith(".memfs/texts/")]
    assert kept == (list(reversed(wanted.values())) if with_versions else [])
