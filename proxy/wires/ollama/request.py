"""Ollama's chat: reads the client's request.

Source: Ollama's API reference, "Generate a chat completion", and its request type ``ChatRequest``.

WIRE: ids came late to this dialect. Its Python client drops them, LangChain also drops the names of results,
and no server needs them. So the proxy identifies a call by its name and arguments. It matches a result to a
call by id, else by name, else by position.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from proxy.base.errors import RequestError
from proxy.base.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, read_chosen
from proxy.wires.message_list.request import JsonMessage, MessageListRequest
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Speaker
from proxy.wires.turn.digest import canonical_arguments
from proxy.wires.turn.request_members import (
    answers_server_call,
    declared_names,
    listed_messages,
    listed_tools,
    model_name,
    preview_of,
)

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
    # The positions of the calls by name, and under "" of all calls. Answered calls stay in the queues.
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


_SPEAKERS: Final[Mapping[str, Speaker]] = {
    "system": "system",
    "developer": "system",
    "assistant": "model",
    "tool": "tool",
}


@value_class
class OllamaRequest(MessageListRequest):
    """The parts of a request that the proxy needs.

    ``system`` is the system prompt of a completion; a chat has its own among the messages.
    """

    system: str = ""

    dialect_name: ClassVar[str] = "ollama"

    def _system_text(self, rule: SystemRule) -> str | None:
        return self.system or None

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Check that no result answers a server tool's call, and that no call has two results."""
        for position, message in enumerate(self.messages):
            results = self._results(position + 1) if role_of(message) == "assistant" else []
            calls = calls_of(message)
            places = pair(calls, results)
            seen: set[int] = set()
            for place, answered in enumerate(places):
                at = position + 1 + place
                if answered is None:
                    continue
                if reserved(calls[answered].name):
                    raise answers_server_call(f"messages[{at}].tool_name")
                if answered in seen:
                    param = f"messages[{at}].tool_call_id"
                    said = f"{param} answers a call that already has a result."
                    raise RequestError(400, said, param=param)
                seen.add(answered)
            name = message.get("tool_name")
            if role_of(message) == "tool" and isinstance(name, str) and reserved(name):
                raise answers_server_call(f"messages[{position}].tool_name")

    def _results(self, start: int) -> list[Mapping[str, Any]]:
        """Return the results that follow each other from a position on."""
        following = map(self.messages.__getitem__, range(start, len(self.messages)))
        return list(itertools.takewhile(lambda message: self.answered_ids(message) is not None, following))

    @classmethod
    def speaker(cls, message: JsonMessage) -> Speaker:
        return _SPEAKERS.get(role_of(message), "user")

    @classmethod
    def _text(cls, message: JsonMessage) -> str | None:
        content = message.get("content") or ""
        return content if isinstance(content, str) and not message.get("images") else None

    @classmethod
    def _identity(cls, message: JsonMessage) -> list[Any]:
        # Libraries drop ids and thoughts, write the arguments of calls anew, and may leave out the name of a
        # result.
        role, content = role_of(message), message.get("content") or ""
        return [
            "system" if role == "developer" else role,
            content.strip() if isinstance(content, str) else content,
            message.get("images") or None,
            [call.identity for call in calls_of(message)],
        ]

    @classmethod
    def _calls(cls, message: JsonMessage) -> Sequence[tuple[str, Any]]:
        # The client's ids are keys that the proxy makes of names and arguments, because libraries drop ids.
        calls = calls_of(message)
        return list(zip(keys_of([call.identity for call in calls]), calls, strict=True))

    @classmethod
    def _has_calls(cls, message: JsonMessage) -> bool:
        return bool(message.get("tool_calls"))

    @classmethod
    def answered_ids(cls, message: JsonMessage) -> Sequence[str] | None:
        return [str(message.get("tool_call_id") or "")] if role_of(message) == "tool" else None

    def used_ids(self) -> frozenset[str]:
        """Return the call ids in the history; a new call must have another id."""
        return frozenset(call.call_id for _, message in self._model_messages() for call in calls_of(message))

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        message = self.messages[position]
        calls = calls_of(message)
        if not calls:
            return True
        text = message.get("content")
        if text and not (isinstance(text, str) and is_shown(text)):
            return False
        made = calls_of(orjson.loads(held["messages"][-1]))
        shown = {call["call_id"] for call in held["calls"] if call["client_id"] is not None}
        theirs = [call.identity for call in made if call.call_id in shown]
        if [call.identity for call in calls] != theirs:
            return False
        places = pair(calls, self._results(position + 1))
        return None not in places and len(set(places)) == len(places)


def parse_ollama_request(payload: Mapping[str, Any]) -> OllamaRequest:
    """Read the parts of a request that the proxy needs; the upstream checks the rest.

    A request without messages only loads the model. Raises :class:`RequestError` for a model that is missing
    or no name, messages that are no list of objects, tools that are no list and a tool that is declared
    twice.
    """
    model = model_name(payload)
    messages = listed_messages(payload) if payload.get("messages") is not None else []
    return OllamaRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is not False,
        messages=messages,
        declared=declared_names(tools := listed_tools(payload), declared_name, "tools[{}].function.name"),
        tool_count=len(tools),
        wants_json=bool(payload.get("format")),
        preview=_preview(messages),
        # A request to load the model asks it nothing.
        tools_forbidden=not messages,
        chosen=read_chosen(tools) if tools else NOTHING_CHOSEN,
    )


def declared_name(tool: Any) -> str | None:
    """Return the name of one element of ``tools``, if it has one."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _preview(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if role_of(message) == "user" and isinstance(text := message.get("content"), str) and text:
            return preview_of(text)
    return ""
