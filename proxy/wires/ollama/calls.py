"""Calls and their results in Ollama's messages.

WIRE: ids came late to this dialect.  Its Python client drops them, LangChain drops the names of results on
top, and no server needs them.  So a call is what it says, its name and arguments, and a result belongs to a
call by its id, else by its name, else by its place.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.wires.turn.digest import canonical_arguments

__all__ = ["Call", "calls_of", "keys_of", "pair", "role_of"]

_DIGEST: Final = 24


class Call(NamedTuple):
    """A call as it stands in a message; ``call_id`` is empty for none, ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str

    @property
    def says(self) -> tuple[str, str]:
        """Name and arguments in one form, whichever library wrote them."""
        return self.name, str(canonical_arguments(self.arguments))


def role_of(message: Mapping[str, Any]) -> str:
    """The role of a message.  Servers ignore its case."""
    role = message.get("role")
    return role.lower() if isinstance(role, str) else ""


def calls_of(message: Mapping[str, Any]) -> Sequence[Call]:
    """The calls of a message, without those that name no tool."""
    listed = message.get("tool_calls")
    return list(_read(listed)) if isinstance(listed, list) else ()


def _read(listed: Sequence[Any]) -> Iterator[Call]:
    for call in listed:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
            continue
        call_id, arguments = call.get("id"), function.get("arguments")
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
        yield Call(call_id if isinstance(call_id, str) else "", name, text)


def keys_of(calls: Sequence[tuple[str, str]]) -> Sequence[str]:
    """A key for each call of a message by its name and arguments; of equal calls the second has another."""
    found: list[str] = []
    seen: dict[tuple[str, str], int] = {}
    for says in calls:
        number = seen[says] = seen.get(says, 0) + 1
        digest = hashlib.blake2b(orjson.dumps([*says, number]), digest_size=_DIGEST // 2)
        found.append(f"call_{digest.hexdigest()}")
    return found


def pair(calls: Sequence[Call], results: Sequence[Mapping[str, Any]]) -> Sequence[int | None]:
    """For each result the place of the call that it answers; ``None`` for one that answers none of them.

    Two equal calls are told apart by the order of their results alone.
    """
    ids = {call.call_id: place for place, call in enumerate(calls) if call.call_id}
    # A result that names its call takes it first, wherever it stands.
    named = [ids.get(str(result.get("tool_call_id") or "")) for result in results]
    unanswered = set(range(len(calls))).difference(named)
    # The places of the calls of each name, and under "" of all; those that are answered meanwhile stay in.
    in_order = sorted(unanswered)
    queues: dict[str, deque[int]] = {"": deque(in_order)}
    for one in in_order:
        queues.setdefault(calls[one].name, deque()).append(one)
    found: list[int | None] = []
    for result, place in zip(results, named, strict=True):
        if place is None:
            name = result.get("tool_name") or result.get("name") or ""
            queue = queues.get(name) if isinstance(name, str) else None
            place = _first(queue, unanswered) if queue else None
        found.append(place)
    return found


def _first(queue: deque[int], unanswered: set[int]) -> int | None:
    """Take the first place of a queue that is unanswered; ``None`` where none is."""
    while queue:
        if (place := queue.popleft()) in unanswered:
            unanswered.remove(place)
            return place
    return None
