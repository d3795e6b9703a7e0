"""Read the operations of an OpenAPI document as definitions of tools.

An operation that cannot be used excludes only its own tool. Each definition holds, beside what a model reads,
how its request is made (:mod:`.requests`), so that all of it is shown, pinned and compared.

Sources: "Path Item Object", "Operation Object", "Parameter Object", "Request Body Object", "Encoding Object",
"Security Requirement Object" of the OpenAPI Specification 3.0.4 and 3.1.1.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from proxy.base.plain_text import plain_text
from proxy.tools.access.hosts import check_headers
from proxy.tools.mcp.definitions import (
    MAX_NAME,
    MAX_TOOLS,
    Definition,
    LeftOutTool,
    Listing,
    UnusableDefinition,
    check_input,
    distinct,
)
from proxy.tools.openapi.api import PROVIDER, Api
from proxy.tools.openapi.document import Document, checked_base, server_url, texts_of
from proxy.tools.openapi.schemas import Schemas
from proxy.tools.openapi.security import credentials_of

_METHODS: Final = ("get", "head", "post", "put", "patch", "delete")
_STYLES: Final[Mapping[str, Sequence[str]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place; the first one is the default."""

_NOT_PARAMETERS: Final = frozenset(("accept", "content-type", "authorization"))
"""Headers that the specification does not let a document describe as parameters."""

_OVERRIDES: Final = frozenset(("x-http-method-override", "x-method-override", "x-http-method"))
"""Headers by which some frameworks make another method of a request, whose effect nobody has allowed."""

_FORM: Final = "application/x-www-form-urlencoded"
_JSON: Final = re.compile(r"application/([a-z0-9.!#$&^_-]+\+)?json", re.IGNORECASE)
_MEDIA_TYPE: Final = re.compile(r"[a-zA-Z0-9.!#$&^_+-]+/[a-zA-Z0-9.!#$&^_+-]+(; ?charset=[a-zA-Z0-9-]+)?")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_COOKIE_NAME: Final = _HEADER_NAME
_VARIABLE: Final = re.compile(r"\{([^{}/]+)\}")
_LIKE_PLACE: Final = re.compile(rf"^({'|'.join(_METHODS)})\s|\s/", re.IGNORECASE)
"""Ids that look like ``METHOD /path``: one could pass for another operation, which the operator has named."""

_MOST_REASON: Final = 400
_MOST_TEXT: Final = 4096
_MOST_REQUEST: Final = 65536
"""The most characters of what is pinned of a request, as those of a schema."""

_MOST_PARAMETERS: Final = 200
_LONGEST_ARGUMENT: Final = 56
"""Providers take 64 characters; some are left for what makes a name distinct."""


def read_operations(document: Document, api: Api, most: int = MAX_TOOLS) -> Listing:
    """Read the operations that the API may have, in the order of the document; at most ``most``."""
    definitions: list[Definition] = []
    left_out: list[LeftOutTool] = []
    for path, item in texts_of(document.root.get("paths")):
        if not path.startswith("/"):
            continue  # An extension.
        try:
            whole = document.followed(item)
        except UnusableDefinition as fault:
            left_out.append(_left_out(path, str(fault)))
            continue
        for method in _METHODS:
            operation = whole.get(method)
            if not isinstance(operation, Mapping):
                continue
            place = f"{method.upper()} {path}"
            own = operation.get("operationId")
            name = own if isinstance(own, str) and own and not _LIKE_PLACE.search(own) else place
            if not api.may_have(name, place):
                continue
            if len(definitions) >= most:
                reason = f"more than {most} operations fit {api.tools_setting}: name fewer there"
                return distinct(definitions, [*left_out, _left_out(name, reason)], "the document")
            try:
                definitions.append(_Operation(document, api, whole, path, method).definition(name))
            except (UnusableDefinition, RecursionError) as fault:
                left_out.append(_left_out(name, str(fault)))
            # A definition may break what nobody thought of; it must not take other tools along.
            except Exception as error:  # noqa: BLE001
                left_out.append(_left_out(name, f"it cannot be read ({type(error).__name__})"))
    return distinct(definitions, left_out, "the document")


def _left_out(name: str, reason: str) -> LeftOutTool:
    return LeftOutTool(plain_text(name, MAX_NAME), plain_text(reason, _MOST_REASON))


