"""Validate arguments strictly, and describe each fault without repeating any of the arguments.

Pydantic validates tools declared by a model or a signature; ``jsonschema-rs`` validates tools whose author
wrote a schema. The messages of both can quote the input, so this module builds its messages from the schema
alone (rule T3).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from proxy.tools.contract.arguments import canonical_arguments
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.schemas.schema import declares, property_names, resolve, union_width
from proxy.tools.contract.schemas.schema_library import compile_schema
from proxy.tools.contract.schemas.url_argument import URL_FORM

_MAX_PROBLEMS = 8
_MOST_BRANCHES = 10_000
"""The most branches of recursive unions that are searched for the faults of arguments; about 50 ms."""

_DEEPEST = 64
_NUMBER = re.compile(r"[+-]?[0-9.]+")
_NO_NUMBER: Mapping[str, Any] = MappingProxyType(
    {"not": {"type": "string", "pattern": f"^{_NUMBER.pattern}$"}}
)
_TEXTLESS = frozenset({"array", "boolean", "integer", "number", "object"})
_PLAIN = frozenset({str, int, float, bool, type(None)})

_SCHEMA_ONLY_KINDS = frozenset(
    {
        "bool_type",
        "bytes_type",
        "date_type",
        "datetime_type",
        "decimal_type",
        "dict_type",
        "enum",
        "finite_number",
        "float_type",
        "frozen_set_type",
        "greater_than",
        "greater_than_equal",
        "int_from_float",
        "int_type",
        "less_than",
        "less_than_equal",
        "list_type",
        "literal_error",
        "missing",
        "model_type",
        "multiple_of",
        "none_required",
        "set_type",
        "string_pattern_mismatch",
        "string_too_long",
        "string_too_short",
        "string_type",
        "time_type",
        "too_long",
        "too_short",
        "tuple_type",
        "url_type",
        "uuid_type",
    }
)
"""The types of pydantic errors whose message depends on the schema alone."""

_AUTHOR_KINDS = frozenset({"value_error", "assertion_error"})
"""The types whose message a tool's author wrote; it is shown only if it contains nothing of the arguments."""


class ModelValidator:
    """Validator of a decoded object against a pydantic type: strict, no extra fields, aliases only.

    It returns the validated value (a model). It uses pydantic's JSON mode, whose strict rules are those of
    JSON: a date comes as text, a tuple as a list. ``private`` are the paths of private arguments. If one
    of them is a URL, the message does not contain its canonical form.
    """

    def __init__(
        self, adapter: TypeAdapter[Any], schema: Mapping[str, Any], *, private: Sequence[str] = ()
    ) -> None:
        self._adapter = adapter
        self._schema = schema
        self._private = frozenset(path.partition(".")[0] for path in private)
        self._fields = tuple(schema.get("properties", {}))
        self._known = frozenset(self._fields)
        self._names = property_names(schema)
        self._dates = _date_rules(schema) if '"format": "date' in json.dumps(schema) else None

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """Return the validated value; raise :class:`~proxy.tools.contract.provider.ArgumentsInvalid`."""
        # A name that is not in the schema would bypass the mask of private arguments and the policy
        # bounds, because both use the schema's names.
        if not arguments.keys() <= self._known:
            raise ArgumentsInvalid([_unknown_fields("", self._fields)])
        try:
            value = self._adapter.validate_json(
                _written(arguments), strict=True, extra="forbid", by_alias=True, by_name=False
            )
        except ValidationError as error:
            errors = error.errors(include_input=False, include_url=False, include_context=False)
        except RecursionError:
            raise ArgumentsInvalid(["the arguments are nested too deeply"]) from None
        else:
            if self._dates is not None:
                self._check_dates(self._dates, arguments)
            # Checked last, since pydantic's message for a wrong type is clearer.
            if declares(self._schema, arguments):
                return value
            raise ArgumentsInvalid(["the arguments: an unknown field inside of one of them"])
        problems = [
            self._problem(problem["type"], problem["loc"], problem["msg"], arguments) for problem in errors
        ]
        raise ArgumentsInvalid(_short_list(problems))

    def _check_dates(self, dates: Mapping[str, Any], arguments: dict[str, Any]) -> None:
        """Raise ``ArgumentsInvalid`` for a number in the place of a date.

        Pydantic reads a text of digits as seconds since 1970, so ``"2030"`` would be a time half an hour into
        1970. The schema requires a date in ISO 8601.
        """
        fields = [_field(place, self._names) for place in _numbers_at(dates, arguments, dates, ())]
        if fields:
            problem = "must be a date in ISO 8601, not a number"
            raise ArgumentsInvalid(
                _short_list([f"{field or 'the arguments'}: {problem}" for field in fields])
            )

    def _problem(self, kind: str, loc: Sequence[int | str], message: str, arguments: Any) -> str:
        """Describe one field and its fault."""
        where = _field(loc, self._names)
        if kind == "extra_forbidden":
            parent = _field(loc[:-1], self._names) or "the arguments"
            return f"{parent}: an unknown field"
        if kind == "missing":
            return f"{where}: is required"
        if kind == URL_FORM:
            private = not loc or loc[0] in self._private
            return f"{where}: {'must be an address in its canonical form' if private else message}"
        if kind in _AUTHOR_KINDS:
            message = message.partition(", ")[2] or message
            is_quotable = not _contains_argument(message, arguments)
        else:
            is_quotable = kind in _SCHEMA_ONLY_KINDS
        problem = message[:200] if is_quotable else "is not valid"
        return f"{where or 'the arguments'}: {problem}"


