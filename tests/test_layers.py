"""Who may import whom: base <- feed <- store <- engine <- memory <- {fs, recall} <- daemon.

A new edge needs a new line in LAYERS, and with it a reason in review.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("memfs", "daemon")


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import besides the standard library."""

    ours: frozenset[str]
    others: frozenset[str] = frozenset()


def layer(ours: set[str], *others: str) -> Layer:
    return Layer(frozenset(ours), frozenset(others))


BASE = {"memfs.errors", "memfs.ids", "memfs.types", "memfs.limits"}
RULES = BASE | {"memfs.engine", "memfs.store"}  # rules take the Txn that memfs.store defines
DOORS = BASE | {"memfs.engine", "memfs.memory", "memfs.fs", "memfs.recall", "memfs.feed", "daemon"}
WEB = ("trio", "click", "httpx", "fastapi", "starlette", "pydantic", "hypercorn")

# The longest prefix of a module's name is its layer.
LAYERS = {
    "memfs": layer(set()),
    "memfs.errors": layer(set()),
    "memfs.limits": layer(set()),
    "memfs.ids": layer(set()),
    "memfs.types": layer({"memfs.limits"}, "msgspec"),  # records are its structs
    "memfs.feed": layer(BASE, "trio"),
    "memfs.store": layer(BASE | {"memfs.store"}, "lmdb", "msgspec", "zstandard", "xxhash"),
    "memfs.engine": layer(RULES),
    "memfs.engine.service": layer(RULES | {"memfs.feed"}, "trio", "outcome"),
    "memfs.memory": layer(RULES | {"memfs.memory"}),
    "memfs.fs": layer(
        BASE | {"memfs.engine", "memfs.memory", "memfs.feed", "memfs.fs"}, "trio", "pyfuse3"
    ),
    "memfs.recall": layer(
        BASE | {"memfs.engine", "memfs.memory", "memfs.feed", "memfs.recall"}, "faiss", "numpy"
    ),
    "daemon": layer(DOORS, *WEB),
    "daemon.http.metrics": layer(DOORS, *WEB, "prometheus_client"),
    "daemon.http.framing": layer(DOORS, *WEB, "h11"),
    "daemon.http.serve": layer(DOORS, *WEB, "h11"),  # what hypercorn speaks HTTP/1.1 with
    "daemon.mount": layer(DOORS, *WEB, "pyfuse3"),
    "daemon.run": layer(DOORS | {"memfs.store"}, *WEB),
    "daemon.offline": layer(DOORS | {"memfs.store"}, *WEB),  # check, compact: no daemon runs then
}


def is_within(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


def layer_of(module: str) -> Layer:
    return LAYERS[max((prefix for prefix in LAYERS if is_within(module, prefix)), key=len)]


def imports(source: str) -> Iterator[str]:
    """Yield the full name of everything imported anywhere in *source*; relative ones as `.x`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from (f"{start}.{alias.name}" for alias in node.names)


def is_allowed(module: str, name: str) -> bool:
    top = name.split(".")[0]
    if top in PACKAGES:
        return any(is_within(name, prefix) for prefix in layer_of(module).ours)
    return top in sys.stdlib_module_names or top in layer_of(module).others


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


def test_every_import_stays_within_the_layers() -> None:
    bad = [
        f"{module} imports {name}"
        for module, path in modules()
        for name in imports(path.read_text())
        if not is_allowed(module, name)
    ]
    assert not bad, "\n".join(bad)


def test_there_is_something_to_check() -> None:
    names = [module for module, _ in modules()]
    assert "memfs.errors" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memfs.errors", "import memfs.types"),
        ("memfs.store.keys", "from memfs.engine import path"),
        ("memfs.engine.notes", "import lmdb"),
        ("memfs.engine.notes", "import trio"),
        ("memfs.engine.notes", "from memfs.feed import Feed"),
        ("memfs.memory.days", "import msgspec"),
        ("memfs.fs.attr", "from memfs.recall import query"),
        ("memfs.fs.attr", "def f():\n    from memfs import store"),
        ("memfs.recall.index", "from memfs.fs import inodes"),
        ("memfs.recall.index", "import pyfuse3"),
        ("daemon.http.notes", "from memfs.store.env import Env"),
        ("daemon.cli.check", "from memfs import store"),
        ("daemon.run", "import pyfuse3"),
        ("daemon.http.events", "import prometheus_client"),
        ("daemon.http.notes", "from . import wire"),
        ("daemon.http.notes", "from .wire import encode"),
        ("memfs.fs.handler", "import daemon.run"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert not all(is_allowed(module, name) for name in imports(source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memfs.store.env", "import lmdb\nfrom memfs.errors import NoSpace"),
        ("memfs.engine.service", "import trio\nfrom memfs.feed import Feed"),
        ("memfs.fs.operations", "import pyfuse3\nfrom memfs.engine import notes"),
        ("daemon.mount", "import pyfuse3"),
        ("daemon.cli.check", "from daemon import offline"),
        ("daemon.offline", "from memfs.store.check import check"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert all(is_allowed(module, name) for name in imports(source))
