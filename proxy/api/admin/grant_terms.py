"""Reads the terms of a grant, in the same way from headers, messages, the admin API, the UI and the command
line."""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from proxy.base.errors import RequestError
from proxy.config.types import BoundConfig, Bounds
from proxy.relay.approvals.grants import GrantTerms
from proxy.tools.running.granted import ArgumentLimits

GRANT_EXAMPLE: Final = '{"for": "1h"} or {"conversation": true}'

_FIELDS: Final = ("for", "conversation", "arguments")
_DURATION: Final = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BOUNDS: Final[TypeAdapter[dict[str, dict[str, BoundConfig]]]] = TypeAdapter(Bounds)
_MOST_BOUNDS: Final = 32
_MOST_VALUES: Final = 100
_LONGEST_VALUE: Final = 1000


def read_terms(value: Any, at: str = "grant") -> GrantTerms:
    """Read what a grant covers: how long (``for``), whether only this ``conversation``, and the limits on
    ``arguments``, written as in ``policy.arguments`` below the name of a tool.

    ``at`` is the place of the value, for messages. Raises :class:`~proxy.base.errors.RequestError` (400) that
    names the field.
    """
    if not isinstance(value, dict):
        raise _fault(at, f"must be a JSON object like {GRANT_EXAMPLE}")
    for name in value:
        if name not in _FIELDS:
            raise _fault(at, f"has the unknown field {name[:40]!r}; write one of {', '.join(_FIELDS)}")
    conversation = value.get("conversation", False)
    if not isinstance(conversation, bool):
        raise _fault(f"{at}.conversation", "must be true or false")
    seconds = _seconds(value.get("for"), f"{at}.for")
    if seconds is None and not conversation:
        raise _fault(at, f"must say how long or for which conversation, like {GRANT_EXAMPLE}")
    return GrantTerms(seconds, conversation, _read_limits(value.get("arguments", {}), f"{at}.arguments"))


def _seconds(value: Any, place: str) -> float | None:
    if value is None:
        return None
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise _fault(place, 'must be a duration like "30m", "1h" or "7d"')
    return int(match[1]) * _SECONDS[match[2]]


def _read_limits(value: Any, at: str) -> ArgumentLimits:
    if not isinstance(value, dict) or len(value) > _MOST_BOUNDS:
        raise _fault(
            at, f'must be an object of at most {_MOST_BOUNDS} limits like {{"amount": {{"max": 100}}}}'
        )
    try:
        # Bounds belong to a pattern of tools; a grant is for the tool of its approval, so any pattern does.
        bounds = _BOUNDS.validate_python({"*": value})["*"]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))
        raise _fault(f"{at}.{place[:100]}" if place else at, first["msg"]) from None
    for path, bound in bounds.items():
        values = bound.enum or ()
        if len(values) > _MOST_VALUES or any(
            isinstance(value, str) and len(value) > _LONGEST_VALUE for value in values
        ):
            raise _fault(
                f"{at}.{path[:100]}.enum",
                f"must have at most {_MOST_VALUES} values of at most {_LONGEST_VALUE} characters",
            )
    return ArgumentLimits({path: bound.bound() for path, bound in bounds.items()})


def _fault(place: str, problem: str) -> RequestError:
    return RequestError(400, f"{place} {problem}.", param=place)
