"""A mounted memory in the foreground, with a worker, a shared store and a task to try it with."""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from live import MEMFS, Failed, Live, cannot_mount

WORKER, STORE, TASK = "assistant", "shared", "demo"
PURPOSE = "What all workers should know."
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """Somebody asked this session to end; like KeyboardInterrupt, nothing on the way catches it."""


def end(signum: int, frame: FrameType | None) -> None:
    """Leave the session once, whatever it is doing."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)  # unmounting is not interrupted
    raise Ended


def live_task(live: Live) -> dict[str, Any]:
    """Return a task that is running; when there is none, make one and what it needs."""
    for task in live.list("task", "list"):
        if task.get("ended_at") is None:
            return task
    workers = live.list("worker", "list")
    own = {worker["memory_store_id"] for worker in workers}
    shared = [
        store
        for store in live.list("store", "list")
        if store["id"] not in own and store["archived_at"] is None
    ]
    worker = workers[0]["name"] if workers else WORKER
    store = shared[0] if shared else live.json("store", "create", STORE, "--description", PURPOSE)
    return live.json("task", "create", TASK, "--worker", worker, "--store", store["id"])


def over_tcp(live: Live, listen: str) -> list[str]:
    """Return what a person needs to know to ask over TCP; the lines work as they are."""
    host, _, port = listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    if port.strip("0") == "":  # any: the daemon says which
        port = live.port()
    url = f"http://{host}:{port}"
    memfs = f"memfs --workspace {shlex.quote(str(live.workspace))}"
    return [
        "",
        f"HTTP at {url}, for those with a key. Make one, and ask:",
        f"  KEY=$({memfs} key create --as person --name curl)",
        f'  curl -H "x-api-key: $KEY" {url}/v1/memory_stores',
    ]


def greeting(live: Live, task: dict[str, Any], listen: str | None) -> str:
    """Return what a person needs to know to try the mount from another terminal."""
    own, *others = task["resources"]
    folder = Path(own["mount_path"])
    lines = [
        "",
        f"Task {task['id']} is mounted at",
        f"  {folder.parent}",
        f"    {folder.name}/  the worker's own memory",
    ]
    for resource in others:
        name = Path(resource["mount_path"]).name
        lines.append(f"    {name}/  {resource['description']} ({resource['access']})")
    lines += [
        "",
        "Try in another terminal:",
        f"  export PATH={shlex.quote(str(MEMFS.parent))}:$PATH",
        f"  cd {shlex.quote(str(folder.parent))}",
        "  ls -l",
        f"  echo 'staging is deployed from the release branch' > {folder.name}/deploy.md",
        f"  echo 'never on a Friday' >> {folder.name}/deploy.md",
        f"  cat {folder.name}/deploy.md",
        f"  memfs log {shlex.quote(own['name'])} /deploy.md    # each save is a version",
        *([] if listen is None else over_tcp(live, listen)),
        "",
        f"Log: {live.log}",
        "Ctrl-C here unmounts and stops; the notes stay.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Serve until told to end; exit 0 then."""
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__)
    parser.add_argument("workspace", nargs="?", default="workspace", type=Path)
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve HTTP there, too, with keys")
    given = parser.parse_args()
    workspace: Path = given.workspace.resolve()
    options = [] if given.listen is None else ["--listen", given.listen]
    if (reason := cannot_mount()) is not None:
        print(f"memfs: {reason}", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print("memfs: not root: stores are put in place by symlinks, not by bind mounts")

    live = Live(workspace, *options)
    for ending in ENDINGS:
        signal.signal(ending, end)
    try:
        live.start()
        print(greeting(live, live_task(live), given.listen), flush=True)
        assert live.process is not None
        code = live.process.wait()
        raise Failed(f"memfs serve ended by itself with exit code {code}:\n{live.log_tail()}")
    except Ended:
        print("\nmemfs: unmounting", flush=True)
        try:
            live.stop()
        except Failed as failure:
            print(f"memfs: {failure}", file=sys.stderr)
            return 1
        return 0
    except Failed as failure:
        print(f"memfs: {failure}", file=sys.stderr)
        return 1
    finally:
        live.close()


if __name__ == "__main__":
    sys.exit(main())
