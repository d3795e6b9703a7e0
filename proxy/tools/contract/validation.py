"""Strict validation of arguments, and words for what is wrong that repeat nothing of them.

Pydantic validates what came from a model or signature, ``jsonschema-rs`` what an author brought
as a schema of their own.  Both produce messages that can quote the input; so the words here are
made from the schema alone (rule T3).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from pydantic import BaseModel, TypeAdapter, ValidationError

from proxy.tools.contract.arguments import canonical_arguments
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.schema import declares, property_names, resolve
from proxy.tools.contract.url_argument import URL_FORM

__all__ = ["ModelValidator", "SchemaValidator", "validate_canonically"]

_MAX_PROBLEMS = 8
_NUMBER = re.compile(r"[+-]?[0-9.]+")
_NO_NUMBER: Mapping[str, Any] = MappingProxyType(
    {"not": {"type": "string", "pattern": f"^{_NUMBER.pattern}$"}}
)
_TEXTLESS = frozenset({"array", "boolean", "integer", "number", "object"})
_PLAIN = frozenset({str, int, float, bool, type(None)})

_SPEAKING = frozenset(
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
"""Kinds of pydantic errors whose text is made from the schema alone."""

_AUTHORS_WORDS = frozenset({"value_error", "assertion_error"})
"""Kinds whose text a tool's author wrote; shown only where it holds nothing of the arguments."""


class ModelValidator:
    """Validates a decoded object against a pydantic type: strict, no extra fields, aliases only.

    Returns the validated value (a model).  JSON mode is used because strictness there means what
    JSON can say: a date comes as text, a tuple as a list.  ``private`` are the paths of private
    arguments: of an address among them the canonical form is not said.
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
        """The validated value; raises :class:`~proxy.tools.contract.provider.ArgumentsInvalid`."""
        # Names that the schema does not show would get past the mask of private arguments and past
        # the bounds of policy, which go by the schema's names.
        if not arguments.keys() <= self._known:
            raise ArgumentsInvalid([_unknown_fields("", self._fields)])
        try:
            value = self._adapter.validate_json(
                json.dumps(arguments), strict=True, extra="forbid", by_alias=True, by_name=False
            )
        except ValidationError as error:
            errors = error.errors(include_input=False, include_url=False, include_context=False)
        except RecursionError:
            raise ArgumentsInvalid(["the arguments are nested too deeply"]) from None
        else:
            if self._dates is not None:
                self._check_dates(self._dates, arguments)
            # Only now, since a type that does not fit is better said by its own name.
            if declares(self._schema, arguments):
                return value
            raise ArgumentsInvalid(["the arguments: an unknown field inside of one of them"])
        problems = [self._problem(one["type"], one["loc"], one["msg"], arguments) for one in errors]
        raise ArgumentsInvalid(_short_list(problems))

    def _check_dates(self, dates: Mapping[str, Any], arguments: dict[str, Any]) -> None:
        """Refuse numbers in the place of dates.

        To pydantic a text of digits is seconds since 1970, so that ``"2030"`` would be half an hour of
        that year.  The schema says a date in ISO 8601.
        """
        fields = [_field(place, self._names) for place in _numbers_at(dates, arguments, dates, ())]
        if fields:
            words = "must be a date in ISO 8601, not a number"
            raise ArgumentsInvalid(_short_list([f"{field or 'the arguments'}: {words}" for field in fields]))

    def _problem(self, kind: str, loc: Sequence[int | str], message: str, arguments: Any) -> str:
        """One field and its fault."""
        where = _field(loc, self._names)
        if kind == "extra_forbidden":
            parent = _field(loc[:-1], self._names) or "the arguments"
            return f"{parent}: an unknown field"
        if kind == "missing":
            return f"{where}: is required"
        if kind == URL_FORM:
            private = not loc or loc[0] in self._private
            return f"{where}: {'must be an address in its canonical form' if private else message}"
        if kind in _AUTHORS_WORDS:
            message = message.partition(", ")[2] or message
            said = not _quotes(message, arguments)
        else:
            said = kind in _SPEAKING
        words = message[:200] if said else "is not valid"
        return f"{where or 'the arguments'}: {words}"


class SchemaValidator:
    """Validates a decoded object against a schema that its author brought; returns the object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._names = property_names(schema)
        # Most processes load no tool that brings a schema; see metaschema.py.
        import jsonschema_rs

        self._unresolved = jsonschema_rs.ReferencingError
        self._validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse_to_fetch)

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as they are; raises :class:`~proxy.tools.contract.provider.ArgumentsInvalid`."""
        problems = []
        try:
            for error in self._validator.iter_errors(arguments):
                place = tuple(_place(error.instance_path, arguments))
                problems.append(self._problem(place, error.schema_path))
                if len(problems) > _MAX_PROBLEMS:
                    break
        except (ValueError, self._unresolved):
            problems.append("the arguments: cannot be checked")
        if problems:
            raise ArgumentsInvalid(_short_list(problems))
        return arguments

    def _problem(self, instance_path: Sequence[int | str], schema_path: Sequence[int | str]) -> str:
        """One field and the keyword of the schema that it breaks."""
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
    """The validated value, and the arguments in the form that validation gave them.

    Two calls whose canonical arguments are equal are the same call: where a validator upper-cases,
    ``ber`` and ``BER`` are.  What was not given stays out, since a model can tell that from a default.
    A model may also hide what it holds, or give two values one look.  So its arguments count as
    canonical only if they validate to an equal value again; else they are taken as the model wrote them.
    Raises what ``validate`` raises.
    """
    value = validate(arguments)
    if not isinstance(value, BaseModel):
        return value, arguments
    held = tuple(value.__dict__.values())
    try:
        canonical = value.model_dump(
            mode="json", by_alias=True, exclude_unset=True, round_trip=True, warnings="none"
        )
        # What came of plain values, and is written as it came, would validate to the same again.  What
        # a model keeps in private, a serializer may have used up.
        plain = all(type(one) in _PLAIN for one in held) and value.__pydantic_private__ is None
        plain = plain and tuple(value.__dict__.values()) == held
        if plain and _written_alike(canonical, arguments):
            return value, arguments
        again = validate(canonical)
        if again == value:
            return again, canonical
    # Serializers are code of the tool's author, and may raise anything, SystemExit too.
    except BaseException:  # noqa: BLE001
        pass
    # Looking at a value may have used it up, as it does with an iterator.
    return validate(arguments), arguments


def _written_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two objects have one canonical text."""
    if one.keys() == other.keys():
        for name, value in one.items():
            kind = type(value)
            # Of these an equal one has the same text; zero as a float has two.
            if (kind is not str and kind is not int) or type(other[name]) is not kind or other[name] != value:
                break
        else:
            return True
    return canonical_arguments(one) == canonical_arguments(other)


