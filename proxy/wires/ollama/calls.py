"""Reads calls and their results in Ollama's messages, and matches them.

WIRE: ids came late to this dialect.  Its Python client drops them, LangChain also drops the names of results,
and no server needs them.  So the proxy identifies a call by its name and arguments.  It matches a result to a
call by id, else by name, else by position.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.wires.turn.digest import canonical_arguments

_DIGEST: Final = 24


class Call(NamedTuple):
    """A call in a message; ``call_id`` is empty if it has none, ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str

    @property
    def identity(self) -> tuple[str, str]:
        """Name and canonical arguments, the same whichever library wrote them; it may hold numbers as
        doubles."""
        try:
            rounded = orjson.dumps(orjson.loads(self.arguments)).decode()
        except orjson.JSONDecodeError:
            return self.name, self.arguments
        return self.name, str(canonical_arguments(rounded))


def role_of(message: Mapping[str, Any]) -> str:
    """Return the role of a message in lower case, because servers ignore its case."""
    role = message.get("role")
    return role.lower() if isinstance(role, str) else ""


def calls_of(message: Mapping[str, Any]) -> Sequence[Call]:
    """Return the calls of a message, without calls that name no tool."""
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
    """Return a key for each call, from its name and arguments; equal calls get different keys."""
    found: list[str] = []
    seen: dict[tuple[str, str], int] = {}
    for identity in calls:
        number = seen[identity] = seen.get(identity, 0) + 1
        digest = hashlib.blake2b(orjson.dumps([*identity, number]), digest_size=_DIGEST // 2)
        found.append(f"call_{digest.hexdigest()}")
    return found


def pair(calls: Sequence[Call], results: Sequence[Mapping[str, Any]]) -> Sequence[int | None]:
    """Return for each result the position of the call that it answers; ``None`` if it answers none.

    Equal calls are distinguished only by the order of their results.
    """
    ids = {call.call_id: place for place, call in enumerate(calls) if call.call_id}
    # A result with the id of its call takes that call first, wherever the result stands.
    named = [ids.get(str(result.get("tool_call_id") or "")) for result in results]
    unanswered = set(range(len(calls))).difference(named)
    # The positions of the calls by name, and under "" of all calls.  Answered calls stay in the queues.
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
    """Take the first unanswered position of a queue; ``None`` if there is none."""
    while queue:
        if (place := queue.popleft()) in unanswered:
            unanswered.remove(place)
            return place
    return None
