"""`memfs task` and `memfs worker`."""

import re

import click

from daemon.cli import output
from daemon.cli.client import STORE_PAGE, Json
from daemon.cli.session import Group, session


@click.group("task", cls=Group)
def task_group() -> None:
    """Tasks: runs of a worker, with memory stores mounted in their folder."""


@task_group.command("create")
@click.argument("id", required=False)
@click.option("--worker", metavar="NAME", help="Whose run it is; a new name makes the worker.")
@click.option(
    "--store",
    "stores",
    metavar="STORE[:ro]",
    multiple=True,
    help="A store to attach, with :ro read-only; repeat for more.",
)
@click.option(
    "--instructions",
    metavar="STORE=TEXT",
    multiple=True,
    help="How the worker should use an attached store; repeat for more.",
)
@click.option("--owner", metavar="UID:GID", help="Whose the files are. [default: the daemon's]")
@click.option(
    "--no-guard", is_flag=True, help="Let the task overwrite what another changed since it read it."
)
def create(
    id: str | None,
    worker: str | None,
    stores: tuple[str, ...],
    instructions: tuple[str, ...],
    owner: str | None,
    no_guard: bool,
) -> None:
    """Make a task; its stores never change afterwards."""
    resources: list[Json] = []
    told = dict(_split(text, "--instructions") for text in instructions)
    for store in stores:
        name, read_only = store.removesuffix(":ro").removesuffix(":rw"), store.endswith(":ro")
        resource: Json = {
            "type": "memory_store",
            "memory_store_id": session().client.store_id(name),
            "access": "read_only" if read_only else "read_write",
            "instructions": told.pop(name, None),
            "guard": not no_guard,
        }
        resources.append(resource)
    if told:
        raise click.BadParameter(f"{next(iter(told))!r} is no --store", param_hint="--instructions")
    body: Json = {"id": id, "worker": worker, "resources": resources, "owner": _owner(owner)}
    made = session().client.post("tasks", body=body)
    output.emit(made, lambda: _fields(made))


@task_group.command("list")
@click.option("--all", "ended", is_flag=True, help="Ended ones too.")
def list_tasks(ended: bool) -> None:
    """List the tasks, newest first."""
    rows = list(session().client.rows("tasks", limit=STORE_PAGE, include_ended=ended))
    output.emit_rows(
        rows,
        lambda: output.table(
            ("ID", "CREATED", "STATE", "STORES"),
            (
                (
                    row["id"],
                    output.local_time(row["created_at"]),
                    "live" if row["ended_at"] is None else "ended",
                    ", ".join(attached["name"] for attached in row["resources"]),
                )
                for row in rows
            ),
        ),
    )


@task_group.command("show")
@click.argument("id")
def show(id: str) -> None:
    """Show a task and where its stores are mounted."""
    found = session().client.get("tasks", id)
    output.emit(found, lambda: _fields(found))


@task_group.command("end")
@click.argument("id")
def end(id: str) -> None:
    """End a task: its folders and scratch files go, the notes stay."""
    ended = session().client.post("tasks", id, "end")
    output.emit(ended, lambda: [f"ended {ended['id']}"])


@click.group("worker", cls=Group)
def worker_group() -> None:
    """Workers: agents, each with a memory store of its own."""


@worker_group.command("list")
def list_workers() -> None:
    """List the workers."""
    rows = session().client.get("workers")["data"]
    output.emit_rows(
        rows,
        lambda: output.table(
            ("ID", "STORE", "NAME"),
            ((row["id"], row["memory_store_id"], row["name"]) for row in rows),
        ),
    )


@worker_group.command("show")
@click.argument("worker")
def show_worker(worker: str) -> None:
    """Show a worker, by name or id."""
    found = session().client.get("workers", worker)
    output.emit(found, lambda: output.fields(found, "id", "name", "memory_store_id", "created_at"))


def _fields(task: Json) -> list[str]:
    lines = list(output.fields(task, "id", "worker_id", "owner", "created_at", "ended_at"))
    lines += [
        f"{row['access']:<10}  {row['mount_path']}  ({row['name']})" for row in task["resources"]
    ]
    return lines


def _split(text: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter("write it as STORE=TEXT", param_hint=option)
    return name, value


def _owner(text: str | None) -> Json | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    if match is None:
        raise click.BadParameter("write it as UID:GID, two numbers", param_hint="--owner")
    return {"uid": int(match[1]), "gid": int(match[2])}
