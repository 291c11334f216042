"""`memfs ls`, `cat`, `put`, `rm`, `mv` and `memfs note`: notes by path."""

import sys

import click

from daemon.cli import output
from daemon.cli.client import NOTE_PAGE, Client, Json, absolute, is_note_id, is_version_id, no_note
from daemon.cli.complete import NOTE, STORE
from daemon.cli.confirm import ask_before, yes_option
from daemon.cli.exits import Exit
from daemon.cli.history import chosen_version
from daemon.cli.session import Command, Failure, Group, session

_TRIES = 5  # of put, when others create and delete the same note meanwhile


@click.command("ls", cls=Command)
@click.argument("store", type=STORE)
@click.argument("prefix", required=False, default="/", type=NOTE)
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
        raise Failure(Exit.NOT_FOUND, f"nothing is at {path}: list all with `memfs ls -r STORE`")
    output.emit_rows(rows, lambda: _listing(rows) if long else [row["path"] for row in rows])


@click.command("cat", cls=Command)
@click.argument("store", type=STORE)
@click.argument("path_or_version", type=NOTE)
@click.argument("version", required=False)
def cat(store: str, path_or_version: str, version: str | None) -> None:
    """Print a note's text, or that of one of its versions.

    Give a PATH, or a PATH with a VERSION, or a version's id.
    """
    client = session().client
    store_id = client.store_id(store)
    if version is None and not is_version_id(path_or_version):
        found = client.note(store_id, absolute(path_or_version), view="full")
    else:
        chosen = chosen_version(client, store_id, path_or_version, version)
        found = client.version(store_id, chosen)
    if session().json:
        output.emit(found, list)
    elif found["content"] is None:
        state = "was redacted" if found["redacted_at"] else "is the note's deletion"
        raise Failure(
            Exit.NOT_FOUND, f"{found['id']} has no text, it {state}: choose another version"
        )
    else:
        output.write(found["content"])


@click.command("put", cls=Command, short_help="Write a note's text from standard input.")
@click.argument("store", type=STORE)
@click.argument("path", type=NOTE)
@click.option("--if-sha256", metavar="HASH", help="Only if the note's text has this sha256.")
@click.option("--if-absent", is_flag=True, help="Only if there is no note.")
def put(store: str, path: str, if_sha256: str | None, if_absent: bool) -> None:
    """Write a note's text from standard input; the note is made if there is none."""
    if if_sha256 is not None and if_absent:
        raise click.UsageError("--if-sha256 and --if-absent exclude each other")
    client = session().client
    store_id, where = client.store_id(store), absolute(path)
    text = _standard_input()
    for _ in range(_TRIES):
        made = _put(client, store_id, where, text, if_sha256, if_absent)
        if made is not None:
            output.emit(made, lambda made=made: [f"{made['path']} {made['memory_version_id']}"])
            return
    raise Failure(Exit.CONFLICT, f"{where} comes and goes because others write it: try again")


@click.command("rm", cls=Command, short_help="Delete a note; its history stays.")
@click.argument("store", type=STORE)
@click.argument("path", type=NOTE)
@click.option("--if-sha256", metavar="HASH", help="Only if the note's text has this sha256.")
def rm(store: str, path: str, if_sha256: str | None) -> None:
    """Delete a note; its history stays (see `memfs log` and `memfs restore`)."""
    client = session().client
    store_id = client.store_id(store)
    note_id = client.note(store_id, absolute(path))["id"]
    gone = client.delete(*_memory(store_id, note_id), expected_content_sha256=if_sha256)
    output.emit(gone, lambda: [f"deleted {absolute(path)}"])


@click.command("mv", cls=Command)
@click.argument("store", type=STORE)
@click.argument("old", type=NOTE)
@click.argument("new", type=NOTE)
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


