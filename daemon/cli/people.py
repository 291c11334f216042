"""Who did something, in words."""

import os
import pwd

from daemon.cli.client import Client, Json
from daemon.cli.session import Failure


class People:
    """Names the actors of one workspace; each task and worker is asked for once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: dict[str, str] = {}
        self._workers: dict[str, str] | None = None

    def name(self, actor: Json | None) -> str:
        """Return `you`, `user ada`, `Ada (task review-7)`, `key KEY` or `memfs`."""
        match actor:
            case {"type": "session_actor", "task_id": str(task)}:
                return self._task(task)
            case {"type": "user_actor", "user_id": str(user)}:
                return _user(user)
            case {"type": "api_actor", "api_key_id": str(key)}:
                return f"key {key}"
            case {"type": "system_actor"}:
                return "memfs"
            case _:
                return "unknown"

    def _task(self, task: str) -> str:
        if task not in self._tasks:
            worker = self._worker_of(task)
            self._tasks[task] = f"task {task}" if worker is None else f"{worker} (task {task})"
        return self._tasks[task]

    def _worker_of(self, task: str) -> str | None:
        try:
            worker_id: str = self._client.get("tasks", task)["worker_id"]
            if self._workers is None:
                rows = self._client.get("workers")["data"]
                self._workers = {row["id"]: row["name"] for row in rows}
        except Failure:  # an imported history may name tasks that are not here
            return None
        return self._workers.get(worker_id)


def _user(user: str) -> str:
    """Return a daemon's user: the one whose words came over its socket."""
    number = user.removeprefix("user_")
    if number == str(os.getuid()):
        return "you"
    try:
        return f"user {pwd.getpwuid(int(number)).pw_name}"
    except (ValueError, KeyError, OverflowError):
        return f"user {number}"
