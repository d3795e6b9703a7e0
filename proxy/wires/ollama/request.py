"""Ollama's chat: reads the client's request.

Source: Ollama's API reference, "Generate a chat completion", and its request type ``ChatRequest``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import orjson

from proxy.errors import ModelMissing, RequestError
from proxy.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, Chosen, read_chosen
from proxy.wires.client_port import Answer, ReturnedCalls
from proxy.wires.ollama.calls import calls_of, keys_of, pair, role_of
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Speaker
from proxy.wires.turn.declared import listed_tools
from proxy.wires.turn.digest import PrefixDigests, conversation_digest

__all__ = ["OllamaRequest", "declared_name", "parse_ollama_request"]

_PREVIEW: Final = 120


@value_class
class OllamaRequest:
    """The parts of a request that the proxy needs; ``members`` are the names of its members."""

    members: Collection[str]
    model: str
    stream: bool
    messages: Sequence[Mapping[str, Any]]
    declared: tuple[str, ...]
    wants_json: bool
    preview: str
    tools_forbidden: bool = False
    forced: frozenset[str] | None = None
    people: str = ""
    has_proxy_calls: bool = False
    choices: int = 1
    background: bool = False
    continues: str | None = None
    conversation: str = ""
    references: tuple[str, ...] = ()
    may_store: bool = True
    max_calls: int | None = None
    open_names: bool = False
    chosen: Chosen = NOTHING_CHOSEN
    _beginnings: PrefixDigests = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_beginnings", PrefixDigests(self.messages, _visible, _speaker, _said))

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
                    raise _answers_ours(f"messages[{at}].tool_name")
                if answered in seen:
                    param = f"messages[{at}].tool_call_id"
                    said = f"{param} answers a call that already has a result."
                    raise RequestError(400, said, param=param)
                seen.add(answered)
            name = message.get("tool_name")
            if role_of(message) == "tool" and isinstance(name, str) and reserved(name):
                raise _answers_ours(f"messages[{position}].tool_name")

    def _results(self, start: int) -> list[Mapping[str, Any]]:
        """Return the results that follow each other from a position on."""
        end = start
        while end < len(self.messages) and role_of(self.messages[end]) == "tool":
            end += 1
        return list(self.messages[start:end])

    @property
    def returns_calls(self) -> bool:
        return True

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        return [
            ReturnedCalls(position, frozenset(keys_of([call.identity for call in calls])))
            for position, message in self._answering()
            if (calls := calls_of(message))
        ]

    def _answering(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the messages of the model, each with its position."""
        for position, message in enumerate(self.messages):
            if role_of(message) == "assistant":
                yield position, message

    def used_ids(self) -> frozenset[str]:
        """Return the call ids in the history; a new call must have another id."""
        return frozenset(call.call_id for _, message in self._answering() for call in calls_of(message))

    def answers(self) -> Sequence[Answer]:
        return [
            Answer(position, text)
            for position, message in self._answering()
            if not message.get("tool_calls")
            and not message.get("images")
            and isinstance(text := message.get("content"), str)
            and text
        ]

    def answer_key(
        self, caller: str, shape: str, text: str, upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("ollama answer", caller, shape, self.model, text.strip())
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("ollama", caller, self.model, *sorted(call_ids))
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def identity_words(self, caller: str) -> tuple[str, ...]:
        return ("ollama", caller, self.model)

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        return self._beginnings.evidence(upto, rule)

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


def _answers_ours(param: str) -> RequestError:
    return RequestError(
        400,
        f"{param} answers a call of a server tool, which only the proxy may answer. "
        "Remove the call and its result.",
        param=param,
    )


def _speaker(message: Mapping[str, Any]) -> Speaker:
    role = role_of(message)
    if role in ("system", "developer"):
        return "system"
    return "model" if role in ("assistant", "tool") else "user"


def _said(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    return content if isinstance(content, str) and not message.get("images") else None


def _visible(message: Mapping[str, Any]) -> list[Any]:
    """Return what identifies a message, whichever client library sends it back.

    Libraries drop ids and thoughts, write the arguments of calls anew, and may leave out the name of a
    result.
    """
    role, content = role_of(message), message.get("content") or ""
    return [
        "system" if role == "developer" else role,
        content.strip() if isinstance(content, str) else content,
        message.get("images") or None,
        [call.identity for call in calls_of(message)],
    ]


def parse_ollama_request(payload: Mapping[str, Any]) -> OllamaRequest:
    """Read the parts of a request that the proxy needs; the upstream checks the rest.

    A request without messages only loads the model.  Raises :class:`RequestError` for a model that is missing
    or no name, messages that are no list of objects, tools that are no list and a tool that is declared
    twice.
    """
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise ModelMissing()
    messages = payload.get("messages")
    if messages is None:
        messages = []
    if not isinstance(messages, list):
        raise RequestError(400, "messages must be a list of messages.", param="messages")
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise RequestError(400, f"messages[{position}] must be an object.", param=f"messages[{position}]")
    return OllamaRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is not False,
        messages=messages,
        declared=_declared(tools := listed_tools(payload)),
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


def _declared(tools: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the declared tools; raise :class:`RequestError` for a repeated one."""
    names: dict[str, None] = {}
    for position, tool in enumerate(tools):
        name = declared_name(tool)
        if name in names:
            param = f"tools[{position}].function.name"
            raise RequestError(400, f"The tool {(name or '')[:64]!r} is declared twice.", param=param)
        if name is not None:
            names[name] = None
    return tuple(names)


def _preview(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if role_of(message) == "user" and isinstance(text := message.get("content"), str) and text:
            return text[:_PREVIEW]
    return ""
