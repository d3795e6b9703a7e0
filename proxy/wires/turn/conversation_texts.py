"""The texts of a request's conversation, for code that reads or replaces them whatever the dialect.

A dialect names the members that hold its conversation, and those in it that are no text of anybody: ids,
types, encoded files. Within the arguments of a call every text counts. Only the members that change are
written anew; the rest of the body keeps its bytes.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.hooks.contract import RequestText
from proxy.json.splice import join_object, members
from proxy.wires.dialect import Dialect

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class _Place(Struct):
    """Where a text stands: under a key, or between two places of the JSON text there."""

    holder: Any
    key: Any
    text: str
    begin: int = -1
    end: int = -1


class ConversationTexts:
    """The texts of one body, in their order."""

    def __init__(self, dialect: Dialect, raw: bytes) -> None:
        """``raw`` is a JSON object, checked as the body of a request."""
        self._raw = raw
        self._turns = dialect.turns
        self._parts = members(raw)
        names = [name for name in dialect.fields.texts if name in self._parts]
        self._loaded: dict[str, Any] = {name: orjson.loads(self._parts[name]) for name in names}
        self._places: list[_Place] = []
        self._roles: list[str] = []
        for name in names:
            self._find(self._loaded, name, name, is_free=False, is_top=True)

    @property
    def texts(self) -> tuple[RequestText, ...]:
        """The texts with their roles."""
        found = zip(self._roles, self._places, strict=True)
        return tuple(RequestText(role, place.text) for role, place in found)

    def written(self, texts: Sequence[RequestText], model: str = "") -> bytes:
        """Return the body with other texts in the same places, and another model unless it is empty."""
        changed = [
            (place, new.text)
            for place, new in zip(self._places, texts, strict=True)
            if new.text != place.text
        ]
        # From the end, so that the places before it in the same JSON text stay right.
        for place, text in reversed(changed):
            if place.begin >= 0:
                whole = place.holder[place.key]
                text = whole[: place.begin] + json.dumps(text, ensure_ascii=False) + whole[place.end :]
            place.holder[place.key] = text
        if not (changed or model):
            return self._raw
        parts = dict(self._parts)
        if changed:
            parts |= {name: orjson.dumps(value) for name, value in self._loaded.items()}
        if model:
            parts["model"] = orjson.dumps(model)
        return join_object(parts)

    def _find(self, holder: Any, key: Any, role: str, *, is_free: bool, is_top: bool = False) -> None:
        value = holder[key]
        if isinstance(value, str):
            if value and (is_free or is_top or not self._is_opaque(holder, key)):
                self._add(holder, key, value, role, is_json=key in self._turns.json_texts and not is_free)
            return
        if isinstance(value, dict):
            if isinstance(named := value.get("role"), str) and not is_free:
                role = named
            is_named = key in self._turns.values
            for name in value:
                is_inner = is_free or self._frees(name, value[name])
                self._find(value, name, role, is_free=is_inner, is_top=is_named)
        elif isinstance(value, list):
            for place in range(len(value)):
                # The strings of a list are what its name says.
                if isinstance(value[place], str) and not is_free and self._is_opaque({}, key):
                    continue
                self._find(value, place, role, is_free=is_free)

    def _frees(self, name: str, value: Any) -> bool:
        """Return whether the names within a member are a tool's own."""
        return name in self._turns.free and isinstance(value, dict | list)

    def _is_opaque(self, holder: Any, key: Any) -> bool:
        if key not in self._turns.opaque:
            return False
        # A document of plain text has it where others have base64.
        return not (key == "data" and holder.get("type") == "text")

    def _add(self, holder: Any, key: Any, value: str, role: str, *, is_json: bool) -> None:
        if not (is_json and _is_object(value)):
            self._places.append(_Place(holder, key, value))
            self._roles.append(role)
            return
        # Each string of valid JSON ends, so the search takes linear time.
        for found in _STRING.finditer(value):
            text = json.loads(found[0])
            if text:
                self._places.append(_Place(holder, key, text, found.start(), found.end()))
                self._roles.append(role)


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict | list)
    except ValueError:  # Also for a text with a lone surrogate.
        return False
