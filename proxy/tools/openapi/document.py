"""Read an OpenAPI document of version 3.0 or 3.1 within bounds, and follow its references.

A document is untrusted. Only commands read it; a server that runs uses what was pinned. Nothing that it
refers to is ever fetched.

Sources: the OpenAPI Specification 3.0.4 and 3.1.1, "OpenAPI Object", "Reference Object"; RFC 6901 for
pointers; YAML 1.2.2, section 10.2 ("JSON schema"), to which the specification limits tags.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

import orjson
from msgspec import Struct, field

from proxy.base.errors import ConfigError, how_to_install
from proxy.base.plain_text import plain_text
from proxy.json.size import count_values
from proxy.tools.mcp.definitions import UnusableDefinition

MAX_DOCUMENT: Final = 16 << 20
"""The most bytes of a document; the largest that are published have about 12 MiB."""

_MOST_VALUES: Final = 2_000_000
_MOST_YAML: Final = 4 << 20
"""The most bytes of a document in YAML, which takes a hundred times as long to read as JSON."""
_MOST_STEPS: Final = 20
"""The most references that lead from one to the next."""
_LONGEST_URL: Final = 2048
_MOST_WORK: Final = 20_000_000
"""The most steps for all operations together, each of some microseconds at most: a short document can refer
to a large part from everywhere. Two hundred operations of the largest sizes take a quarter of it."""

_VERSION: Final = re.compile(r"3\.[01]\.\d{1,3}(-[0-9A-Za-z.]{1,20})?")


class Work(Struct):
    """The steps that are left for reading a document."""

    left: int = _MOST_WORK


class Document(Struct, frozen=True):
    """A document; ``root`` is its OpenAPI Object. ``where`` is its address; empty for a file."""

    root: Mapping[str, Any]
    where: str = ""
    work: Work = field(default_factory=Work)

    def count(self, steps: int) -> None:
        """Count steps of reading; raise :class:`UnusableDefinition` once the document has taken too many."""
        self.work.left -= steps
        if self.work.left < 0:
            raise UnusableDefinition(
                "the document takes too long to read, up to here: name fewer operations, or leave parts out"
            )

    @property
    def is_3_0(self) -> bool:
        """Whether its schemas are in the dialect of version 3.0, not in JSON Schema."""
        return str(self.root["openapi"]).startswith("3.0")

    def at(self, reference: Any) -> Any:
        """Return the value at a local reference; raise :class:`UnusableDefinition` if there is none."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnusableDefinition(
                f"it refers to {plain_text(str(reference), 100)}, which is outside of the document: "
                "bundle the document into one file"
            )
        self.count(1 + len(reference) // 16)
        value: Any = self.root
        for part in reference[2:].split("/") if len(reference) > 1 else ():
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and len(key) < 7 and int(key) < len(value):
                value = value[int(key)]
            else:
                raise UnusableDefinition(
                    f"it refers to {plain_text(reference, 100)}, which is not in the document"
                )
        return value

    def followed(self, value: Any) -> Mapping[str, Any]:
        """Return an object, with the fields beside a reference before those of what it refers to.

        Raises :class:`UnusableDefinition` for a reference that leads nowhere or in a circle, and for what is
        no object.
        """
        beside: dict[str, Any] = {}
        for _ in range(_MOST_STEPS):
            if not isinstance(value, Mapping):
                raise UnusableDefinition("a part of it is not an object")
            self.count(1 + (len(value) if beside or "$ref" in value else 0))
            if not isinstance(value.get("$ref"), str):
                return {**value, **beside} if beside else value
            beside = {**{key: value[key] for key in value if key != "$ref"}, **beside}
            value = self.at(value["$ref"])
        raise UnusableDefinition("its references lead in a circle")


def read_document(raw: bytes, setting: str, where: str = "") -> Document:
    """Read a document as JSON or YAML. Raises :class:`~proxy.base.errors.ConfigError` that names the
    ``setting`` for a document that is too large, cannot be read, or is of another version."""
    if len(raw) > MAX_DOCUMENT:
        raise ConfigError(setting, f"the document is larger than {MAX_DOCUMENT} bytes", "Leave parts out")
    root = _parsed(raw, setting)
    if not isinstance(root, dict):
        raise ConfigError(setting, "is not an OpenAPI document: it is not an object")
    if "swagger" in root:
        raise ConfigError(
            setting,
            f"is of version {plain_text(str(root['swagger']), 20)} (Swagger), and 3.0 or 3.1 is needed",
            "Convert it, for example with the command swagger2openapi or at converter.swagger.io",
        )
    version = root.get("openapi")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigError(
            setting,
            f"its version (openapi: {plain_text(str(version), 20)}) is not 3.0 or 3.1",
            "Name a document of OpenAPI 3.0 or 3.1",
        )
    if not isinstance(root.get("paths", {}), dict):
        raise ConfigError(setting, "is not an OpenAPI document: its paths are not an object")
    return Document(root, where)


def server_url(document: Document, *parts: Mapping[str, Any]) -> str:
    """Return the address of the first server of the innermost part that has servers, without a ``/`` at the
    end.

    ``parts`` go from the innermost outwards, without the document. Raises :class:`UnusableDefinition` for an
    address that is not usable. Source: "Server Object"; a relative address starts at the document's own.
    """
    found = next((part["servers"] for part in (*parts, document.root) if _has_servers(part)), None)
    server = found[0] if found is not None else {"url": "/"}
    url = server.get("url") if isinstance(server, Mapping) else None
    if not isinstance(url, str):
        raise UnusableDefinition("its server has no url")
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        document.count(1)
        default = variable.get("default") if isinstance(variable, Mapping) else None
        value = str(default) if isinstance(default, str | int) else ""
        if max(len(url), len(value)) > _LONGEST_URL:
            break  # Each replacement could make it as many times longer.
        url = url.replace(f"{{{name}}}", value)
    return checked_base(urljoin(document.where, url) if document.where else url)


def checked_base(url: str) -> str:
    """Return the address of a server without a ``/`` at the end; raise :class:`UnusableDefinition` if it is
    not one that requests can be sent to."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    odd = any(not "!" <= character <= "~" for character in url) or any(mark in url for mark in "?#{}\\")
    if (
        not usable
        or odd
        or len(url) > _LONGEST_URL
        or "@" in parts.netloc
        or {".", ".."} & set(unquote(parts.path).split("/"))
    ):
        raise UnusableDefinition(
            f"the address of its server, {plain_text(url, 200)!r}, is not one like https://api.example.com/v1"
            ": write it as base_url"
        )
    return url.rstrip("/")


def _has_servers(part: Mapping[str, Any]) -> bool:
    servers = part.get("servers")
    return isinstance(servers, list) and bool(servers)


def _parsed(raw: bytes, setting: str) -> Any:
    """Return the values of a document; JSON is tried first, which is YAML, too, but read much faster."""
    if count_values(raw, _MOST_VALUES) > _MOST_VALUES:
        raise ConfigError(setting, f"the document has more than {_MOST_VALUES} values", "Leave parts out")
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as fault:
        if raw.lstrip()[:1] in (b"{", b"["):
            raise ConfigError(setting, f"is not JSON: {plain_text(str(fault), 200)}") from None
    if len(raw) > _MOST_YAML:
        raise ConfigError(
            setting,
            f"a document in YAML may have {_MOST_YAML} bytes",
            "Convert it to JSON, which is read faster",
        )
    return _yaml(raw, setting)


def _yaml(raw: bytes, setting: str) -> Any:
    """Return the values of a text in YAML, of the types that JSON has."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            setting, "is in YAML, which needs a library that is not installed", how_to_install("openapi")
        ) from None
    try:
        root = yaml.load(raw.decode("utf-8-sig"), Loader=_loader(yaml))
        size = _size(root, {})
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        text = " ".join(str(fault).split())
        raise ConfigError(setting, f"is not YAML: {plain_text(text, 200)}") from None
    if size > _MOST_VALUES:
        raise ConfigError(
            setting, f"its aliases stand for more than {_MOST_VALUES} values", "Leave parts out"
        )
    return root


