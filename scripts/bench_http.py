"""Measure the HTTP door over the unix socket, beside the floor of its stack.

    scripts/bench http [--quick] [--json] [--rounds N] [--dir DIR]

The floor is the same Hypercorn and FastAPI, with the same routes, answering a constant of the same
size; `bare` is Hypercorn alone. Clients are Python's http.client: httpx takes longer for a request
than memfs does. A missed target does not change the exit status; an error does (1).
"""

from __future__ import annotations

import datetime
import functools
import http.client
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import bench_fs as fs
import httpx
import trio
from fastapi import FastAPI, Request, Response

NOTES = 1_000
CLIENTS = 32
READS_OF_TEN = 9
STORE = "/v1/memory_stores/{}/memories"

Micros = list[float]


# the floor


def serve_floor(path: Path, sizes: dict[str, int], bare: bool) -> None:
    """Answer constants on a socket, for ever."""
    sys.path.insert(0, str(fs.ROOT))
    from daemon.http.serve import serve_http
    from memfs.types import Actor, Caller

    answers = {name: b"x" * size for name, size in sizes.items()}
    app = FastAPI(openapi_url=None)
    route = STORE.replace("{}", "{memory_store_id}")

    @app.get(f"{route}/{{memory_id}}")
    async def retrieve(memory_store_id: str, memory_id: str, view: str = "full") -> Response:
        return Response(answers["retrieve"], media_type="application/json")

    @app.get(route)
    async def listing(memory_store_id: str, limit: int = 20) -> Response:
        return Response(answers["list 1,000"], media_type="application/json")

    @app.post(route)
    async def create(memory_store_id: str, request: Request) -> Response:
        await request.body()
        return Response(answers["create"], media_type="application/json")

    @app.post(f"{route}/{{memory_id}}")
    async def update(memory_store_id: str, memory_id: str, request: Request) -> Response:
        await request.body()
        return Response(answers["create"], media_type="application/json")

    async def alone(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        name = "create" if scope["method"] == "POST" else "retrieve"
        if scope["path"].endswith("/memories") and name != "create":
            name = "list 1,000"
        while (await receive()).get("more_body"):
            pass
        body = answers[name]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> None:
        owner = Caller(Actor("user_actor", "bench"))
        await serve_http(alone if bare else app, path, owner, shutdown=trio.Event())  # type: ignore[arg-type]

    trio.run(run)


def start_floor(folder: Path, sizes: dict[str, int], bare: bool) -> fs.Subject:
    """Start a floor in a process of its own."""
    name = "bare" if bare else "floor"
    path = folder / f"{name}.sock"
    command = [sys.executable, __file__, f"--serve-{name}", str(path), json.dumps(sizes)]
    process = subprocess.Popen(command, preexec_fn=fs.die_with_parent, start_new_session=True)
    subject = fs.Subject(name, [path], process)
    fs.wait_for(path.is_socket, subject, folder)
    return subject


# clients


class Client(http.client.HTTPConnection):
    """One connection to a unix socket that stays open."""

    def __init__(self, path: Path) -> None:
        """Connect."""
        super().__init__("memfs", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)

    def ask(self, method: str, route: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        self.request(method, route, body)
        answer = self.getresponse()
        return answer.status, answer.read()

    def must(self, method: str, route: str, body: bytes | None = None) -> bytes:
        """Return an answer's body; it has to be a success."""
        status, found = self.ask(method, route, body)
        if status != 200:
            raise RuntimeError(f"{method} {route}: {status} {found[:300]!r}")
        return found


@dataclass
class Mixed:
    """What one of many clients, or all of them, saw."""

    reads: Micros = field(default_factory=list[float])
    writes: Micros = field(default_factory=list[float])
    errors: int = 0
    seconds: float = 0

    def add(self, other: Mixed) -> None:
        """Take in what another client saw."""
        self.reads += other.reads
        self.writes += other.writes
        self.errors += other.errors
        self.seconds = max(self.seconds, other.seconds)


def mixed(
    path: Path, route: str, notes: list[str], seed: int, seconds: float, begin: Callable[[], object]
) -> Mixed:
    """Read and update notes, nine to one, for a while."""
    some, seen = random.Random(seed), Mixed()
    client = Client(path)
    client.must("GET", f"{route}/{notes[0]}")
    begin()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        note = f"{route}/{some.choice(notes)}"
        read = some.randrange(10) < READS_OF_TEN
        body = None if read else json.dumps({"content": f"{seed} {some.random()}"}).encode()
        at = time.perf_counter_ns()
        status, _ = client.ask("GET" if read else "POST", note, body)
        (seen.reads if read else seen.writes).append((time.perf_counter_ns() - at) / 1e3)
        seen.errors += status != 200
    seen.seconds = time.perf_counter() - began
    client.close()
    return seen


def p99(took: Micros) -> float:
    """Return the 99th percentile."""
    return quantiles(took, n=100)[98]


# the bench


class Bench:
    """One run: a daemon and two floors, measured in turn."""

    def __init__(self, base: Path, quick: bool, rounds: int | None) -> None:
        """Start nothing yet."""
        self.base = base
        self.rounds = rounds or (2 if quick else 5)
        self.requests = 50 if quick else 300
        self.seconds = 2.0 if quick else 8.0
        self.subjects: list[fs.Subject] = []
        self.took: dict[tuple[str, str], list[Micros]] = {}
        self.mixed: dict[str, Mixed] = {}
        self.beside: dict[str, Micros] = {}  # open+read through the mount, beside whose clients
        self.httpx: Micros = []

    def run(self) -> None:
        """Fill a store, measure, and leave what was found in the attributes."""
        memfs = fs.start_memfs(self.base, 1)
        self.subjects.append(memfs)
        sock = self.base / ".little-worker/memfs/memfs.sock"
        self.folder, memfs.folders = memfs.folders[0], [sock]
        client = Client(sock)
        found = json.loads(client.must("GET", "/v1/memory_stores?name=bench-0"))
        self.route = STORE.format(found["data"][0]["id"])
        texts = fs.Texts()
        fs.say(f"filling {NOTES:,} notes …")
        self.notes: list[str] = []
        for n in range(NOTES):
            body = json.dumps({"path": f"/n/{n:05}.md", "content": texts.next().decode()})
            self.notes.append(json.loads(client.must("POST", self.route, body.encode()))["id"])
        sizes = {
            name: len(client.must(method, route, body))
            for name, (method, route, body) in self.operations(1)
        }
        folder = Path(tempfile.mkdtemp(dir=self.base))
        self.subjects += [start_floor(folder, sizes, bare) for bare in (False, True)]
        for round_ in range(self.rounds):
            fs.say(f"round {round_ + 1} of {self.rounds} …")
            for subject in self.subjects[round_ % 3 :] + self.subjects[: round_ % 3]:
                self.measure(subject)
        self.measure_httpx(sock)
        self.measure_many()

    def operations(self, count: int) -> Iterator[tuple[str, tuple[str, str, bytes | None]]]:
        """Yield requests by what they measure; no create is like another."""
        for _ in range(count):
            note = random.choice(self.notes)
            yield "retrieve", ("GET", f"{self.route}/{note}", None)
            body = {"path": f"/new/{time.time_ns()}.md", "content": "x" * 1_000}
            yield "create", ("POST", self.route, json.dumps(body).encode())
        for _ in range(max(count // 20, 1)):
            yield "list 1,000", ("GET", f"{self.route}?limit=1000&path_prefix=/n/", None)

    def measure(self, subject: fs.Subject) -> None:
        """Time one client's requests."""
        client = Client(subject.folders[0])
        client.must("GET", f"{self.route}/{self.notes[0]}")
        asked = list(self.operations(self.requests))
        for name in ("retrieve", "create", "list 1,000"):
            mine = [request for each, request in asked if each == name]
            took = fs.timed(functools.partial(client.must, *request) for request in mine)
            self.took.setdefault((name, subject.name), []).append(took)
        client.close()

    def measure_httpx(self, sock: Path) -> None:
        """Time the same reads by the client that most will use."""
        transport = httpx.HTTPTransport(uds=str(sock))
        with httpx.Client(transport=transport, base_url="http://memfs") as client:
            route = f"{self.route}/{self.notes[0]}"
            client.get(route)
            self.httpx = fs.timed(
                functools.partial(client.get, route) for _ in range(self.requests)
            )

    def measure_many(self) -> None:
        """Let many clients read and write, with somebody reading through the mount."""
        files = [self.folder / "n" / f"{n:05}.md" for n in range(100)]
        reader = functools.partial(fs.read_until, files, self.seconds)
        (self.beside["nobody"],) = fs.in_processes([reader])
        others = self.notes[100:]  # the reader's are not changed: it reads them warm
        for subject in reversed(self.subjects[:2]):  # the floor's share is the machine's, not ours
            fs.say(f"{CLIENTS} clients of {subject.name} …")
            clients = [
                functools.partial(mixed, subject.folders[0], self.route, others, seed, self.seconds)
                for seed in range(CLIENTS)
            ]
            self.beside[subject.name], *seen = fs.in_processes([reader, *clients])
            total = self.mixed[subject.name] = Mixed()
            for each in seen:
                total.add(each)
            subject.check_alive()

    def close(self) -> None:
        """Stop all, unmount, and remove everything."""
        for subject in self.subjects:
            subject.stop()
        if fs.unmount_below(self.base):
            shutil.rmtree(self.base, ignore_errors=True)

    def middle(self, name: str, subject: str) -> float:
        """Return the median of the rounds' medians, in milliseconds."""
        return median(median(took) for took in self.took[name, subject]) / 1e3

    def targets(self) -> list[fs.Target]:
        """Return the promises and what became of them."""
        times = p99(self.beside["memfs"]) / p99(self.beside["nobody"])
        return [
            fs.Target("retrieve, median ms", 2, value=self.middle("retrieve", "memfs")),
            fs.Target("create, durable, median ms", 4, value=self.middle("create", "memfs")),
            fs.Target(
                "list of 1,000 basic, median ms", 30, value=self.middle("list 1,000", "memfs")
            ),
            fs.Target(f"errors of {CLIENTS} clients", 0, value=float(self.mixed["memfs"].errors)),
            fs.Target("open+read p99 meanwhile, times that alone", 2, value=times),
        ]

    def report(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "command": "scripts/bench http",
            "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
            "machine": fs.machine(self.base),
            "ms": {
                name: {s.name: self.middle(name, s.name) for s in self.subjects}
                for name in ("retrieve", "create", "list 1,000")
            },
            "p99 ms": {
                name: p99([each for took in self.took[name, "memfs"] for each in took]) / 1e3
                for name in ("retrieve", "create", "list 1,000")
            },
            "httpx retrieve ms": median(self.httpx) / 1e3,
            f"{CLIENTS} clients": {
                name: {
                    "requests a second": (len(seen.reads) + len(seen.writes)) / seen.seconds,
                    "read p50 ms": median(seen.reads) / 1e3,
                    "read p99 ms": p99(seen.reads) / 1e3,
                    "write p50 ms": median(seen.writes) / 1e3,
                    "write p99 ms": p99(seen.writes) / 1e3,
                    "errors": seen.errors,
                }
                for name, seen in self.mixed.items()
            },
            "open+read beside": {
                name: {"p50 µs": median(took), "p99 µs": p99(took)}
                for name, took in self.beside.items()
            },
            "targets": [
                {"text": t.text, "limit": t.limit, "value": t.value, "met": t.met}
                for t in self.targets()
            ],
        }


def table(report: dict[str, Any]) -> str:
    """Return the figures for people."""
    where = report["machine"]
    lines = [
        f"{report['command']}    {report['date']}",
        f"kernel {where['kernel']}, {where['cores']} cores, Python {where['python']},"
        f" {where['disk']}, load {where['load']:.1f}",
        "",
        f"{'one client, median ms':24}{'bare':>10}{'floor':>10}{'memfs':>10}{'p99':>10}"
        f"{'memfs/floor':>13}",
    ]
    for name, row in report["ms"].items():
        lines.append(
            f"{name:24}{fs.fmt(row['bare']):>10}{fs.fmt(row['floor']):>10}"
            f"{fs.fmt(row['memfs']):>10}{fs.fmt(report['p99 ms'][name]):>10}"
            f"{fs.fmt(row['memfs'] / row['floor']):>13}"
        )
    lines.append(f"{'retrieve by httpx':24}{fs.fmt(report['httpx retrieve ms']):>30}")
    for part in (f"{CLIENTS} clients", "open+read beside"):
        rows = report[part]
        lines += ["", f"{part:24}" + "".join(f"{name:>10}" for name in rows)]
        for name in next(iter(rows.values())):
            figures = "".join(f"{fs.fmt(row[name]):>10}" for row in rows.values())
            lines.append(f"{name:24}{figures}")
    lines.append("")
    for target in report["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        lines.append(
            f"{target['text']:46}{'≤' + fs.fmt(target['limit']):>8}"
            f"{fs.fmt(target['value']):>10}  {verdict}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the bench and print what it found."""
    if sys.argv[1:2] in (["--serve-floor"], ["--serve-bare"]):
        serve_floor(Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[1] == "--serve-bare")
        return 0
    options = fs.options_of(
        "http",
        __doc__.split("\n")[0],
        quick="fewer rounds and requests",
        rounds="rounds of one client's requests",
    )
    bench = Bench(
        Path(tempfile.mkdtemp(prefix="memfs-bench-", dir=options.dir)),
        options.quick,
        options.rounds,
    )
    try:
        bench.run()
        report = bench.report()
    finally:
        bench.close()
    fs.show(table(report), lambda: report, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
