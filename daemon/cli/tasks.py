"""`memfs task` and `memfs worker`."""

import re

import click

from daemon.cli import output
from daemon.cli.client import STORE_PAGE, Client, Json
from daemon.cli.complete import STORE, TASK, WORKER
from daemon.cli.session import Group, session


@click.group("task", cls=Group, short_help="Tasks: runs of a worker, with stores mounted.")
def task_group() -> None:
    """Tasks: runs of a worker, with memory stores mounted in their folder."""


@task_group.command("create")
@click.argument("id", required=False)
@click.option(
    "--worker",
    metavar="WORKER",
    type=WORKER,
    help="Whose run it is, by name or id; a new name makes a worker. [default: worker]",
)
@click.option(
    "--store",
    "stores",
    metavar="STORE[:ro]",
    type=STORE,
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
    client = session().client
    resources = _resources(client, stores, instructions, guard=not no_guard)
    body: Json = {"id": id, "worker": worker, "resources": resources, "owner": _owner(owner)}
    before = client.get("workers")["data"]
    made = client.post("tasks", body=body)
    output.emit(made, lambda: _fields(made))
    if made["worker_id"] not in [row["id"] for row in before]:
        output.note(_made(worker or "worker", [row["name"] for row in before]))


def _resources(
    client: Client, stores: tuple[str, ...], instructions: tuple[str, ...], *, guard: bool
) -> list[Json]:
    """Return the stores to attach as the API wants them."""
    told = {client.store_id(name): text for name, text in map(_told, instructions)}
    resources: list[Json] = []
    for store in stores:
        name, read_only = store.removesuffix(":ro"), store.endswith(":ro")
        if not read_only:
            name = name.removesuffix(":rw")
        store_id = client.store_id(name)
        resources.append(
            {
                "type": "memory_store",
                "memory_store_id": store_id,
                "access": "read_only" if read_only else "read_write",
                "instructions": told.pop(store_id, None),
                "guard": guard,
            }
        )
    if told:
        raise click.BadParameter(
            f"{next(iter(told))} is attached by no --store: add it, or leave the instructions out",
            param_hint="--instructions",
        )
    return resources


def _made(worker: str, others: list[str]) -> str:
    """Return what to say of a worker that was made; it may be a typing error, and stays."""
    from difflib import get_close_matches

    near = get_close_matches(worker, others, 1)
    meant = f"; if you meant {near[0]!r}, end this task and make another" if near else ""
    return f"made the worker {worker!r}{meant}"


@task_group.command("list")
@click.option("--all", "ended", is_flag=True, help="Ended ones too.")
def list_tasks(ended: bool) -> None:
    """List the tasks, newest first."""
    client = session().client
    rows = list(client.rows("tasks", limit=STORE_PAGE, include_ended=ended))
    names = {row["id"]: row["name"] for row in client.get("workers")["data"]}
    output.emit_rows(
        rows,
        lambda: output.table(
            ("ID", "WORKER", "CREATED", "STATE", "STORES"),
            (
                (
                    row["id"],
                    names.get(row["worker_id"], row["worker_id"]),
                    output.local_time(row["created_at"]),
                    "live" if row["ended_at"] is None else "ended",
                    ", ".join(attached["name"] for attached in row["resources"]),
                )
                for row in rows
            ),
        ),
    )


@task_group.command("show")
@click.argument("id", type=TASK)
def show(id: str) -> None:
    """Show a task and where its stores are mounted."""
    found = session().client.get("tasks", id)
    output.emit(found, lambda: _fields(found))


@task_group.command("end")
@click.argument("id", type=TASK)
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
@click.argument("worker", type=WORKER)
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


def _told(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(
            f"{text!r} is not STORE=TEXT: write it so", param_hint="--instructions"
        )
    return name, value


def _owner(text: str | None) -> Json | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not UID:GID: write two numbers, such as 1000:1000", param_hint="--owner"
        )
    return {"uid": int(match[1]), "gid": int(match[2])}
