"""The SDK's SessionMemoryStores keeps a copy of a session's stores in step with a live daemon.

It works as on another machine, with an agent's key, while a task of another worker edits the same
store through its mount. The SDK's clock is moved by the tests; nothing else of it is touched.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anthropic.lib.tools import _memories
from anthropic.lib.tools._memories import MARKER_PATH, SessionMemoryError, SessionMemoryStores
from anyio.from_thread import start_blocking_portal

from tests import sdk as sdk_module
from tests.mount import Api, Daemon, errno_is, refused
from tests.sdk import make_key, tcp_port

pytest_plugins = ("tests.mount", "tests.sdk")
pytestmark = pytest.mark.fuse
PATCH = sdk_module.LISTENS


class Clock:
    """What the synchroniser takes for time.monotonic."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Synced:
    """One session's stores, synchronised into folders below `workdir`, as the worker does it."""

    def __init__(
        self, url: str, key: str, session_id: str, workdir: Path, clock: Clock, **how: Any
    ) -> None:
        self._clock = clock
        self._workdir = workdir
        self._how = how
        self._running = start_blocking_portal()
        self.portal = self._running.__enter__()
        self.http = httpx2.AsyncClient(timeout=30)
        self.client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=url,
            http_client=self.http,
            max_retries=0,
            _strict_response_validation=True,
        )
        self.session = self.portal.call(self.client.beta.sessions.retrieve, session_id)
        self.stores = self._make()

    def _make(self) -> SessionMemoryStores:
        return SessionMemoryStores(self.client, workdir=self._workdir, **self._how)

    def download(self, *, here: bool = False) -> Path:
        """Download and return the shared store's folder. here: to the session's own mount paths."""
        session = self.session
        if not here:  # mount_path is a place on the daemon's machine; this is another one
            rest = [one.model_copy(update={"mount_path": None}) for one in session.resources]
            session = session.model_copy(update={"resources": rest})
        self.portal.call(self.stores.download, session)
        return self.stores.roots[1]

    def sync(self, seconds: float = 15.0) -> None:
        """Let *seconds* pass, then do what the worker does after a tool call."""
        self._clock.now += seconds
        self.portal.call(self.stores.sync_if_due)

    def finish(self) -> None:
        self.portal.call(self.stores.finish)

    def flush(self) -> None:
        self.portal.call(self.stores.flush_writes)

    def close(self) -> None:
        self.portal.call(self.stores.dispose)
        self.portal.call(self.client.close)
        self._running.__exit__(None, None, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_memories, "monotonic", clock)
    return clock


@pytest.fixture
def attach(
    daemon: Daemon, client: httpx.Client, api: Api, tmp_path: Path, clock: Clock
) -> Iterator[Callable[..., Synced]]:
    """Makes sessions of a worker with the store, and their synchronisers with the worker's key."""
    made: list[Synced] = []

    def make(worker: str = "remote", access: str = "read_write", **how: Any) -> Synced:
        resource = {"type": "memory_store", "memory_store_id": api.store_id, "access": access}
        body = {"agent": worker, "environment_id": "env_far", "resources": [resource]}
        session = client.post("/v1/sessions", json=body).raise_for_status().json()
        key = make_key(client, "agent", worker=worker)["secret"]
        url = f"http://127.0.0.1:{tcp_port(daemon)}"
        one = Synced(url, key, session["id"], tmp_path / f"far{len(made)}", clock, **how)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
        client.post(f"/v1/sessions/{one.session.id}/archive").raise_for_status()


@pytest.fixture
def far(attach: Callable[..., Synced]) -> Synced:
    return attach()


