"""/docs and /openapi.json: what the routes are, as a page that needs nothing from elsewhere."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

import trio
from fastapi import APIRouter, Request, Response

router = APIRouter(include_in_schema=False)

Json = Mapping[str, Any]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #bbb }
h3 { font: 600 15px ui-monospace, monospace; margin: 1.8rem 0 .3rem; overflow-wrap: anywhere }
p { margin: .3rem 0 }
table { border-collapse: collapse; margin: .5rem 0; width: 100% }
td { border-top: 1px solid #ddd; padding: .2rem .8rem .2rem 0; vertical-align: top }
td:first-child { width: 15rem }
code { font: 14px ui-monospace, monospace }
@media (prefers-color-scheme: dark) {
  body { color: #e4e4e4; background: #191919 } a { color: #8ab4f8 } td { border-color: #444 }
}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Documents:
    """The document and its page, each made once: it takes a quarter of a second."""

    def __init__(self, build: Callable[[], Json]) -> None:
        self._build = build
        self._limiter = trio.CapacityLimiter(1)
        self._made: tuple[str, str] | None = None

    async def get(self) -> tuple[str, str]:
        """Return the document as JSON and as a page."""
        if self._made is None:
            self._made = await trio.to_thread.run_sync(self._make, limiter=self._limiter)
        return self._made

    def _make(self) -> tuple[str, str]:
        if self._made is not None:  # by the one before
            return self._made
        found = self._build()
        return json.dumps(found), "\n".join(render(found))


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    documents: Documents = request.app.state.documents
    return Response((await documents.get())[0], media_type="application/json")


@router.get("/docs")
async def page(request: Request) -> Response:
    """Return the OpenAPI document as a page to read."""
    documents: Documents = request.app.state.documents
    return Response((await documents.get())[1], media_type="text/html", headers=_HEADERS)


def render(found: Json) -> Iterator[str]:
    """Yield the lines of the page for an OpenAPI document."""
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>memfs {escape(found['info']['version'])}: HTTP</title>"
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>memfs {escape(found['info']['version'])}</h1>"
    yield _prose(found["info"].get("description"))
    yield '<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>'
    groups: dict[str, list[str]] = {}
    for path, route in found["paths"].items():
        for method, operation in route.items():
            tag = (operation.get("tags") or ["others"])[0]
            groups.setdefault(tag, []).extend(_operation(path, method, operation))
    for tag, lines in groups.items():
        yield f"<h2>{escape(tag)}</h2>"
        yield from lines
    yield "<h2>shapes</h2>"
    for name, shape in sorted(found["components"]["schemas"].items()):
        yield from _shape(name, shape)
    yield "</body></html>"


def _operation(path: str, method: str, operation: Json) -> Iterator[str]:
    anchor = escape(operation.get("operationId", ""))
    yield f'<h3 id="{anchor}">{escape(method.upper())} {escape(path)}</h3>'
    yield _prose(operation.get("description"))
    rows = [
        (f"{escape(one['name'])} <small>{escape(one['in'])}</small>", _says(one))
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {})
    rows += [("body", _type(kind.get("schema", {}))) for kind in body.values()]
    for status, answer in operation.get("responses", {}).items():
        kinds = [
            f"{_type(kind.get('schema', {}))} <small>{escape(name)}</small>"
            for name, kind in answer.get("content", {}).items()
        ]
        label = "otherwise" if status == "default" else f"answer {escape(status)}"
        rows.append((label, ", ".join(kinds) or escape(answer.get("description", ""))))
    yield from _table(rows)


def _shape(name: str, shape: Json) -> Iterator[str]:
    yield f'<h3 id="shape-{_anchor(name)}">{escape(name)}</h3>'
    yield _prose(shape.get("description"))
    required = shape.get("required", ())
    yield from _table(
        [
            (escape(field), _says({"schema": schema, "required": field in required}))
            for field, schema in shape.get("properties", {}).items()
        ]
    )


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield "<table>"
        yield from (f"<tr><td><code>{name}</code></td><td>{text}</td></tr>" for name, text in rows)
        yield "</table>"


def _says(one: Json) -> str:
    """Return what is to be known of a parameter or field."""
    schema: Json = one.get("schema", {})
    parts = [_type(schema)]
    if one.get("required"):
        parts.append("required")
    if schema.get("default") is not None:
        parts.append(f"default <code>{escape(json.dumps(schema['default']))}</code>")
    for key, word in (("minimum", "at least"), ("maximum", "at most"), ("format", "format")):
        if key in schema:
            parts.append(f"{word} {escape(str(schema[key]))}")
    text = one.get("description") or schema.get("description")
    return "; ".join(parts) + (f". {escape(text)}" if text else "")


def _type(schema: Json) -> str:
    """Return a schema in a few words, with links to the shapes it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#shape-{_anchor(name)}">{escape(name)}</a>'
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(_type(one) for one in schema[key])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict):
        return f"object of {_type(values)}"  # pyright: ignore[reportUnknownArgumentType]
    return escape(kind)


def _prose(text: str | None) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in (text or "").split("\n\n") if part)


def _anchor(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)
