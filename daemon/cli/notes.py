"""`memfs ls`, `cat`, `put`, `rm`, `mv` and `memfs note`: notes by path."""

import sys

import click

from daemon.cli import output
from daemon.cli.client import NOTE_PAGE, Client, Json, no_note
from daemon.cli.session import CONFLICT, NOT_FOUND, REFUSED, Command, Failure, Group, session

_TRIES = 5  # of put, when others create and delete the same note meanwhile


@click.command("ls", cls=Command)
@click.argument("store")
@click.argument("prefix", required=False, default="/")
@click.option("-l", "long", is_flag=True, help="Size, time of the last change and id too.")
@click.option("-r", "recursive", is_flag=True, help="Everything below, not one level.")
def ls(store: str, prefix: str, long: bool, recursive: bool) -> None:
    """List the notes and folders of a store, or below PREFIX."""
    client = session().client
    store_id, path = client.store_id(store), absolute(prefix)
    if not path.endswith("/"):
        found = client.find_note(store_id, path)
        rows = [found] if found else _below(client, store_id, f"{path}/", recursive)
    else:
        rows = _below(client, store_id, path, recursive)
    if not rows and path != "/":
        raise Failure(NOT_FOUND, f"nothing at {path}: list the store with `memfs ls -r`")
    output.emit_rows(rows, lambda: _listing(rows) if long else [row["path"] for row in rows])


@click.command("cat", cls=Command)
@click.argument("store")
@click.argument("path")
def cat(store: str, path: str) -> None:
    """Print a note's text."""
    client = session().client
    found = client.note(client.store_id(store), absolute(path), view="full")
    if session().json:
        output.emit(found, list)
    else:
        output.write(found["content"])


@click.command("put", cls=Command)
@click.argument("store")
@click.argument("path")
@click.option("--if-sha256", metavar="HASH", help="Only if the note's text has this sha256.")
@click.option("--if-absent", is_flag=True, help="Only if there is no note.")
def put(store: str, path: str, if_sha256: str | None, if_absent: bool) -> None:
    """Write a note's text from standard input; the note is made if there is none."""
    if if_sha256 is not None and if_absent:
        raise click.UsageError("--if-sha256 and --if-absent exclude each other")
    client = session().client
    store_id, where = client.store_id(store), absolute(path)
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise Failure(REFUSED, "standard input is not UTF-8: notes hold text only") from None
    for _ in range(_TRIES):
        made = _put(client, store_id, where, text, if_sha256, if_absent)
        if made is not None:
            output.emit(made, lambda made=made: [f"{made['path']} {made['memory_version_id']}"])
            return
    raise Failure(CONFLICT, f"{where} comes and goes: others write it, try again")


@click.command("rm", cls=Command)
@click.argument("store")
@click.argument("path")
@click.option("--if-sha256", metavar="HASH", help="Only if the note's text has this sha256.")
def rm(store: str, path: str, if_sha256: str | None) -> None:
    """Delete a note; its history stays (see `memfs log` and `memfs restore`)."""
    client = session().client
    store_id = client.store_id(store)
    note_id = client.note(store_id, absolute(path))["id"]
    gone = client.delete(*_memory(store_id, note_id), expected_content_sha256=if_sha256)
    output.emit(gone, lambda: [f"deleted {absolute(path)}"])


@click.command("mv", cls=Command)
@click.argument("store")
@click.argument("old")
@click.argument("new")
def mv(store: str, old: str, new: str) -> None:
    """Move a note; it keeps its id and history. NEW may be a folder that ends in a slash."""
    client = session().client
    store_id, source, target = client.store_id(store), absolute(old), absolute(new)
    if target.endswith("/"):
        target += source.rpartition("/")[2]
    note_id = client.note(store_id, source)["id"]
    moved = client.post(*_memory(store_id, note_id), body={"path": target})
    output.emit(moved, lambda: [f"{source} -> {moved['path']}"])


@click.group("note", cls=Group)
def note_group() -> None:
    """Put notes away, bring them back, remove them for good."""


