"""`memfs log`, `diff`, `restore`, `redact`: what was, and bringing it back."""

from itertools import islice

import click

from daemon.cli import output
from daemon.cli.client import VERSION_PAGE, Client, Json
from daemon.cli.notes import absolute
from daemon.cli.session import NOT_FOUND, REFUSED, Command, Failure, session

_VERSION = "memver_"


@click.command("log", cls=Command)
@click.argument("store")
@click.argument("path", required=False)
@click.option("-n", "limit", type=click.IntRange(min=1), help="At most so many, the newest.")
def log(store: str, path: str | None, limit: int | None) -> None:
    """Show the versions of a note (a deleted one too) or of the whole store, newest first."""
    client = session().client
    store_id = client.store_id(store)
    note_id = None if path is None else client.note_id(store_id, absolute(path))
    rows = _versions(client, store_id, note_id, limit)
    output.emit_rows(
        rows,
        lambda: output.table(
            ("VERSION", "TIME", "CHANGE", "BYTES", "BY", "PATH"),
            (
                (
                    row["id"],
                    output.local_time(row["created_at"]),
                    row["operation"],
                    "-" if row["content_size_bytes"] is None else row["content_size_bytes"],
                    output.who(row["created_by"]),
                    "(redacted)" if row["path"] is None else row["path"],
                )
                for row in rows
            ),
        ),
    )


@click.command("diff", cls=Command)
@click.argument("store")
@click.argument("path")
@click.argument("version", nargs=-1)
def diff(store: str, path: str, version: tuple[str, ...]) -> None:
    """Compare versions of a note: the newest with the one before, or with VERSION, or two.

    A version that was deleted or redacted counts as empty.
    """
    if len(version) > 2:
        raise click.UsageError("name at most two versions")
    from difflib import unified_diff

    client = session().client
    store_id = client.store_id(store)
    given = list(version)
    if len(given) < 2:
        note_id = client.note_id(store_id, absolute(path))
        newest = [row["id"] for row in _versions(client, store_id, note_id, 2)]
        given = [*given, newest[0]] if given else newest[::-1]
    sides = [client.version(store_id, one) for one in given]
    old, new = sides if len(sides) == 2 else ({"id": "nothing", "content": ""}, sides[0])
    lines = list(
        unified_diff(
            (old["content"] or "").splitlines(keepends=True),
            (new["content"] or "").splitlines(keepends=True),
            f"{old.get('path') or path} {old['id']}",
            f"{new.get('path') or path} {new['id']}",
        )
    )
    if session().json:
        output.emit({"type": "diff", "old": old, "new": new, "diff": "".join(lines)}, list)
        return
    for line in lines:
        output.say(line.removesuffix("\n"))
        if not line.endswith("\n"):
            output.say("\\ No newline at end of file")


@click.command("restore", cls=Command)
@click.argument("store")
@click.argument("path_or_version")
@click.argument("version", required=False)
def restore(store: str, path_or_version: str, version: str | None) -> None:
    """Write an old text as a new version.

    Give a version, or a path with a version, or only a path: then a deleted note comes back, and
    of any other the text before the newest.
    """
    client = session().client
    store_id = client.store_id(store)
    if version is None:
        version = path_or_version
        if not version.startswith(_VERSION):
            version = _previous(client, store_id, absolute(path_or_version))
    elif not path_or_version.startswith(_VERSION):
        _check_belongs(client, store_id, absolute(path_or_version), version)
    back = client.post("memory_stores", store_id, "memory_versions", version, "restore")
    output.emit(back, lambda: [f"restored {back['path']} as {back['memory_version_id']}"])


@click.command("redact", cls=Command)
@click.argument("store")
@click.argument("version_or_path")
@click.option("--version", "version", help="The version, when a path was given.")
def redact(store: str, version_or_path: str, version: str | None) -> None:
    """Empty a version's path and text for good; who and when stay.

    The newest version of a note that still exists cannot be redacted: write a new one, or delete
    the note, first. `memfs compact` then takes the bytes off the disk.
    """
    client = session().client
    store_id = client.store_id(store)
    if version is None:
        version = version_or_path
        if not version.startswith(_VERSION):
            raise click.UsageError("name the version: see `memfs log`")
    else:
        _check_belongs(client, store_id, absolute(version_or_path), version)
    emptied = client.post("memory_stores", store_id, "memory_versions", version, "redact")
    output.emit(emptied, lambda: [f"redacted {emptied['id']}"])


def _versions(client: Client, store_id: str, note_id: str | None, limit: int | None) -> list[Json]:
    rows = client.rows(
        "memory_stores",
        store_id,
        "memory_versions",
        limit=min(limit or VERSION_PAGE, VERSION_PAGE),
        memory_id=note_id,
    )
    return list(islice(rows, limit))


def _previous(client: Client, store_id: str, path: str) -> str:
    """Return the newest version with a text that is not what the note holds now."""
    note_id = client.note_id(store_id, path)
    rows = client.rows(
        "memory_stores", store_id, "memory_versions", limit=VERSION_PAGE, memory_id=note_id
    )
    now = next(rows, None)
    for row in rows:
        if row["content_sha256"] not in (None, now and now["content_sha256"]):
            return row["id"]
    raise Failure(NOT_FOUND, f"{path} has no earlier text: see `memfs log`")


def _check_belongs(client: Client, store_id: str, path: str, version: str) -> None:
    found = client.version(store_id, version)
    if found["path"] not in (None, path) and found["memory_id"] != client.note_id(store_id, path):
        raise Failure(REFUSED, f"{version} is not a version of {path}: see `memfs log`")
