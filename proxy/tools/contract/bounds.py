"""Bounds that the operator sets on a tool's arguments, beyond the tool's own schema.

A bound also requires the type of the value: ``max = 7`` refuses ``"1000"``, a list and ``null``. A bound
refuses every value that it cannot judge. Patterns must match the whole value. The regex engine of
``jsonschema-rs`` runs in linear time, whatever the pattern.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from msgspec import Struct

from proxy.tools.contract.argument_paths import ABSENT, IN_THE_WAY, Schema, defaults_at, values_at
from proxy.tools.contract.schemas.schema_library import LinearPattern, linear_pattern
from proxy.tools.contract.schemas.url_argument import canonical_url

Scalar = str | int | float | bool

MAX_PATTERN = 1000
_MAX_COMPILED = 1 << 20
_MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class ArgumentBound:
    """The allowed values of one argument; a value must meet every part that is set.

    ``enum`` lists the allowed values. ``min`` and ``max`` bound a number, both inclusive. ``max_length``
    bounds the characters of a text or the elements of a list. The whole of a text must match ``pattern``.
    An absent argument counts as the default in the tool's schema; without a default, or with ``null``, it
    meets the bound. A ``required`` argument must be given, a ``forbidden`` one must not.
    Raises ``ValueError`` for a pattern that cannot be used.
    """

    enum: tuple[Scalar, ...] | None = None
    min: float | None = None
    max: float | None = None
    max_length: int | None = None
    pattern: str | None = None
    required: bool = False
    forbidden: bool = False
    _matcher: LinearPattern | None = field(default=None, init=False, repr=False, compare=False)
    # In Python 1 == True; without this field such bounds would be equal and share one set of permissions.
    _booleans: tuple[bool, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_booleans", tuple(isinstance(value, bool) for value in self.enum or ()))
        if self.pattern is not None:
            object.__setattr__(self, "_matcher", _compile(self.pattern))

    def violation(self, value: Any) -> str:
        """Return why a value breaks the bound, without repeating the value; ``""`` if it meets the bound."""
        if self.enum is not None and not any(_same(value, allowed) for allowed in self.enum):
            return f"must be one of {_short(', '.join(map(_shown, self.enum)))}"
        if self.min is not None or self.max is not None:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or (self.min is not None and value < self.min):
                return self._range()
            if self.max is not None and value > self.max:
                return self._range()
        if self.max_length is not None and not (
            isinstance(value, str | list) and len(value) <= self.max_length
        ):
            return f"may have {self.max_length} characters or elements at most"
        if self._matcher is not None and not (isinstance(value, str) and self._matcher.is_valid(value)):
            return f"must match {_short(str(self.pattern))}"
        return ""

    def __str__(self) -> str:
        """Return the bound in words, for the operator."""
        if self.forbidden:
            return "forbidden"
        parts = ["required"] if self.required else []
        if self.enum is not None:
            parts.append(f"one of {', '.join(map(_shown, self.enum))}")
        if self.min is not None or self.max is not None:
            parts.append(self._range().removeprefix("must be "))
        if self.max_length is not None:
            parts.append(f"{self.max_length} characters or elements at most")
        if self.pattern is not None:
            parts.append(f"matches {self.pattern}")
        return ", ".join(parts)

    def _range(self) -> str:
        ends = [(self.min, "or more"), (self.max, "or less")]
        return "must be " + " and ".join(
            f"{_number(end)} {relation}" for end, relation in ends if end is not None
        )


class FetchBounds(Struct, frozen=True):
    """The bounds on the URLs among a call's arguments, which also apply to what the tool fetches.

    ``by_address`` has each URL that the call gave, with the bounds of its argument.
    """

    by_address: tuple[tuple[str, tuple[ArgumentBound, ...]], ...]

    def starting_at(self, address: str, *, page: bool) -> tuple[ArgumentBound, ...]:
        """Return the bounds for a request to the URL ``address`` and for all of its redirects.

        They are the bounds of the argument that gave the URL. For a ``page`` whose URL no argument gave, the
        bounds of all arguments apply.
        """
        given = [bounds for start, bounds in self.by_address if start == address]
        if not given and page:
            given = [bounds for _, bounds in self.by_address]
        return tuple(bound for bounds in given for bound in bounds)

    @staticmethod
    def allow(address: str, bounds: Sequence[ArgumentBound]) -> bool:
        """Return whether a fetched URL meets the bounds; a URL without a canonical form does not."""
        written = canonical_url(address)
        return written is not None and not any(
            bound.forbidden or bound.violation(written) for bound in bounds
        )

    def __str__(self) -> str:
        """Return the bounds in words; equal bounds give the same text."""
        return "; ".join(f"{address}: {' + '.join(map(str, bounds))}" for address, bounds in self.by_address)


def find_violation(
    bounds: Mapping[str, ArgumentBound], arguments: Mapping[str, Any], schema: Schema
) -> tuple[str, str] | None:
    """Return the path of the first argument that breaks a bound, and the reason in words.

    Returns ``None`` if all bounds are met. Paths are dotted; ``*`` stands for every element of a list or
    every value of an object. An absent argument has the default of ``schema``.
    """
    for path, bound in bounds.items():
        if bound.required and not _all_given(arguments, path):
            return path, "is required"
        for value, written in values_at(arguments, path, schema):
            if value is ABSENT or (not written and (bound.forbidden or value is None)):
                continue
            if bound.forbidden:
                return path, "may not be given"
            problem = "cannot be judged" if value is IN_THE_WAY else bound.violation(value)
            if problem and not written:
                problem = f"must be given, since its default is not allowed: it {problem}"
            if problem:
                return path, problem
    return None


def bounds_to_json(bounds: Mapping[str, ArgumentBound]) -> str:
    """Return the bounds by path as JSON, in the form of ``policy.arguments``."""
    written = {}
    for path, bound in bounds.items():
        parts = ((field_.name, getattr(bound, field_.name)) for field_ in fields(bound) if field_.init)
        written[path] = {name: value for name, value in parts if value is not None and value is not False}
    return json.dumps(written)


def bounds_from_json(text: str) -> Mapping[str, ArgumentBound]:
    """Read what :func:`bounds_to_json` wrote; raise ``ValueError`` for anything else."""
    try:
        return {
            path: ArgumentBound(**{**parts, **({"enum": tuple(parts["enum"])} if "enum" in parts else {})})
            for path, parts in json.loads(text).items()
        }
    except (AttributeError, TypeError):
        raise ValueError("these are no bounds of arguments") from None


def _all_given(arguments: Mapping[str, Any], path: str) -> bool:
    """Return whether the model gave a value at a path, at each place that the path leads to."""
    given = [value for value, _ in values_at(arguments, path, {})]
    return bool(given) and not any(value is ABSENT for value in given)


def must_be_given(bound: ArgumentBound, path: str, schema: Schema) -> bool:
    """Return whether a bound refuses a default of its argument, so that the argument must be given."""
    if bound.required or bound.forbidden:
        return False
    return any(bound.violation(default) for default in defaults_at(path, schema) if default is not None)


def _compile(pattern: str) -> LinearPattern:
    """Compile a pattern; raise ``ValueError`` if the engine does not accept it or it grows too large."""
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern has 1 to {MAX_PATTERN} characters")
    # Compile it alone first: "a)|(b" is a regex only inside the brackets that anchor it.
    linear_pattern(pattern, _MAX_COMPILED)
    return linear_pattern(f"^(?:{pattern})$", _MAX_COMPILED)


def _same(value: Any, allowed: Scalar) -> bool:
    """Return whether two JSON values are equal: ``1`` and ``1.0`` are, ``1`` and ``true`` are not."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _shown(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else text[: _MAX_WORDS - 1] + "…"