@note_group.command("archive")
@click.argument("store")
@click.argument("path")
@click.option("--reason", default="archived by hand", show_default=True)
def archive(store: str, path: str, reason: str) -> None:
    """Take a note out of the store's tree; it is kept with its history."""
    client = session().client
    store_id = client.store_id(store)
    note_id = client.note(store_id, absolute(path))["id"]
    away = client.post(*_memory(store_id, note_id), "archive", body={"reason": reason})
    output.emit(away, lambda: [f"archived {away['path']} ({away['id']})"])


@note_group.command("archived")
@click.argument("store")
def list_archived(store: str) -> None:
    """List the archived notes of a store."""
    client = session().client
    rows = _archived(client, client.store_id(store))
    output.emit_rows(
        rows,
        lambda: output.table(
            ("ID", "ARCHIVED", "PATH", "REASON"),
            (
                (
                    row["id"],
                    output.local_time(row["archived_at"]),
                    row["path"],
                    row["archive_reason"],
                )
                for row in rows
            ),
        ),
    )


@note_group.command("unarchive")
@click.argument("store")
@click.argument("path_or_id")
def unarchive(store: str, path_or_id: str) -> None:
    """Bring an archived note back to its path."""
    client = session().client
    store_id = client.store_id(store)
    note_id = path_or_id
    if not path_or_id.startswith("mem_"):
        path = absolute(path_or_id)
        those = [row["id"] for row in _archived(client, store_id) if row["path"] == path]
        if not those:
            raise Failure(NOT_FOUND, f"no archived note of {path}: see `memfs note archived`")
        note_id = those[-1]
    back = client.post(*_memory(store_id, note_id), "unarchive")
    output.emit(back, lambda: [f"brought back {back['path']}"])


@note_group.command("purge")
@click.argument("store")
@click.argument("path_or_id")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
def purge(store: str, path_or_id: str, yes: bool) -> None:
    """Remove a note with its whole history, also one that was deleted or archived."""
    client = session().client
    store_id = client.store_id(store)
    note_id = path_or_id
    if not path_or_id.startswith("mem_"):
        note_id = client.note_id(store_id, absolute(path_or_id))
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {path_or_id} and its whole history?", abort=True)
    gone = client.post(*_memory(store_id, note_id), "purge")
    output.emit(gone, lambda: [f"purged {gone['id']}"])


def absolute(path: str) -> str:
    """Return *path* from the store's root; the slash in front may be left out."""
    return path if path.startswith("/") else f"/{path}"


def _memory(store_id: str, note_id: str) -> tuple[str, ...]:
    return ("memory_stores", store_id, "memories", note_id)


def _below(client: Client, store_id: str, prefix: str, recursive: bool) -> list[Json]:
    return list(
        client.rows(
            "memory_stores",
            store_id,
            "memories",
            limit=NOTE_PAGE,
            path_prefix=prefix,
            depth=0 if recursive else 1,
        )
    )


def _archived(client: Client, store_id: str) -> list[Json]:
    return list(client.rows("memory_stores", store_id, "memories", limit=NOTE_PAGE, archived=True))


def _listing(rows: list[Json]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        if row["type"] == "memory_prefix":
            lines.append(f"{'-':>7}  {'-':<25}  {'-':<30}  {row['path']}")
        else:
            time = output.local_time(row["updated_at"])
            lines.append(f"{row['content_size_bytes']:>7}  {time}  {row['id']}  {row['path']}")
    return lines


def _put(
    client: Client, store_id: str, path: str, text: str, if_sha256: str | None, if_absent: bool
) -> Json | None:
    """Write once; None when the note came or went between the look and the write."""
    found = None if if_absent else client.find_note(store_id, path)
    try:
        if found is not None:
            body: Json = {"content": text}
            if if_sha256 is not None:
                body["precondition"] = {"type": "content_sha256", "content_sha256": if_sha256}
            return client.post(*_memory(store_id, found["id"]), body=body)
        if if_sha256 is not None:
            raise no_note(path)
        return client.post(
            "memory_stores", store_id, "memories", body={"path": path, "content": text}
        )
    except Failure as failure:
        went = found is not None and failure.exit_code == NOT_FOUND
        came = (
            found is None
            and not if_absent
            and failure.exit_code == CONFLICT
            and failure.problem.get("conflicting_path") == path
        )
        if went or came:
            return None
        raise
