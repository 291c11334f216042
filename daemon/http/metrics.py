"""/metrics: numbers about the daemon in Prometheus's format (SEMANTICS: Metrics)."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from daemon.http.door import Sees, scope
from memfs.engine import counts
from memfs.engine.service import Txn

router = APIRouter(tags=["daemon (ours)"], dependencies=[scope("admin")])

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_RULES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The numbers of one application, in a registry of its own.

    No label has a value that a client or a user chose: series would grow without a bound, and
    names would be seen by those who may not see them.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "memfs_http_requests",
            "Requests answered.",
            ("route", "method", "status"),
            registry=registry,
        )
        self._latency = Histogram(
            "memfs_http_request_seconds",
            "From a request's head to the beginning of its answer.",
            ("route", "method"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._auth_failures = Counter(
            "memfs_http_auth_failures", "Requests without a valid key.", registry=registry
        )
        self._streams = Gauge(
            "memfs_http_event_streams", "Clients that follow events.", registry=registry
        )
        self._commit_rules = Histogram(
            "memfs_commit_rules",
            "Rules that shared one commit.",
            buckets=_RULES,
            registry=registry,
        )
        self._commit_seconds = Histogram(
            "memfs_commit_seconds",
            "From taking rules to having them on disk.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._seq = Gauge("memfs_log_seq", "The newest committed change.", registry=registry)
        self._gauges = {
            name: Gauge(f"memfs_{name}", text, registry=registry)
            for name, text in (
                ("notes", "Living notes."),
                ("workers", "Workers."),
                ("refused_texts", "Texts that mounts could not commit, of stores that exist."),
                ("open_handles", "Files that programs hold open in the mount."),
                ("inodes", "Files and folders that the kernel knows."),
                ("data_bytes", "Bytes of the data file in use."),
                ("free_bytes", "Bytes that still fit."),
            )
        }
        self._states = {
            name: Gauge(f"memfs_{name}", text, ("state",), registry=registry)
            for name, text in (
                ("stores", "Memory stores."),
                ("tasks", "Tasks."),
                ("mounts", "Folders of attachments."),
            )
        }

    def request(self, route: str | None, method: str, status: int, seconds: float) -> None:
        """Count a request. route: its template, None where no route took it."""
        labels = (route or "none", method if method in _METHODS else "other")
        self._requests.labels(*labels, f"{status // 100}xx").inc()
        self._latency.labels(*labels).observe(seconds)

    def auth_failure(self) -> None:
        """Count a request that was refused for its key."""
        self._auth_failures.inc()

    @contextmanager
    def event_stream(self) -> Generator[None]:
        """Count a client that follows events, as long as it does."""
        with self._streams.track_inprogress():
            yield

    def commit(self, rules: int, seconds: float) -> None:
        """Count a commit."""
        self._commit_rules.observe(rules)
        self._commit_seconds.observe(seconds)

    def text(self, seq: int, found: counts.Counts, status: Mapping[str, object]) -> bytes:
        """Return all as text. status: what the daemon knows of itself."""
        self._seq.set(seq)
        mounts = status.get("mounts")
        rows: list[dict[str, object]] = mounts if isinstance(mounts, list) else []  # pyright: ignore[reportUnknownVariableType]
        alive = sum(bool(row["alive"]) for row in rows)
        known = {
            "notes": found.notes,
            "workers": found.workers,
            "refused_texts": found.refused,
            "open_handles": status.get("open_files"),
        }
        for name, gauge in self._gauges.items():
            value = known.get(name, status.get(name))
            gauge.set(value if isinstance(value, int) else 0)
        for name, states in {
            "stores": {"live": found.live_stores, "archived": found.archived_stores},
            "tasks": {"live": found.live_tasks, "ended": found.ended_tasks},
            "mounts": {"alive": alive, "dead": len(rows) - alive},
        }.items():
            for state, count in states.items():
                self._states[name].labels(state).set(count)
        return generate_latest(self.registry)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(door: Sees, request: Request) -> Response:
    """Return the daemon's numbers in Prometheus's text format (ours)."""
    numbers: Metrics = request.app.state.metrics
    status, seq = await door.status(), door.service.feed.seq

    def read(txn: Txn) -> bytes:
        return numbers.text(seq, counts.read(txn), status)

    return Response(await door.scan(read), media_type=CONTENT_TYPE_LATEST)