def _date_rules(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that says one thing only: where the given one has a date, there is no text of digits.

    What else an author's own validators take stays theirs.
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
    branches = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(branches) == 1:
        rules["allOf"] = [*rules.get("allOf", ()), _date_rules(branches[0])]
    # Of several, one that takes any text takes digits, too.
    elif branches and all(_is_date(one) or one.get("type") in _TEXTLESS for one in branches):
        rules.update(_NO_NUMBER)
    return {**rules, **_NO_NUMBER} if _is_date(schema) else rules


def _numbers_at(
    rules: Mapping[str, Any], value: Any, root: Mapping[str, Any], place: tuple[int | str, ...]
) -> Iterator[tuple[int | str, ...]]:
    """Where a value has a text of digits that the rules of :func:`_date_rules` forbid.

    ``root`` is what their references start at, ``place`` is where the value is.
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
        for at, child in enumerate(value):
            yield from _numbers_at(first[at] if at < len(first) else rest, child, root, (*place, at))


def _is_date(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and schema.get("format") in ("date", "date-time")


def _refuse_to_fetch(uri: str) -> NoReturn:
    """No schema is ever loaded from elsewhere."""
    raise ValueError("a schema may refer to nothing outside itself")


def _place(path: Sequence[int | str], value: Any) -> Iterator[int | str]:
    """The place in ``value`` that a path of the library's leads to.

    There keys of digits are numbers, as if they stood in a list, and those are shown.
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
    """A location as ``slices[0].date``.

    Parts that the schema does not declare are left out: keys of open objects come from the model,
    and the names of union branches mean nothing to it.
    """
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part in names:
            text += f".{part}" if text else part
    return text


def _unknown_fields(parent: str, fields: Sequence[str]) -> str:
    """What to say about a field that does not exist, without its name."""
    known = f"; it takes {', '.join(fields)}" if fields else "; it takes none"
    return f"{parent or 'the arguments'}: an unknown field{known[:400]}"


def _quotes(message: str, arguments: Any) -> bool:
    """Whether ``message`` holds any text or number of the arguments, in whatever case or spacing.

    A validator words its complaint about what an earlier one may have stripped or upper-cased.
    """
    message = message.casefold()
    given = (scalar.strip().casefold() for scalar in _scalars(arguments))
    return any(scalar in message for scalar in given if scalar)


def _scalars(value: Any) -> Iterator[str]:
    """Every key, text and number of a value as text; depth was bounded by the parser."""
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
    """The first few problems, each once, and how many more there are."""
    distinct = list(dict.fromkeys(problems))
    more = len(distinct) - _MAX_PROBLEMS
    return distinct[:_MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