def tree(root: Path) -> dict[str, str]:
    """Return the texts below a synchronised folder."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != MARKER_PATH)
    return {f"/{path.relative_to(root)}": path.read_text() for path in files}


def texts(api: Api) -> dict[str, str | None]:
    """Return the texts of the store."""
    return {path: api.get(path) for path in api.ls()}


def by_session(api: Api, session_id: str) -> list[str]:
    """Return the paths that an actor with that id changed."""
    rows = api.all_versions()
    return [str(row["path"]) for row in rows if session_id in str(row["created_by"])]


# On the same machine ----------------------------------------------------------------------------


def test_where_the_daemon_runs_the_folder_is_there_already_and_is_not_copied_over(
    far: Synced, api: Api, S: Path
):
    (S / "a.md").write_text("live")
    for one in far.session.resources:
        assert Path(one.mount_path or "").is_mount()
    with pytest.raises(SessionMemoryError, match="something already exists"):
        far.download(here=True)
    assert Path(far.session.resources[1].mount_path or "", "a.md").read_text() == "live"


# The conflict table -----------------------------------------------------------------------------


def test_download_brings_every_note_also_those_of_the_workers_own_store(
    far: Synced, api: Api, S: Path
):
    for n in range(45):
        api.put(f"/many/{n}.md", f"text {n}")
    (S / "ü.md").write_text("€")
    Path(far.session.resources[0].mount_path or "", "mine.md").write_text("own")
    root = far.download()
    assert tree(root) == texts(api)
    assert len(tree(root)) == 46
    assert tree(far.stores.roots[0]) == {"/mine.md": "own"}
    assert MARKER_PATH not in {path.strip("/") for path in api.ls()}
    Path(far.session.resources[0].mount_path or "", "mine.md").unlink()


def test_a_remote_change_is_pulled_and_a_local_one_pushed(far: Synced, api: Api, S: Path):
    (S / "theirs.md").write_text("one")
    (S / "ours.md").write_text("one")
    root = far.download()
    (S / "theirs.md").write_text("two")
    (S / "new-theirs.md").write_text("new")
    (root / "ours.md").write_text("two")
    (root / "new").mkdir()
    (root / "new" / "ours.md").write_text("new")
    far.sync()
    both = {"/theirs.md": "two", "/new-theirs.md": "new", "/ours.md": "two", "/new/ours.md": "new"}
    assert tree(root) == texts(api) == both
    assert (S / "new" / "ours.md").read_text() == "new"
    assert api.history("/ours.md") == [("created", "one"), ("modified", "two")]
    before = len(api.all_versions())
    far.sync()
    assert len(api.all_versions()) == before  # nothing to do is nothing done


def test_what_the_key_pushes_bears_the_keys_name(far: Synced, api: Api):
    root = far.download()
    (root / "a.md").write_text("x")
    far.sync()
    (version,) = api.all_versions()
    assert version["created_by"]["type"] == "api_actor"  # pyright: ignore


def test_both_changed_the_servers_text_wins_and_the_mounts_text_is_whole(
    far: Synced, api: Api, S: Path, caplog: pytest.LogCaptureFixture
):
    (S / "a.md").write_text("base")
    root = far.download()
    (S / "a.md").write_text("live")
    (root / "a.md").write_text("far")
    with caplog.at_level(logging.WARNING):
        far.sync()
    assert "changed both locally and remotely" in caplog.text
    assert tree(root) == texts(api) == {"/a.md": "live"}
    assert api.history("/a.md") == [("created", "base"), ("modified", "live")]


def test_the_same_change_on_both_sides_is_adopted_without_a_version(far: Synced, api: Api, S: Path):
    (S / "a.md").write_text("base")
    root = far.download()
    (S / "a.md").write_text("same")
    (root / "a.md").write_text("same")
    far.sync()
    assert tree(root) == {"/a.md": "same"}
    (root / "a.md").write_text("next")
    far.sync()
    assert [text for _, text in api.history("/a.md")] == ["base", "same", "next"]


class Between:
    """Lets the mount change something after the synchroniser's listing, before its next request."""

    def __init__(self, far: Synced, method: str, change: Callable[[], object]) -> None:
        self._method, self._change, self.done = method, change, False
        far.http.event_hooks = {"request": [self._before]}

    async def _before(self, request: Any) -> None:
        if request.method == self._method and not self.done:
            self.done = True
            self._change()


def test_an_edit_that_loses_the_race_is_a_409_and_the_next_sync_pulls_the_winner(
    far: Synced, api: Api, S: Path, caplog: pytest.LogCaptureFixture
):
    (S / "a.md").write_text("base")
    root = far.download()
    (root / "a.md").write_text("far")
    race = Between(far, "POST", lambda: (S / "a.md").write_text("live"))
    with caplog.at_level(logging.WARNING):
        far.sync()
    assert race.done
    assert "the upload was refused" in caplog.text
    assert texts(api) == {"/a.md": "live"}
    assert tree(root) == {"/a.md": "far"}
    far.sync()
    assert tree(root) == {"/a.md": "live"}
    assert len(api.versions("/a.md")) == 2