class SchemaValidator:
    """Validator of a decoded object against a schema that the tool's author wrote; it returns the object."""

    def __init__(self, schema: Mapping[str, Any], where: str = "") -> None:
        """``schema`` has passed :func:`~proxy.tools.contract.schemas.schema.check_schema`.

        Raises :class:`~proxy.base.errors.ConfigError` for ``where`` if it cannot be used all the same.
        """
        self._schema = schema
        self._names = property_names(schema)
        self._compiled = compile_schema(schema, where)
        self._width = union_width(schema)

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged; raise :class:`~proxy.tools.contract.provider.ArgumentsInvalid`."""
        try:
            if self._compiled.accepts(arguments):
                return arguments
            # To name the faults would visit each branch at each level.
            if self._width ** _depth(arguments) > _MOST_BRANCHES:
                raise ArgumentsInvalid(["the arguments: do not fit the schema"])
            faults = self._compiled.faults(arguments, _MAX_PROBLEMS + 1)
        except ValueError:
            raise ArgumentsInvalid(["the arguments: cannot be checked"]) from None
        places = [(tuple(_place(instance, arguments)), rule) for instance, rule in faults]
        raise ArgumentsInvalid(_short_list([self._problem(*place) for place in places]))

    def _problem(self, instance_path: Sequence[int | str], schema_path: Sequence[int | str]) -> str:
        """Describe one field and the schema keyword that it breaks."""
        where = _field(instance_path, self._names) or "the arguments"
        keyword = str(schema_path[-1]) if schema_path else ""
        rule: Any = self._schema
        for part in _place(schema_path, self._schema):
            if isinstance(rule, Mapping):
                rule = rule.get(part)
            elif isinstance(rule, list) and isinstance(part, int) and part < len(rule):
                rule = rule[part]
            else:
                rule = None
        if keyword == "additionalProperties" and rule is False:
            return f"{where}: an unknown field"
        shown = json.dumps(rule) if isinstance(rule, str | int | float | bool | list) else ""
        return f'{where}: does not meet "{keyword}"' + (f" {shown}" if 0 < len(shown) <= 200 else "")


def validate_canonically(
    validate: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the validated value, and the arguments in canonical form: as validation normalized them.

    Two calls with equal canonical arguments are the same call; for example ``ber`` and ``BER``, if a
    validator upper-cases. Absent arguments stay absent, since pydantic can tell them from a default. A
    pydantic model may hide some of its data, or serialize two values in the same way. So the serialized
    arguments count as canonical only if they validate to an equal value again. Otherwise the arguments stay
    as the language model wrote them. Raises what ``validate`` raises.
    """
    value = validate(arguments)
    if not isinstance(value, BaseModel):
        return value, arguments
    held = tuple(value.__dict__.values())
    try:
        canonical = value.model_dump(
            mode="json", by_alias=True, exclude_unset=True, round_trip=True, warnings="none"
        )
        # Plain values that serialize as the model wrote them would validate to the same again, so skip the
        # second validation. But with private attributes do not: a serializer may have consumed them.
        plain = all(type(item) in _PLAIN for item in held) and value.__pydantic_private__ is None
        plain = plain and tuple(value.__dict__.values()) == held
        if plain and _written_alike(canonical, arguments):
            return value, arguments
        again = validate(canonical)
        if again == value:
            return again, canonical
    # Serializers are code of the tool's author and may raise anything, even SystemExit.
    except BaseException:  # noqa: BLE001
        pass
    # Reading a value may have consumed it, for example an iterator, so validate again.
    return validate(arguments), arguments


def words_of_refusal(error: ValueError, arguments: Mapping[str, Any], names: frozenset[str]) -> str:
    """Return the message of a ``ValueError`` that a tool's author raised for these arguments.

    ``names`` are the property names of the schema. A message that repeats another part of the arguments is
    replaced, since messages are recorded (rule T3).
    """
    if isinstance(error, ValidationError):
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        places = [f"{_field(fault['loc'], names) or 'the arguments'}: {fault['msg']}" for fault in faults]
        text = "; ".join(_short_list(places))
    else:
        text = str(error)
    text = " ".join(text.split())[:500]
    # What is no JSON, as an open file, has no text that a message could repeat.
    plain = to_jsonable_python(list(arguments.values()), fallback=lambda _: None)
    return text if text and not _contains_argument(text, plain, names) else "the arguments are not valid"