def _size(value: Any, known: dict[int, int]) -> int:
    """Return how many values a value has if each alias is written out: a short text of aliases of aliases
    stands for more than fit into memory.

    ``known`` are the sizes of objects and lists by their identity; 0 is one that is being counted. Raises
    ``ValueError`` for a value that contains itself.
    """
    if not isinstance(value, dict | list):
        return 1
    if (size := known.get(id(value))) is None:
        known[id(value)] = 0
        members = value.values() if isinstance(value, dict) else value
        size = known[id(value)] = 1 + sum(_size(member, known) for member in members)
    elif size == 0:
        raise ValueError("an alias leads to what contains it")
    return size


def _loader(yaml: Any) -> Any:
    """Return a loader of PyYAML that makes plain values only.

    By its defaults, which are those of YAML 1.1, ``on`` is a truth and ``2020-01-01`` a date. A merge
    (``<<``) copies what it merges, so that a short text of merges of merges would fill the memory.
    """

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: Mapping[str, Any] = {}

        def flatten_mapping(self, node: Any) -> None:
            if any(key.value == "<<" for key, _ in node.value):
                raise yaml.YAMLError("a merge (<<), which OpenAPI does not allow")

    forms = {
        "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        "int": (r"-?(0|[1-9][0-9]{0,17})", list("-0123456789")),
        "float": (r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", list("-0123456789")),
    }
    for kind, (form, first) in forms.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{form})$"), first)
    return Loader


def texts_of(mapping: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object by their names as texts; nothing for what is no object.

    In YAML a name may be a number, such as ``200``.
    """
    for key, value in mapping.items() if isinstance(mapping, Mapping) else ():
        yield str(key), value