def test_a_new_file_that_loses_the_race_takes_the_winners_text_and_an_overlap_stays(
    far: Synced, api: Api, S: Path, caplog: pytest.LogCaptureFixture
):
    root = far.download()
    (root / "a.md").write_text("far")
    Between(far, "POST", lambda: (S / "a.md").write_text("live"))
    with caplog.at_level(logging.WARNING):
        far.sync()
    assert "failed to upload" in caplog.text
    far.sync()
    assert tree(root) == texts(api) == {"/a.md": "live"}

    far.http.event_hooks = {}
    (root / "folder").write_text("a file here")
    (S / "folder").mkdir()
    (S / "folder" / "note").write_text("a folder there")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            far.sync()
        assert "failed to upload memory path=folder" in caplog.text
    assert (root / "folder").read_text() == "a file here"
    assert texts(api) == {"/a.md": "live", "/folder/note": "a folder there"}


def test_a_note_deleted_under_an_edit_comes_back_as_a_new_note(far: Synced, api: Api, S: Path):
    (S / "a.md").write_text("base")
    (S / "b.md").write_text("base")
    root = far.download()
    old = api.note_id("/a.md"), api.note_id("/b.md")
    (S / "a.md").unlink()  # before the listing
    (root / "a.md").write_text("far a")
    (root / "b.md").write_text("far b")
    Between(far, "POST", lambda: (S / "b.md").unlink(missing_ok=True))  # after it
    far.sync()
    far.sync()
    assert tree(root) == texts(api) == {"/a.md": "far a", "/b.md": "far b"}
    for note, path in zip(old, ("/a.md", "/b.md"), strict=True):
        assert api.note_id(path) != note
        assert api.history(note)[-1][0] == "deleted"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x" * 102_401, "too long"),
        (b"token " + b"ghp_" + b"a1B2c3D4e5" * 3 + b"a1B2c3", "a credential"),
        (b"\xff\xfe", "not UTF-8"),
    ],
    ids=["too-long", "credential", "not-utf8"],
)
def test_a_text_that_is_refused_stays_here_and_is_tried_again_only_when_changed(
    far: Synced, api: Api, caplog: pytest.LogCaptureFixture, data: bytes, why: str
):
    root = far.download()
    (root / "a.md").write_bytes(data)
    asked: list[str] = []

    async def note(request: Any) -> None:
        asked.append(request.method)

    far.http.event_hooks = {"request": [note]}
    with caplog.at_level(logging.WARNING):
        far.sync()
        far.sync()
    assert caplog.text.count("stays un-synced") == 1, why
    assert asked.count("POST") <= 1
    assert (root / "a.md").read_bytes() == data
    assert api.ls() == []
    (root / "a.md").write_text("fine")
    far.sync()
    assert texts(api) == {"/a.md": "fine"}


def test_a_local_delete_goes_out_after_half_a_minute_and_leaves_a_version(
    far: Synced, api: Api, S: Path
):
    for name in ("a.md", "b.md"):
        (S / name).write_text("text")
    note = api.note_id("/a.md")
    root = far.download()
    (root / "a.md").unlink()
    far.sync()
    assert api.ls() == ["/a.md", "/b.md"]
    far.sync(30)
    assert api.ls() == ["/b.md"]
    assert not (S / "a.md").exists()
    assert api.history(note) == [("created", "text"), ("deleted", None)]


def test_a_local_delete_of_what_changed_there_brings_the_file_back(far: Synced, api: Api, S: Path):
    for name in ("a.md", "b.md"):
        (S / name).write_text("text")
    root = far.download()
    (root / "a.md").unlink()
    far.sync()
    (S / "a.md").write_text("changed")
    far.sync(30)
    assert tree(root) == texts(api) == {"/a.md": "changed", "/b.md": "text"}

    (root / "b.md").unlink()  # and between listing and delete: 409
    far.sync()
    Between(far, "DELETE", lambda: (S / "b.md").write_text("changed too"))
    far.sync(30)
    assert api.get("/b.md") == "changed too"
    far.sync()
    assert tree(root) == texts(api) == {"/a.md": "changed", "/b.md": "changed too"}