def _written_alike(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two objects have the same canonical text."""
    if first.keys() == other.keys():
        for name, value in first.items():
            kind = type(value)
            # Equal strings and integers have the same text; equal floats may not, as 0.0 and -0.0.
            if (kind is not str and kind is not int) or type(other[name]) is not kind or other[name] != value:
                break
        else:
            return True
    return canonical_arguments(first) == canonical_arguments(other)


def _written(arguments: dict[str, Any]) -> bytes | str:
    """Return arguments as JSON; raises ``RecursionError`` for arguments that are nested too deeply."""
    try:
        return orjson.dumps(arguments)
    except TypeError:  # An integer of more than 64 bits, or deep nesting.
        return json.dumps(arguments)


def _date_rules(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with one rule only: no text of digits where the given schema has a date.

    All else is left to the author's own validators.
    """
    rules: dict[str, Any] = {name: schema[name] for name in ("$ref",) if name in schema}
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), Mapping):
            rules[name] = {key: _date_rules(child) for key, child in schema[name].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            rules[name] = _date_rules(schema[name])
    for name in ("prefixItems", "allOf"):
        if name in schema:
            rules[name] = [_date_rules(child) for child in schema[name]]
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    if len(branches) == 1:
        rules["allOf"] = [*rules.get("allOf", ()), _date_rules(branches[0])]
    # With several branches the rule applies only if no branch accepts other text.
    elif branches and all(_is_date(branch) or branch.get("type") in _TEXTLESS for branch in branches):
        rules.update(_NO_NUMBER)
    return {**rules, **_NO_NUMBER} if _is_date(schema) else rules


def _numbers_at(
    rules: Mapping[str, Any], value: Any, root: Mapping[str, Any], place: tuple[int | str, ...]
) -> Iterator[tuple[int | str, ...]]:
    """Yield the paths at which a value has a text of digits that the rules of :func:`_date_rules` forbid.

    ``root`` is the schema that references start from; ``place`` is the path of ``value``.
    """
    if "not" in rules and isinstance(value, str) and _NUMBER.fullmatch(value):
        yield place
    if "$ref" in rules:
        yield from _numbers_at(resolve(root, rules["$ref"], "$ref", ""), value, root, place)
    for part in rules.get("allOf", ()):
        yield from _numbers_at(part, value, root, place)
    if isinstance(value, dict):
        fields, others = rules.get("properties", {}), rules.get("additionalProperties", {})
        for name, child in value.items():
            yield from _numbers_at(fields.get(name, others), child, root, (*place, name))
    elif isinstance(value, list):
        first, rest = rules.get("prefixItems", ()), rules.get("items", {})
        for index, child in enumerate(value):
            yield from _numbers_at(first[index] if index < len(first) else rest, child, root, (*place, index))


def _is_date(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and schema.get("format") in ("date", "date-time")


def _depth(value: Any, most: int = _DEEPEST) -> int:
    """Return how many levels of objects and lists a value has, at most ``most``."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not isinstance(value, dict | list) or most == 0:
        return 0
    return 1 + max((_depth(child, most - 1) for child in below), default=0)


def _place(path: Sequence[int | str], value: Any) -> Iterator[int | str]:
    """Yield the steps of a path of ``jsonschema-rs`` as keys and indices of ``value``.

    The library gives a key of digits as a number, which would be shown as a list index.
    """
    for part in path:
        step = part
        if isinstance(part, int) and not isinstance(value, list):
            digits = str(part).lstrip("0")  # "+007" was read as 7.
            keys = value if isinstance(value, Mapping) else ()
            step = next((key for key in keys if key.removeprefix("+").lstrip("0") == digits), "")
        yield step
        try:
            value = value[step]
        except (LookupError, TypeError):
            value = None


def _field(loc: Sequence[int | str], names: frozenset[str]) -> str:
    """Return a location in the form ``slices[0].date``.

    Parts that the schema does not declare are left out: the model chose the keys of open objects, and the
    names of union branches mean nothing to it.
    """
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part in names:
            text += f".{part}" if text else part
    return text


def _unknown_fields(parent: str, fields: Sequence[str]) -> str:
    """Return the message about a field that does not exist, without its name."""
    known = f"; it takes {', '.join(fields)}" if fields else "; it takes none"
    return f"{parent or 'the arguments'}: an unknown field{known[:400]}"


def _contains_argument(message: str, arguments: Any, known: frozenset[str] = frozenset()) -> bool:
    """Return whether ``message`` contains any text or number of the arguments that is not ``known``.

    Case and outer spaces are ignored, since an earlier validator may have changed them in the value.
    """
    message = message.casefold()
    given = (scalar.strip().casefold() for scalar in _scalars(arguments) if scalar not in known)
    return any(scalar in message for scalar in given if scalar)


def _scalars(value: Any) -> Iterator[str]:
    """Yield every key, text and number of a value as text; the parser has bounded the depth."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _scalars(child)
    elif isinstance(value, list):
        for child in value:
            yield from _scalars(child)
    elif isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _short_list(problems: Sequence[str]) -> list[str]:
    """Return the first few problems, without duplicates, and how many more there are."""
    distinct = list(dict.fromkeys(problems))
    more = len(distinct) - _MAX_PROBLEMS
    return distinct[:_MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
