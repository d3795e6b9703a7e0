"""An API that answers only requests which its OpenAPI document allows.

It reads requests by libraries of others, not by the code under test: ``openapi_schema_validator`` for bodies
and parameters (for version 3.0 in the mode that refuses ``readOnly`` properties), and ``urllib.parse`` for
queries. It knows the styles ``simple``, ``form`` and ``deepObject``; the others are compared with the
specification's own table elsewhere.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from openapi_schema_validator import OAS30WriteValidator, OAS31Validator

FORM = "application/x-www-form-urlencoded"


@dataclass
class Seen:
    """A request that the document allows: ``METHOD /path`` of its operation, its arguments and its body."""

    operation: str
    arguments: dict[str, Any]
    body: Any
    headers: Mapping[str, str]
    raw_path: str


@dataclass
class DocumentedService:
    """The application; ``refused`` has the reason of each request that the document does not allow."""

    document: Mapping[str, Any]
    seen: list[Seen] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    answer: Any = None

    def app(self) -> web.Application:
        """Return the application that serves every path below the document's first server."""
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            self.seen.append(self._checked(request, await request.read()))
        except _Refused as fault:
            self.refused.append(str(fault))
            return web.json_response({"error": str(fault)}, status=422)
        if isinstance(self.answer, web.Response):
            return self.answer
        return web.json_response({"ok": True, "operation": self.seen[-1].operation})

    def _checked(self, request: web.Request, raw: bytes) -> Seen:
        path = request.raw_path.partition("?")[0]
        for template, item in self.document["paths"].items():
            names = re.findall(r"\{([^}]+)\}", template)
            pattern = re.sub(r"\\\{[^}]+\\\}", "([^/]+)", re.escape(template))
            match = re.fullmatch(pattern, path)
            operation = item.get(request.method.lower())
            if match is None or operation is None:
                continue
            in_path = dict(zip(names, match.groups(), strict=True))
            declared = [self._at(p) for p in [*item.get("parameters", ()), *operation.get("parameters", ())]]
            arguments = self._arguments(declared, in_path, request)
            return Seen(
                f"{request.method} {template}",
                arguments,
                self._body(operation, request, raw),
                dict(request.headers),
                request.raw_path,
            )
        raise _Refused(f"there is no {request.method} {path}")

    def _arguments(
        self, declared: list[Mapping[str, Any]], in_path: Mapping[str, str], request: web.Request
    ) -> dict[str, Any]:
        query = parse_qsl(
            request.raw_path.partition("?")[2], keep_blank_values=True, strict_parsing="?" in request.raw_path
        )
        places: dict[str, list[tuple[str, str]]] = {
            "path": list(in_path.items()),
            "query": query,
            "header": [(name.lower(), value) for name, value in request.headers.items()],
            "cookie": [(name, unquote(value)) for name, value in request.cookies.items()],
        }
        arguments: dict[str, Any] = {}
        known: set[str] = set()
        for parameter in declared:
            place, name = parameter["in"], parameter["name"]
            pairs = places[place]
            key = name.lower() if place == "header" else name
            nested = re.compile(re.escape(key) + r"(\[[^\]]*\])+")
            found = [(n, v) for n, v in pairs if n == key or nested.fullmatch(n)]
            known.update(n for n, _ in found)
            if not found:
                if parameter.get("required"):
                    raise _Refused(f"the {place} parameter {name} is missing")
                continue
            schema = self._at(parameter.get("schema", {}))
            value = _read(parameter, schema, found)
            self._validate(parameter.get("schema", {}), value, f"{place} {name}")
            arguments[name] = value
        schemes = self.document.get("components", {}).get("securitySchemes", {}).values()
        known.update(scheme["name"] for scheme in schemes if scheme.get("in") == "query")
        if unknown := [name for name, _ in query if name not in known]:
            raise _Refused(f"the query has {unknown[0]}, which is no parameter")
        return arguments

    def _body(self, operation: Mapping[str, Any], request: web.Request, raw: bytes) -> Any:
        declared = self._at(operation.get("requestBody", {}))
        if not raw:
            if declared.get("required"):
                raise _Refused("the body is missing")
            return None
        content = declared.get("content", {})
        media_type = request.headers.get("Content-Type", "")
        if media_type not in content:
            raise _Refused(f"the body is {media_type!r}, which is not one of {list(content)}")
        schema = content[media_type].get("schema", {})
        if media_type == FORM:
            read = _nested(parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True))
            body = _typed(self._at(schema), read)
        elif media_type.startswith("text/"):
            body = raw.decode()
        else:
            body = json.loads(raw)
        self._validate(schema, body, "body")
        return body

    def _validate(self, schema: Any, value: Any, where: str) -> None:
        kind = OAS30WriteValidator if self.document["openapi"].startswith("3.0") else OAS31Validator
        whole = {"components": self.document.get("components", {}), "allOf": [schema]}
        for error in kind(whole).iter_errors(value):
            raise _Refused(f"{where}: {error.message}")

    def _at(self, value: Any) -> Any:
        while isinstance(value, Mapping) and "$ref" in value:
            found: Any = self.document
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part.replace("~1", "/").replace("~0", "~")]
            value = found
        return value


class _Refused(Exception):
    """A request that the document does not allow."""


def _read(parameter: Mapping[str, Any], schema: Mapping[str, Any], found: list[tuple[str, str]]) -> Any:
    """Return a parameter's value, of the type that its schema names."""
    place = parameter["in"]
    style = parameter.get("style", "form" if place in ("query", "cookie") else "simple")
    explode = parameter.get("explode", style == "form")
    if style == "deepObject":
        name = parameter["name"]
        return _typed(schema, _nested(found)[name])
    values = [unquote(value) if place == "path" else value for _, value in found]
    if schema.get("type") == "array":
        return [
            _typed(schema.get("items", {}), each) for each in (values if explode else values[0].split(","))
        ]
    if len(values) != 1:
        raise _Refused(f"{parameter['name']} is there {len(values)} times")
    return _typed(schema, values[0])


def _typed(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a text as the type that a schema names; what does not fit stays a text, and is then refused."""
    kind = schema.get("type")
    if isinstance(value, dict) and kind == "array":
        return [_typed(schema.get("items", {}), each) for each in value.values()]
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        return {key: _typed(fields.get(key, {}), each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(schema.get("items", {}), each) for each in value]
    if kind == "array":
        return [_typed(schema.get("items", {}), value)]
    if kind in ("integer", "number", "boolean"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _nested(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Read ``a[b][0]=c`` as brackets are read by PHP and Rack; a repeated name is a list."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        keys = [name.partition("[")[0], *re.findall(r"\[([^\]]*)\]", name)]
        place = made
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        last = keys[-1]
        if last in place:
            earlier = place[last] if isinstance(place[last], list) else [place[last]]
            place[last] = [*earlier, value]
        else:
            place[last] = value
    return made