def test_a_remote_delete_removes_the_file(far: Synced, api: Api, S: Path):
    for name in ("a.md", "b.md"):
        (S / name).write_text("text")
    root = far.download()
    (S / "a.md").unlink()
    far.sync()
    assert tree(root) == {"/b.md": "text"}


@pytest.mark.parametrize("mode", ["log_only", "disabled"])
def test_deletions_can_be_left_to_us(attach: Callable[..., Synced], api: Api, S: Path, mode: str):
    for name in ("a.md", "b.md"):
        (S / name).write_text("text")
    far = attach(sync_deletions=mode)
    root = far.download()
    (root / "a.md").unlink()
    far.sync()
    far.sync(30)
    far.finish()
    assert api.ls() == ["/a.md", "/b.md"]


def test_a_folder_that_is_emptied_or_gone_is_downloaded_again_and_deletes_nothing(
    far: Synced, api: Api, S: Path
):
    for name in ("a.md", "b.md"):
        (S / name).write_text("text")
    root = far.download()
    for gone in (("a.md", "b.md"), ("a.md", "b.md", MARKER_PATH)):
        for name in gone:
            (root / name).unlink()
        far.sync()
        far.sync(30)
        assert tree(root) == texts(api) == {"/a.md": "text", "/b.md": "text"}
    assert len(api.all_versions()) == 2


@pytest.mark.parametrize("marker", [None, "version 1\nmemstore_another"])
def test_without_its_marker_a_folder_is_not_synced_at_all(
    far: Synced, api: Api, S: Path, marker: str | None
):
    (S / "a.md").write_text("base")
    root = far.download()
    (root / "a.md").write_text("far")
    (root / "new.md").write_text("far")
    (S / "b.md").write_text("live")
    if marker is None:
        (root / MARKER_PATH).unlink()
    else:
        (root / MARKER_PATH).write_text(marker)
    far.sync()
    assert texts(api) == {"/a.md": "base", "/b.md": "live"}
    assert tree(root) == {"/a.md": "far", "/new.md": "far"}


def test_a_read_only_attachment_is_pulled_and_never_pushed(
    attach: Callable[..., Synced], api: Api, S: Path
):
    for name in ("a.md", "b.md", "c.md"):
        (S / name).write_text("base")
    far = attach("reader", "read_only")
    root = far.download()
    assert far.stores.read_only_roots == [root]
    for name in ("a.md", "b.md", "c.md", "new.md"):
        (root / name).write_text("far")
    (S / "b.md").write_text("live")
    (S / "c.md").unlink()
    far.sync()
    assert tree(root) == {"/a.md": "far", "/b.md": "live", "/c.md": "far", "/new.md": "far"}
    far.finish()
    assert texts(api) == {"/a.md": "base", "/b.md": "live"}
    memories = far.client.beta.memory_stores.memories
    with pytest.raises(anthropic.PermissionDeniedError):  # and were it to push, it could not
        far.portal.call(lambda: memories.create(api.store_id, path="/x", content=""))


def test_an_upload_whose_answer_was_lost_is_settled_by_the_next_listing(
    daemon: Daemon, far: Synced, api: Api, S: Path
):
    (S / "a.md").write_text("base")
    root = far.download()
    cutter = sdk_module.Cutter(tcp_port(daemon))
    far.client.base_url = f"http://127.0.0.1:{cutter.port}"  # type: ignore[assignment]

    async def lose(request: Any) -> None:
        cutter.cuts = 1 if request.method == "POST" else 0

    far.http.event_hooks = {"request": [lose]}
    try:
        (root / "a.md").write_text("far")
        far.sync()
        assert api.get("/a.md") == "far"
        (root / "a.md").write_text("far again")
        far.http.event_hooks = {}
        far.sync()
    finally:
        far.portal.call(far.http.aclose)
        cutter.close()
    assert tree(root) == texts(api) == {"/a.md": "far again"}
    assert [text for _, text in api.history("/a.md")] == ["base", "far", "far again"]


