"""The rules, as data, for how the fields of a dialect's requests are translated to another dialect."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import orjson
from msgspec import Struct

from proxy.base.conversation import Loss, Native

_INDEX = re.compile(r"\[\d+\]")
_DATE = re.compile(r"_20\d{6}(?=\]$)")
"""The date that ends the types of Anthropic's own tools; a newer one is the same tool."""


class Rule(Struct, frozen=True):
    """What happens to a field.

    ``translated`` fields become the aspects ``to`` (see :data:`.ASPECTS`) or, in the other
    direction, the field ``to`` of the body. For every other field ``reason`` says why it is not translated.
    """

    handling: Literal["translated"] | Loss
    to: tuple[str, ...] = ()
    reason: str = ""


def translated(*to: str) -> Rule:
    """Return the rule for a field that is translated."""
    return Rule("translated", to)


def unneeded(reason: str) -> Rule:
    """Return the rule for a field without which the answer is the same."""
    return Rule("unneeded", reason=reason)


def omitted(reason: str) -> Rule:
    """Return the rule for a field that is left out, which is reported."""
    return Rule("omitted", reason=reason)


def refused(reason: str) -> Rule:
    """Return the rule for a field for which the request is refused."""
    return Rule("refused", reason=reason)


def inverse(read: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rule for writing each aspect: as the first field that is read as this aspect."""
    found: dict[str, Rule] = {}
    for name, rule in read.items():
        for aspect in rule.to:
            found.setdefault(aspect, translated(name))
    return found


UNKNOWN_FIELD: Final = refused("This proxy does not know the field, so it cannot translate it.")
UNKNOWN_VALUE: Final = refused("This proxy does not know the value, so it cannot translate it.")


class FieldTable(Struct, frozen=True):
    """How a dialect handles every field.

    ``read`` is the rule for each field of its requests, by path (``messages[].name``); a part, item or tool
    of a certain type has the path ``input[type=web_search_call]``. ``written`` is the rule by which its
    bodies express each aspect of a conversation. ``unknown`` is the rule for all other fields.
    """

    dialect: str
    read: Mapping[str, Rule]
    written: Mapping[str, Rule]
    unknown: Rule = UNKNOWN_FIELD

    def native(self, value: Any, path: str, keys: tuple[str, ...] = (), kind: str = "") -> Native:
        """Return something that no other dialect has a form for; ``kind`` is its type, if it has one."""
        place = general_path(path)
        if kind:
            place = f"{place.removesuffix('[]')}[type={kind}]"
        rule = self.read.get(place) or self.read.get(_DATE.sub("", place), self.unknown)
        if rule.handling == "translated":
            rule = UNKNOWN_VALUE
        loss = cast("Loss", rule.handling)
        return Native(self.dialect, keys, path, orjson.dumps(value), loss, rule.reason)


def general_path(path: str) -> str:
    """Return a path without the indices in it: ``messages[].name``."""
    return _INDEX.sub("[]", path)