@note_group.command("archive", short_help="Take a note out of the store's tree, and keep it.")
@click.argument("store", type=STORE)
@click.argument("path", type=NOTE)
@click.option("--reason", default="archived by hand", show_default=True)
def archive(store: str, path: str, reason: str) -> None:
    """Take a note out of the store's tree; it is kept with its history."""
    client = session().client
    store_id = client.store_id(store)
    note_id = client.note(store_id, absolute(path))["id"]
    away = client.post(*_memory(store_id, note_id), "archive", body={"reason": reason})
    output.emit(away, lambda: [f"archived {away['path']} ({away['id']})"])


@note_group.command("archived")
@click.argument("store", type=STORE)
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


@note_group.command("unarchive", short_help="Bring an archived note back to its path.")
@click.argument("store", type=STORE)
@click.argument("path_or_id", type=NOTE)
def unarchive(store: str, path_or_id: str) -> None:
    """Bring an archived note back to its path; of several of that path the last archived."""
    client = session().client
    store_id = client.store_id(store)
    path = absolute(path_or_id)
    those = [path]
    if not is_note_id(path):
        rows = [row for row in _archived(client, store_id) if row["path"] == path]
        those = [row["id"] for row in sorted(rows, key=lambda row: row["archived_at"])]
    if not those:
        raise Failure(
            Exit.NOT_FOUND,
            f"no archived note of {path}: list them with `memfs note archived STORE`",
        )
    back = client.post(*_memory(store_id, those[-1]), "unarchive")
    output.emit(back, lambda: [f"brought back {back['path']}"])


@note_group.command("purge", short_help="Remove a note with its whole history for good.")
@click.argument("store", type=STORE)
@click.argument("path_or_id", type=NOTE)
@yes_option
def purge(store: str, path_or_id: str, yes: bool) -> None:
    """Remove a note with its whole history, also one that was deleted or archived.

    A path must mean one note: where several have been, or where the one that was is elsewhere now,
    name it by its id.
    """
    client = session().client
    store_id = client.store_id(store)
    path = absolute(path_or_id)
    note_id = path if is_note_id(path) else _only_note(client, store_id, path)
    where = f"note {note_id}" if path == note_id else f"the note of {path}, {note_id},"
    ask_before(f"remove {where} with its whole history", yes=yes)
    gone = client.post(*_memory(store_id, note_id), "purge")
    output.emit(gone, lambda: [f"purged {gone['id']}"])


def _only_note(client: Client, store_id: str, path: str) -> str:
    """Return the id of the one note that has ever been at a path and is nowhere else now."""
    found = client.notes_at(store_id, path)
    if not found:
        raise no_note(path)
    places = {each: _place(client, store_id, each) for each in found}
    if len(found) > 1:
        those = ", ".join(f"{each} {place}" for each, place in places.items())
        raise Failure(
            Exit.CONFLICT, f"{len(found)} notes have been at {path}: name one by its id ({those})"
        )
    if places[found[0]] not in ("deleted", "archived", f"at {path}"):
        raise Failure(
            Exit.CONFLICT,
            f"the note that was at {path} is {places[found[0]]} now: name it by that path or by "
            f"its id ({found[0]})",
        )
    return found[0]


def _place(client: Client, store_id: str, note_id: str) -> str:
    found = client.find_note(store_id, note_id)
    if found is None:
        return "deleted"
    return "archived" if found.get("archived_at") else f"at {found['path']}"


def _standard_input() -> str:
    """Return what is written there, which must be text."""
    if sys.stdin.isatty():
        click.echo("memfs: type the note's text, then Ctrl-D on a line of its own", err=True)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise Failure(
            Exit.REFUSED, "standard input is not UTF-8: notes hold text only, convert it first"
        ) from None


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
        if if_sha256 is not None or is_note_id(path):
            raise no_note(path)
        return client.post(
            "memory_stores", store_id, "memories", body={"path": path, "content": text}
        )
    except Failure as failure:
        went = found is not None and failure.exit_code == Exit.NOT_FOUND
        came = (
            found is None
            and not if_absent
            and failure.exit_code == Exit.CONFLICT
            and failure.problem.get("conflicting_path") == path
        )
        if went or came:
            return None
        raise