def test_finish_and_flush_push_what_is_left(attach: Callable[..., Synced], api: Api, S: Path):
    for name in ("a.md", "b.md"):
        (S / name).write_text("base")
    one, two = attach(), attach("other")
    root = one.download()
    (root / "a.md").unlink()
    (root / "b.md").write_text("far")
    one.finish()  # no later sync would confirm the delete
    assert texts(api) == {"/b.md": "far"}
    root = two.download()
    for n in range(40):
        (root / f"{n}.md").write_text(str(n))
    (S / "b.md").read_text()  # it has seen the synchroniser's text
    (S / "b.md").write_text("live")
    (root / "b.md").write_text("other")
    two.flush()
    assert texts(api) == {f"/{n}.md": str(n) for n in range(40)} | {"/b.md": "live"}


# Everything at once -----------------------------------------------------------------------------


def test_nothing_is_lost_while_a_mounted_task_and_a_synchroniser_edit_the_same_notes(
    far: Synced, api: Api, S: Path
):
    names = [f"n{n}.md" for n in range(6)]
    for name in names:
        (S / name).write_text("base")
    root = far.download()
    edits = Edits(S)
    for turn in range(12):
        for n, name in enumerate(names):
            if (turn + n) % 3 == 0:
                (root / name).write_text(f"far {turn} {n}")
            if (turn + n) % 8 == 0:  # somebody else's commit between our open and our close
                edits.edit(name, f"live {turn} {n}", meanwhile=far.sync)
            elif (turn + n) % 4 == 0:
                edits.edit(name, f"live {turn} {n}")
        if turn % 2:
            far.sync()
    far.sync()
    far.sync()
    assert edits.told
    edits.check(api)
    assert tree(root) == texts(api)
    versions = [text for name in names for _, text in api.history(f"/{name}")]
    assert any(str(text).startswith("far") for text in versions)


def test_nothing_is_lost_while_both_work_at_the_same_time(far: Synced, api: Api, S: Path):
    names = [f"n{n}.md" for n in range(4)]
    for name in names:
        (S / name).write_text("base")
    root = far.download()
    edits = Edits(S)

    def work() -> None:
        for n in range(120):
            edits.edit(names[n % 4], f"live {n}")

    thread = threading.Thread(target=work, name="mounted task")
    thread.start()
    turn = 0
    while thread.is_alive() or turn < 8:
        turn += 1
        (root / names[turn % 4]).write_text(f"far {turn}")
        (root / f"new{turn}.md").write_text(f"far {turn}")
        far.sync()
    thread.join()
    far.sync()
    far.sync()
    edits.check(api)
    assert tree(root) == texts(api)
    for n in range(1, turn + 1):
        assert api.get(f"/new{n}.md") == f"far {n}"


class Edits:
    """Edits through a mount, as a careful program makes them: read, change, close."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.accepted: list[tuple[str, str]] = []  # close said that it is kept
        self.told: list[tuple[str, str]] = []  # close said that another change came first

    def edit(self, name: str, text: str, meanwhile: Callable[[], object] | None = None) -> None:
        try:
            with open(self._root / name, "r+") as file:
                file.read()
                if meanwhile is not None:
                    meanwhile()
                file.seek(0)
                file.truncate()
                file.write(text)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self.told.append((name, text))
        else:
            self.accepted.append((name, text))

    def check(self, api: Api) -> None:
        """Each accepted text is a version, in the order of saving; each other one was kept."""
        kept = [path.read_text() for path in refused(self._root)]
        assert sorted(kept) == sorted(text for _, text in self.told)
        for name in {name for name, _ in self.accepted}:
            saved = [text for _, text in api.history(f"/{name}") if str(text).startswith("live")]
            assert saved == [text for one, text in self.accepted if one == name]


def test_a_mount_that_overwrites_what_a_synchroniser_pushed_is_told(far: Synced, api: Api, S: Path):
    (S / "a.md").write_text("base")
    root = far.download()
    (root / "a.md").write_text("far")
    far.sync()
    with errno_is(errno.ESTALE):  # it has not seen the synchroniser's text
        (S / "a.md").write_text("blind")
    assert (S / "a.md").read_text() == "far"
    (S / "a.md").write_text("seen")
    far.sync()
    assert tree(root) == {"/a.md": "seen"}
    assert [text for _, text in api.history("/a.md")] == ["base", "far", "seen"]