class _Operation:
    """One operation while it is read."""

    def __init__(self, document: Document, api: Api, item: Mapping[str, Any], path: str, method: str) -> None:
        self._document = document
        self._api = api
        self._item = item
        self._path = path
        self._method = method
        self._operation = item[method]
        self._schemas = Schemas(document)
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []

    def definition(self, name: str) -> Definition:
        """Return the operation as a definition; raise :class:`UnusableDefinition` if it cannot be used."""
        if len(name) > MAX_NAME:
            raise UnusableDefinition(f"its name has more than {MAX_NAME} characters")
        _check_path(self._path)
        base = self._api.base_url or server_url(self._document, self._operation, self._item)
        credentials = credentials_of(self._document, self._operation, self._api)
        request = {
            "method": self._method.upper(),
            "base": checked_base(base),
            "path": self._path,
            "parameters": list(self._parameters(credentials)),
            "body": self._body(),
            "credentials": credentials,
        }
        if len(json.dumps(request)) > _MOST_REQUEST:
            raise UnusableDefinition(f"what its request needs has more than {_MOST_REQUEST} characters")
        schema: dict[str, Any] = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }
        if definitions := self._schemas.definitions():
            schema["$defs"] = definitions
        reads = self._method in ("get", "head")
        return Definition(
            server=self._api.name,
            name=name,
            description=_about(self._operation),
            input_schema=check_input(schema),
            annotations={"readOnlyHint": True} if reads else {"destructiveHint": self._method == "delete"},
            provider=PROVIDER,
            request=request,
        )

    def _parameters(self, credentials: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
        """Yield how each parameter is sent, and add its argument."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for holder in (self._item, self._operation):
            listed = holder.get("parameters", [])
            for given in listed if isinstance(listed, list) else ():
                parameter = self._document.followed(given)
                if not isinstance(parameter.get("name"), str):
                    raise UnusableDefinition("one of its parameters has no name")
                found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
        if len(found) > _MOST_PARAMETERS:
            raise UnusableDefinition(f"it has more than {_MOST_PARAMETERS} parameters")
        for (place, name), parameter in found.items():
            if credentials is not None and _is_place(credentials, place, name):
                continue
            if place == "header" and (self._api.has_header(name) or not _is_settable(name, parameter)):
                continue
            yield self._parameter(place, name, parameter)
        given = {name for place, name in found if place == "path"}
        if missing := set(_VARIABLE.findall(self._path)) - given:
            raise UnusableDefinition(
                f"its path has {{{sorted(missing)[0][:80]}}}, which is no parameter of it"
            )

    def _parameter(self, place: str, name: str, parameter: Mapping[str, Any]) -> dict[str, Any]:
        styles = _STYLES.get(place)
        if styles is None:
            raise UnusableDefinition(f'its parameter {name[:80]!r} has the unknown place "{place[:20]}"')
        style = parameter.get("style", styles[0])
        if style not in styles:
            raise UnusableDefinition(f"its parameter {name[:80]!r} has a style that {place} does not have")
        if place == "cookie" and not _COOKIE_NAME.fullmatch(name):
            raise UnusableDefinition(f"{name[:80]!r} is not a valid name of a cookie")
        content = parameter.get("content")
        schema = parameter.get("schema", {})
        if isinstance(content, Mapping) and content:
            media_type, media = next(texts_of(content))
            if not _JSON.fullmatch(media_type):
                raise UnusableDefinition(f"its parameter {name[:80]!r} has a content other than JSON")
            schema = self._document.followed(media).get("schema", {})
        made = self._schemas.convert(schema)
        about = parameter.get("description")
        if isinstance(made, Mapping) and isinstance(about, str) and about.strip():
            made = {**made, "description": about.strip()[:_MOST_TEXT]}
        sent = {
            "argument": self._argument(
                name, place, made, parameter.get("required") is True or place == "path"
            ),
            "in": place,
            "name": name,
            "style": style,
            "explode": bool(parameter.get("explode", style in ("form", "deepObject"))),
        }
        if content:
            sent["json"] = True
        if parameter.get("allowReserved") is True and place == "query":
            sent["reserved"] = True
        return sent

    def _argument(self, name: str, place: str, schema: Any, required: bool) -> str:
        """Add an argument, and return its name: that of the parameter, as far as providers take it."""
        own = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_.-]", "_", name)).strip("_")[:_LONGEST_ARGUMENT]
        named = own or place
        if named in self._properties:
            named = f"{named}_{place}"
        number = 2
        while named in self._properties:
            named, number = f"{own or place}_{number}", number + 1
        if named != name and isinstance(schema, Mapping):
            about = schema.get("description")
            schema = {**schema, "description": f"{name}: {about}" if about else name}
        self._properties[named] = schema
        if required:
            self._required.append(named)
        return named

    def _body(self) -> dict[str, Any] | None:
        """Return how the body is sent, and add its argument; ``None`` if there is none."""
        given = self._operation.get("requestBody")
        if given is None:
            return None
        if self._method in ("get", "head"):
            raise UnusableDefinition(f"it has a body, which a {self._method.upper()} may not have")
        body = self._document.followed(given)
        content = dict(texts_of(body.get("content")))
        media_type = _chosen(content)
        media = self._document.followed(content[media_type])
        schema = media.get("schema", {})
        sent: dict[str, Any] = {"type": media_type}
        if media_type.startswith("text/"):
            schema = {"type": "string"}
        if is_form(media_type):
            sent["encoding"] = dict(self._encodings(media))
        made = self._schemas.convert(schema)
        if sent.get("encoding") and (fields := sorted(self._schemas.fields(made))):
            sent["fields"] = fields
        about = body.get("description")
        if (
            isinstance(made, Mapping)
            and isinstance(about, str)
            and about.strip()
            and "description" not in made
        ):
            made = {**made, "description": about.strip()[:_MOST_TEXT]}
        return {"argument": self._argument("body", "json", made, body.get("required") is True), **sent}

    def _encodings(self, media: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield how the fields of a form are sent, where the document says it."""
        for name, given in texts_of(media.get("encoding")):
            encoding = self._document.followed(given)
            if not {"style", "explode", "allowReserved"} & encoding.keys():
                continue
            style = encoding.get("style", "form")
            if style not in _STYLES["query"]:
                raise UnusableDefinition(f"the field {name[:80]!r} of its body has an unknown style")
            explode = bool(encoding.get("explode", style in ("form", "deepObject")))
            yield name, {"style": style, "explode": explode}


def is_form(media_type: str) -> bool:
    """Return whether a body of this type, perhaps with a charset, is sent as a form."""
    return media_type.partition(";")[0].strip() == _FORM


def _chosen(content: Mapping[str, Any]) -> str:
    """Return the type of the body that is sent: JSON before a form before text."""
    for kind in (_JSON.fullmatch, is_form, lambda name: name.startswith("text/")):
        for media_type in content:
            if kind(media_type.partition(";")[0].strip()) and _MEDIA_TYPE.fullmatch(media_type):
                return media_type
    if "*/*" in content:
        raise UnusableDefinition("its body may be of any type, so that nobody knows how to send it")
    named = ", ".join(plain_text(name, 60) for name in list(content)[:5]) or "of no type"
    raise UnusableDefinition(f"its body is {named}, but only JSON, forms without files, and text can be sent")


def _is_place(credentials: Mapping[str, str], place: str, name: str) -> bool:
    """Return whether a parameter is the place of the credentials; headers' names have no case."""
    own = credentials["name"]
    same = name.lower() == own.lower() if place == "header" else name == own
    return same and place == credentials["where"]


def _is_settable(name: str, parameter: Mapping[str, Any]) -> bool:
    """Return whether a header is an argument; raise :class:`UnusableDefinition` if it must be, and cannot."""
    if name.lower() in _NOT_PARAMETERS:
        return False
    try:
        check_headers([name])
        if _HEADER_NAME.fullmatch(name) and name.lower().replace("_", "-") not in _OVERRIDES:
            return True
    except ValueError:
        pass
    if parameter.get("required") is True:
        raise UnusableDefinition(f"it needs the header {name[:80]!r}, which no tool may set")
    return False


def _check_path(path: str) -> None:
    """Raise :class:`UnusableDefinition` for a path that could lead elsewhere."""
    literal = _VARIABLE.sub("x", path)
    odd = any(not "!" <= character <= "~" for character in path) or any(mark in path for mark in '?#\\"<>^`|')
    if odd or "{" in literal or "}" in literal or {".", ".."} & set(unquote(literal).split("/")):
        raise UnusableDefinition("its path has a query, a fragment, or characters that a path cannot have")


def _about(operation: Mapping[str, Any]) -> str:
    """Return what an operation says about itself: its summary and its description."""
    texts = [operation.get("summary"), operation.get("description")]
    given = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    if len(given) == 2 and given[1].startswith(given[0].rstrip(".")):
        del given[0]
    mark = ["Deprecated."] if operation.get("deprecated") is True else []
    return "\n".join([*mark, *given])[:_MOST_TEXT]
