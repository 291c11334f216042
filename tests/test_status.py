"""What the daemon tells of itself is gathered without holding up the loop."""

import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from daemon import attachments
from daemon.config import Config
from memfs.engine import stores, tasks
from memfs.engine.service import Service
from tests.conftest import Engine


def test_folders_and_the_mount_table_are_read_in_a_thread(engine: Engine, tmp_path: Path) -> None:
    shared = engine.commit(stores.create, "shared")
    engine.commit(tasks.create, "Ada", [tasks.Wanted(shared.id)], "t")
    config, where = Config(tmp_path / "ws"), []

    def seen(function: Any) -> Any:
        def run(*args: Any) -> Any:
            if not args or Path(args[0]).is_relative_to(config.workspace):
                where.append((function.__name__, threading.current_thread()))
            return function(*args)

        return run

    async def main() -> attachments.Found:
        with mock.patch.object(attachments, "Binder"):  # nothing is mounted
            followed = attachments.Attachments(config, Service(engine.env), mock.Mock())
        async with trio.open_nursery() as nursery:
            await nursery.start(followed.run)
            memory = config.tasks_dir / "t" / "memory"
            for name in ("ada", "stray"):
                (memory / name).mkdir(parents=True)
            (memory / "shared").symlink_to("elsewhere")
            with (
                mock.patch.object(attachments, "read_mounts", seen(attachments.read_mounts)),
                mock.patch.object(os, "listdir", seen(os.listdir)),
                mock.patch.object(Path, "is_symlink", seen(Path.is_symlink)),
            ):
                found = await followed.look()
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(main)
    assert {name for name, _ in where} == {"read_mounts", "listdir", "is_symlink"}
    assert threading.current_thread() not in [thread for _, thread in where]
    alive = {Path(str(one["path"])).name: one["alive"] for one in found.mounts}
    assert alive == {"ada": False, "shared": True}
    assert [Path(path).name for path in found.strays] == ["stray"]
