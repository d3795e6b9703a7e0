"""The one module that uses ``jsonschema-rs``: it builds validators that never read anything from elsewhere.

The library by itself loads every address that a schema names: in ``$schema``, ``$ref``, ``$id`` and
``$dynamicRef``, over HTTP with redirects and from files. Schemas of MCP servers are untrusted, so each
validator built here gets a retriever that refuses, and a schema is checked as plain data against a metaschema
that comes with the library. The library costs each process 7 MB and 18 ms, so it is loaded when it is first
needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol

from proxy.base.caches import declare_lru
from proxy.base.errors import ConfigError

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of a schema without ``$schema``. Source: MCP 2025-11-25, "JSON Schema Usage"."""

_DIALECTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "json-schema.org/schema": (DEFAULT_DIALECT, "Draft202012Validator"),
        "json-schema.org/draft/2020-12/schema": (DEFAULT_DIALECT, "Draft202012Validator"),
        "json-schema.org/draft/2019-09/schema": (
            "https://json-schema.org/draft/2019-09/schema",
            "Draft201909Validator",
        ),
        "json-schema.org/draft-07/schema": ("http://json-schema.org/draft-07/schema#", "Draft7Validator"),
        "json-schema.org/draft-06/schema": ("http://json-schema.org/draft-06/schema#", "Draft6Validator"),
        "json-schema.org/draft-04/schema": ("http://json-schema.org/draft-04/schema#", "Draft4Validator"),
    }
)
"""The metaschema and the validator of each dialect, by the address without its scheme and an empty fragment.
Source: https://json-schema.org/specification-links."""

_MAX_COMPILED: Final = 1 << 20
"""The most bytes of a compiled pattern. The largest one takes 5 ms to compile."""

_MOST_PATTERNS: Final = 100
"""The most patterns of a schema, so that half a second compiles all of them."""

_MOST_STEPS: Final = 100_000
"""The most steps back of a pattern with look-around on one text; about 3 ms. Other patterns take linear
time."""

Fault = tuple[Sequence[int | str], Sequence[int | str]]
"""Where a value has a fault, and the part of the schema that says so."""


class CompiledSchema:
    """A schema that can check values; made by :func:`compile_schema`."""

    def __init__(self, made: Any, unresolved: type[Exception]) -> None:
        self._made = made
        self._unresolved = unresolved

    def accepts(self, value: Any) -> bool:
        """Return whether a value fits, in time that grows no faster than the value and the schema.

        Raises ``ValueError`` if the value cannot be checked.
        """
        try:
            return bool(self._made.is_valid(value))
        except self._unresolved:
            raise ValueError("the schema refers to nothing") from None

    def faults(self, value: Any, most: int) -> list[Fault]:
        """Return at most ``most`` faults of a value.

        If unions refer to themselves, the time can grow exponentially with the depth of the value. Raises
        ``ValueError`` if the value cannot be checked.
        """
        try:
            errors = islice(self._made.iter_errors(value), most)
            return [(error.instance_path, error.schema_path) for error in errors]
        except self._unresolved:
            raise ValueError("the schema refers to nothing") from None


class LinearPattern(Protocol):
    """A compiled pattern that matches in linear time."""

    def is_valid(self, instance: Any) -> bool: ...


def is_known_dialect(address: str) -> bool:
    """Return whether ``$schema`` with this value names a dialect whose metaschema is here."""
    return _bare(address) in _DIALECTS


def invalid_path(schema: Mapping[str, Any]) -> str | None:
    """Return the dotted path of the first part that the schema's own dialect does not allow; ``None`` if it
    is valid.

    An unknown dialect counts as the default one.
    """
    import jsonschema_rs

    try:
        _metaschema(_dialect(schema)[0]).validate(dict(schema))
    except jsonschema_rs.ValidationError as error:
        return ".".join(map(str, error.instance_path))
    return None


def compile_schema(schema: Mapping[str, Any], where: str = "") -> CompiledSchema:
    """Compile a schema that :func:`~proxy.tools.contract.schemas.schema.check_schema` accepts.

    Raises :class:`~proxy.base.errors.ConfigError` for ``where`` with the path of a pattern that cannot be
    compiled, or of a reference or an ``$id`` that leads out of the schema.
    """
    import jsonschema_rs

    if sum(_patterns(schema)) > _MOST_PATTERNS:
        raise ConfigError(where, f"parameters: more than {_MOST_PATTERNS} patterns")
    options = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_MOST_STEPS, size_limit=_MAX_COMPILED, dfa_size_limit=_MAX_COMPILED
    )
    make = getattr(jsonschema_rs, _dialect(schema)[1])
    try:
        made = make(dict(schema), retriever=_refuse_to_fetch, pattern_options=options)
    except jsonschema_rs.ValidationError as error:
        raise ConfigError(where, _compile_fault(error.instance_path)) from None
    except (ValueError, jsonschema_rs.ReferencingError):
        raise ConfigError(where, _compile_fault(())) from None
    return CompiledSchema(made, jsonschema_rs.ReferencingError)


def linear_pattern(pattern: str, size_limit: int | None = None) -> LinearPattern:
    """Compile a pattern without look-around and back-references, which a text may match anywhere.

    ``size_limit`` is the most bytes of the compiled pattern. Raises ``ValueError``.
    """
    import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=size_limit, dfa_size_limit=size_limit)
    try:
        made: LinearPattern = jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, retriever=_refuse_to_fetch, pattern_options=options
        )
    except jsonschema_rs.ValidationError:
        raise ValueError("the pattern is too large, not a regular expression, or has look-around") from None
    return made


def _compile_fault(path: Sequence[int | str]) -> str:
    where = ".".join(map(str, ("parameters", *path)))
    if "pattern" in path or "patternProperties" in path:
        return f"{where}: is not a regular expression of JSON Schema (ECMA 262), or is too large"
    return f"{where}: a reference or an $id in it leads to nothing within the schema"


def _patterns(node: Any) -> Iterator[int]:
    """Yield the number of patterns of each part of a schema; text that is data may count too."""
    if isinstance(node, Mapping):
        yield isinstance(node.get("pattern"), str)
        if isinstance(node.get("patternProperties"), Mapping):
            yield len(node["patternProperties"])
    elif not isinstance(node, list):
        return
    for child in node.values() if isinstance(node, Mapping) else node:
        yield from _patterns(child)


def _bare(address: str) -> str:
    return address.removeprefix("https://").removeprefix("http://").removesuffix("#")


def _dialect(schema: Mapping[str, Any]) -> tuple[str, str]:
    declared = schema.get("$schema")
    return _DIALECTS.get(
        _bare(declared) if isinstance(declared, str) else "", _DIALECTS[_bare(DEFAULT_DIALECT)]
    )


@lru_cache(len(_DIALECTS))
def _metaschema(address: str) -> Any:
    """Return the validator of a metaschema, which comes with the library."""
    import jsonschema_rs

    return jsonschema_rs.validator_for({"$schema": address, "$ref": address}, retriever=_refuse_to_fetch)


declare_lru("metaschemas", _metaschema, 200_000)


def _refuse_to_fetch(uri: str) -> NoReturn:
    """Raise ``ValueError``, because no schema is ever loaded from elsewhere."""
    raise ValueError("a schema may refer to nothing outside itself")
