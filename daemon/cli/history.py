"""`memfs log`, `diff`, `restore`, `redact`: what was, and bringing it back."""

from collections.abc import Iterator
from itertools import islice

import click

from daemon.cli import output
from daemon.cli.client import Client, Json, absolute, is_version_id, no_note
from daemon.cli.complete import NOTE, STORE
from daemon.cli.confirm import ask_before, yes_option
from daemon.cli.exits import Exit
from daemon.cli.people import People
from daemon.cli.session import Command, Failure, session
from memfs import ids

_NONE: Json = {"id": "nothing", "content": ""}


@click.command("log", cls=Command, short_help="Show the versions of a note or of a whole store.")
@click.argument("store", type=STORE)
@click.argument("path", required=False, type=NOTE)
@click.option("-n", "limit", type=click.IntRange(min=1), help="At most so many, the newest.")
def log(store: str, path: str | None, limit: int | None) -> None:
    """Show the versions of a note (a deleted one too) or of the whole store, newest first.

    `cat`, `diff`, `restore` and `redact` take what stands under VERSION, and with the same PATH
    what stands under NO. Of a path that several notes have had, all are shown, and those that NO
    does not number are named by their id.
    """
    client = session().client
    store_id = client.store_id(store)
    if path is None:
        rows = list(islice(client.versions(store_id, None), limit))
        output.emit_rows(rows, lambda: _table(client, rows, None))
        return
    notes = _notes(client, store_id, absolute(path))
    rows = _merged(client, store_id, notes, limit)
    output.emit_rows(rows, lambda: _table(client, rows, notes))


@click.command("diff", cls=Command)
@click.argument("store", type=STORE)
@click.argument("path_or_version", type=NOTE)
@click.argument("version", nargs=-1)
def diff(store: str, path_or_version: str, version: tuple[str, ...]) -> None:
    """Compare versions of a note.

    With only a PATH, the newest with the one before; with a VERSION, that with the newest; with
    two, both. With only a version's id, that with the one before. A version that was deleted or
    redacted counts as empty.
    """
    client = session().client
    store_id = client.store_id(store)
    old, new = _sides(client, store_id, path_or_version, version)
    lines = _unified(old, new, path_or_version)
    for side in (old, new):
        if side.get("redacted_at") is not None:
            output.note(f"version {side['id']} was redacted: its text is gone, and counts as empty")
    if session().json:
        output.emit({"type": "diff", "old": old, "new": new, "diff": "".join(lines)}, list)
        return
    for line in lines:
        output.say(line.removesuffix("\n"))
        if not line.endswith("\n"):
            output.say("\\ No newline at end of file")


@click.command("restore", cls=Command)
@click.argument("store", type=STORE)
@click.argument("path_or_version", type=NOTE)
@click.argument("version", required=False)
def restore(store: str, path_or_version: str, version: str | None) -> None:
    """Write an old text as a new version.

    Give a version's id, or a PATH with a VERSION, or only a PATH: then a deleted note comes back,
    and of any other the text before the newest.
    """
    client = session().client
    store_id = client.store_id(store)
    if version is None and not is_version_id(path_or_version):
        chosen = _previous(client, store_id, absolute(path_or_version))
    else:
        chosen = chosen_version(client, store_id, path_or_version, version)
    back = client.post("memory_stores", store_id, "memory_versions", chosen, "restore")
    output.emit(back, lambda: [f"restored {back['path']} as {back['memory_version_id']}"])


@click.command("redact", cls=Command)
@click.argument("store", type=STORE)
@click.argument("path_or_version", type=NOTE)
@click.argument("version", required=False)
@yes_option
def redact(store: str, path_or_version: str, version: str | None, yes: bool) -> None:
    """Empty a version's path and text for good; who and when stay.

    Give a version's id, or a PATH with a VERSION. The newest version of a note that still exists
    cannot be redacted: write a new one, or delete the note, first. `memfs compact` then takes the
    bytes off the disk.
    """
    client = session().client
    store_id = client.store_id(store)
    chosen = chosen_version(client, store_id, path_or_version, version)
    ask_before(f"empty version {chosen}", yes=yes)
    emptied = client.post("memory_stores", store_id, "memory_versions", chosen, "redact")
    output.emit(emptied, lambda: [f"redacted {emptied['id']}"])


def chosen_version(client: Client, store_id: str, path_or_version: str, version: str | None) -> str:
    """Return the id of the version that two words of a command line name.

    Raises: Failure; UsageError if the words name only a note.
    """
    if is_version_id(path_or_version):
        if version is not None:
            raise click.UsageError(f"{path_or_version} is a version: name no second one")
        return path_or_version
    if version is None:
        raise click.UsageError("name the version behind the path: see `memfs log STORE PATH`")
    return _version_of(client, store_id, absolute(path_or_version), version)


