"""Shell completion of names: asks the daemon; says nothing, and soon, where it does not answer."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

import click
from click.shell_completion import CompletionItem

from daemon.cli.client import NOTE_PAGE, STORE_PAGE, Client, Json
from daemon.cli.session import Session
from memfs.errors import MemfsError

_TIMEOUT_S = 1  # somebody waits with a finger on the key
_MOST = 1_000  # more than anybody reads
# Shells insert what we say as it is: a name with other characters is offered as its id.
_PLAIN = frozenset("_-./@%+,")  # besides letters and digits

Named = tuple[str, str]  # what to insert, and what it is


class Name(click.ParamType[str]):
    """A name of something that the daemon knows."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return what the name may be."""
        session = ctx.find_root().obj
        if not isinstance(session, Session):
            return []
        try:
            with closing(Client(session.config, timeout_s=_TIMEOUT_S)) as client:
                found = list(islice(self.candidates(client, ctx, incomplete), _MOST))
        except (click.ClickException, MemfsError, OSError):
            return []
        return [CompletionItem(value, help=about) for value, about in found]

    def candidates(self, client: Client, ctx: click.Context, incomplete: str) -> Iterator[Named]:
        """Yield what begins with *incomplete*."""
        raise NotImplementedError


class StoreName(Name):
    """A store's name; its id where the name is not unique or no shell's word."""

    def candidates(self, client: Client, ctx: click.Context, incomplete: str) -> Iterator[Named]:
        """Yield stores."""
        rows = list(client.rows("memory_stores", limit=STORE_PAGE))
        return _by_name_or_id(rows, incomplete)


class WorkerName(Name):
    """A worker's name; its id where the name is no shell's word."""

    def candidates(self, client: Client, ctx: click.Context, incomplete: str) -> Iterator[Named]:
        """Yield workers."""
        return _by_name_or_id(client.get("workers")["data"], incomplete)


class TaskId(Name):
    """A task's id."""

    def candidates(self, client: Client, ctx: click.Context, incomplete: str) -> Iterator[Named]:
        """Yield tasks, the live ones alone if there are any."""
        for ended in (False, True):
            found = [
                (row["id"], row["created_at"])
                for row in client.rows("tasks", limit=STORE_PAGE, include_ended=ended)
                if row["id"].startswith(incomplete)
            ]
            if found:
                return iter(found)
        return iter(())


class NotePath(Name):
    """The path of a note in the store that was named before it."""

    def candidates(self, client: Client, ctx: click.Context, incomplete: str) -> Iterator[Named]:
        """Yield notes and folders of one level, deeper ones where there is no choice."""
        store_id = client.store_id(str(ctx.params.get("store") or ""))
        slash = incomplete.startswith("/")
        typed = incomplete if slash else f"/{incomplete}"
        found = list(_level(client, store_id, typed))
        while len(found) == 1 and found[0][0].endswith("/"):  # no space belongs behind a folder
            found = list(_level(client, store_id, found[0][0]))
        for value, about in found:
            yield value if slash or value.startswith("mem_") else value[1:], about


def _level(client: Client, store_id: str, typed: str) -> Iterator[Named]:
    folder = typed[: typed.rindex("/") + 1]
    rows = client.rows(
        *("memory_stores", store_id, "memories"), limit=NOTE_PAGE, path_prefix=folder, depth=1
    )
    for row in rows:
        path = row["path"]
        if path.startswith(typed):
            if _is_plain(path):
                yield path, ""
            elif row["type"] != "memory_prefix":
                yield row["id"], path


def _by_name_or_id(rows: Iterable[Json], incomplete: str) -> Iterator[Named]:
    rows = list(rows)
    names = [row["name"] for row in rows]
    for row in rows:
        name = row["name"]
        if _is_plain(name) and names.count(name) == 1 and name.startswith(incomplete):
            yield name, row["id"]
        elif name.startswith(incomplete) or (incomplete and row["id"].startswith(incomplete)):
            yield row["id"], name


def _is_plain(name: str) -> bool:
    return not name.startswith("-") and all(char.isalnum() or char in _PLAIN for char in name)


STORE, WORKER, TASK, NOTE = StoreName(), WorkerName(), TaskId(), NotePath()