def _version_of(client: Client, store_id: str, path: str, version: str) -> str:
    """Return the id of a version that is given by number or id, of a note that is or was at path.

    A number counts in the history of the note that the path means.
    """
    if is_version_id(version):
        found = client.version(store_id, version)
        if found["path"] in (None, path) or found["memory_id"] in _notes(client, store_id, path):
            return version
        raise Failure(
            Exit.REFUSED,
            f"{version} is not a version of {path}: see `memfs log`, or leave the path out",
        )
    if not (version.isascii() and version.isdecimal()):
        raise click.UsageError(
            f"{version!r} is no version: give a number or an id from `memfs log STORE PATH`"
        )
    for row in client.versions(store_id, client.note_id(store_id, path)):
        if row["ordinal"] == int(version):
            return row["id"]
    raise Failure(Exit.NOT_FOUND, f"{path} has no version {version}: see `memfs log STORE PATH`")


def _notes(client: Client, store_id: str, path: str) -> list[str]:
    """Return the ids of the notes that are or were at a path, or the one that it is an id of."""
    found = [path] if path.startswith("mem_") else client.notes_at(store_id, path)
    if not found:
        raise no_note(path)
    return found


def _merged(client: Client, store_id: str, notes: list[str], limit: int | None) -> list[Json]:
    """Return the versions of all *notes*, newest first."""
    rows = [row for note in notes for row in islice(client.versions(store_id, note), limit)]
    if not rows:
        raise no_note(notes[0])
    # a version's id ends in its place in the change log, which no clock disturbs
    rows.sort(key=lambda row: ids.number(row["id"], "memver_") or 0, reverse=True)
    return rows[:limit]


def _table(client: Client, rows: list[Json], notes: list[str] | None) -> Iterator[str]:
    """Yield the lines of a log; notes: those whose log it is, first the one that NO numbers."""
    people = People(client)
    head = ["VERSION", "TIME", "CHANGE", "BYTES", "BY", "PATH"]
    head = [*(["NO"] if notes else []), *head, *(["NOTE"] if notes and len(notes) > 1 else [])]
    lines: list[list[object]] = []
    for row in rows:
        line: list[object] = [
            row["id"],
            output.local_time(row["created_at"]),
            row["operation"],
            "-" if row["content_size_bytes"] is None else row["content_size_bytes"],
            people.name(row["created_by"]),
            "(redacted)" if row["path"] is None else row["path"],
        ]
        if notes:
            line.insert(0, row["ordinal"] if row["memory_id"] == notes[0] else "-")
        if notes and len(notes) > 1:
            line.append(row["memory_id"])
        lines.append(line)
    yield from output.table(head, lines)


def _sides(
    client: Client, store_id: str, path_or_version: str, version: tuple[str, ...]
) -> tuple[Json, Json]:
    """Return the two versions to compare, the older side first."""
    given = list(version)
    if is_version_id(path_or_version):
        given.insert(0, path_or_version)
        if len(given) == 1:
            return _before(client, store_id, given[0])
    else:
        path = absolute(path_or_version)
        given = [_version_of(client, store_id, path, one) for one in given]
        if len(given) < 2:
            note_id = client.note_id(store_id, path)
            newest = [row["id"] for row in islice(client.versions(store_id, note_id), 2)]
            given = [*given, newest[0]] if given else newest[::-1]
    if len(given) > 2:
        raise click.UsageError("name at most two versions")
    sides = [client.version(store_id, one) for one in given]
    return (_NONE, sides[0]) if len(sides) == 1 else (sides[0], sides[1])


def _before(client: Client, store_id: str, version: str) -> tuple[Json, Json]:
    """Return the version before a version of the same note, and the version."""
    new = client.version(store_id, version)
    for row in client.versions(store_id, new["memory_id"]):
        if row["ordinal"] == new["ordinal"] - 1:
            return client.version(store_id, row["id"]), new
    return _NONE, new


def _unified(old: Json, new: Json, name: str) -> list[str]:
    from difflib import unified_diff

    return list(
        unified_diff(
            (old["content"] or "").splitlines(keepends=True),
            (new["content"] or "").splitlines(keepends=True),
            f"{old.get('path') or new.get('path') or name} {old['id']}",
            f"{new.get('path') or name} {new['id']}",
        )
    )


def _previous(client: Client, store_id: str, path: str) -> str:
    """Return the newest version with a text that is not what the note holds now."""
    rows = client.versions(store_id, client.note_id(store_id, path))
    now = next(rows, None)
    for row in rows:
        if row["content_sha256"] not in (None, now and now["content_sha256"]):
            return row["id"]
    raise Failure(
        Exit.NOT_FOUND, f"{path} has no earlier text: see its versions with `memfs log STORE PATH`"
    )
