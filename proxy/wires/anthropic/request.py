"""Messages: reads the client's request.

Source: Anthropic's API reference, "Create a message".
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import orjson

from proxy.errors import ModelMissing, RequestError
from proxy.values import value_class
from proxy.wires.anthropic.blocks import Block, blocks_of, blocks_text, called_blocks, has_ours
from proxy.wires.anthropic.mcp_servers import chosen_tools
from proxy.wires.chosen import NOTHING_CHOSEN, Chosen
from proxy.wires.client_port import Answer, ReturnedCalls
from proxy.wires.past.clock import SystemRule, without_clock
from proxy.wires.past.evidence import Evidence, Speaker
from proxy.wires.turn.declared import listed_tools
from proxy.wires.turn.digest import PrefixDigests, conversation_digest
from proxy.wires.turn.texts import joined_texts

__all__ = ["AnthropicRequest", "declared_name", "parse_anthropic_request"]

_MAX_CALL_ID: Final = 256
_PREVIEW: Final = 120
_UNSEEN: Final = frozenset({"thinking", "redacted_thinking"})
"""Blocks that some clients do not send back."""
_NOT_OF_ANSWERS: Final = frozenset({"tool_use", "tool_result", "image", "document"})
_BILLING: Final = "x-anthropic-billing-header:"
"""A line that Claude Code writes about itself before its system prompt; it differs in each request."""


@value_class
class AnthropicRequest:
    """The parts of a request that the proxy needs.

    ``members`` are the names of the body's members.  ``people`` is the user in ``metadata.user_id``.
    ``eager`` are the tools with ``eager_input_streaming``.
    """

    members: Collection[str]
    model: str
    stream: bool
    messages: Sequence[Mapping[str, Any]]
    declared: tuple[str, ...]
    tools_forbidden: bool
    forced: frozenset[str] | None
    wants_json: bool
    preview: str
    system: str = ""
    people: str = ""
    has_proxy_calls: bool = False
    eager: frozenset[str] = frozenset()
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
        """Check that every result answers one open call of the assistant message before it, once."""
        calls: dict[str, str] = {}
        answered: set[str] = set()
        for position, message in enumerate(self.messages):
            if message.get("role") == "assistant":
                calls = {call["id"]: str(call.get("name")) for call in called_blocks(message.get("content"))}
                answered = set()
                continue
            content = message.get("content")
            for place, block in enumerate(content if isinstance(content, list) else ()):
                if isinstance(block, dict) and block.get("type") == "tool_result":
                    param = f"messages[{position}].content[{place}].tool_use_id"
                    _check_result(param, block.get("tool_use_id"), calls, answered, reserved)

    @property
    def returns_calls(self) -> bool:
        return True

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        return [
            ReturnedCalls(position, frozenset([call["id"] for call in calls]))
            for position, message in self._answering()
            if (calls := called_blocks(message.get("content")))
        ]

    def _answering(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the messages of the model, each with its position."""
        for position, message in enumerate(self.messages):
            if message.get("role") == "assistant":
                yield position, message

    def used_ids(self) -> frozenset[str]:
        """Return the call ids in the history; a new call must have another id."""
        calls = [call for _, message in self._answering() for call in called_blocks(message.get("content"))]
        return frozenset([call["id"] for call in calls])

    def answers(self) -> Sequence[Answer]:
        return [
            Answer(position, text)
            for position, message in self._answering()
            if (text := _answer_text(blocks_of(message.get("content"))))
        ]

    def answer_key(
        self, caller: str, shape: str, text: str, upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        system = self._system_text(rule)
        words = ("anthropic answer", caller, self.people, shape, self.model, system, text.strip())
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("anthropic", caller, self.people, self.model, *sorted(call_ids))
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def identity_words(self, caller: str) -> tuple[str, ...]:
        return ("anthropic", caller, self.people, self.model)

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        found = self._beginnings.evidence(upto, rule)
        return found and replace(
            found, system=found.system + self._system_text(rule).encode("utf-8", "surrogatepass")
        )

    def _system_text(self, rule: SystemRule) -> str:
        """Return the system prompt in the form in which it is compared."""
        if rule == "ignore":
            return ""
        system = self.system.strip()
        return without_clock(system) if rule == "clock" else system

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        content = self.messages[position].get("content")
        calls = called_blocks(content)
        if not calls:
            return True
        text = blocks_text(blocks_of(content))
        if text and not is_shown(text):
            return False
        made = {call["id"]: call for call in called_blocks(orjson.loads(held["messages"][-1])["content"])}
        shown = {call["client_id"]: made.get(call["call_id"]) for call in held["calls"]}
        shown.pop(None, None)
        if not self._answered_once(position + 1, shown):
            return False
        return len(calls) == len(shown) and all(_is_call(call, shown.get(call["id"])) for call in calls)

    def _answered_once(self, start: int, shown: Collection[str]) -> bool:
        """Return whether the results from a position on belong to these calls alone, at most one to each."""
        following = itertools.takewhile(
            lambda message: message.get("role") != "assistant", itertools.islice(self.messages, start, None)
        )
        answered = [
            str(block.get("tool_use_id"))
            for message in following
            for block in blocks_of(message.get("content"))
            if block.get("type") == "tool_result"
        ]
        return len(set(answered)) == len(answered) and set(answered) <= set(shown)


def _check_result(
    param: str,
    call_id: Any,
    calls: Mapping[str, str],
    answered: set[str],
    reserved: Callable[[str], bool],
) -> None:
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(400, f"{param} must name the call that this result answers.", param=param)
    if len(call_id) > _MAX_CALL_ID:
        raise RequestError(400, f"{param} is longer than {_MAX_CALL_ID} characters.", param=param)
    if call_id not in calls:
        raise RequestError(
            400,
            f"{param} does not match a call of the assistant message before it. Remove the result.",
            param=param,
        )
    if call_id in answered:
        raise RequestError(400, f"{param} answers a call that already has a result.", param=param)
    if reserved(calls[call_id]):
        raise RequestError(
            400,
            f"{param} answers a call of a server tool, which only the proxy may answer. "
            "Remove the call and its result.",
            param=param,
        )
    answered.add(call_id)


def _is_call(call: Mapping[str, Any], made: Mapping[str, Any] | None) -> bool:
    """Return whether a call that a client sends back is the one that a model made, apart from its id."""
    return made is not None and all(
        (call.get(key) or {}) == (made.get(key) or {}) for key in ("name", "input")
    )


def _answer_text(blocks: Sequence[Block]) -> str:
    """Return the text of an answer; empty for a message with calls, results, images or documents."""
    if any(block.get("type") in _NOT_OF_ANSWERS for block in blocks):
        return ""
    return blocks_text(blocks)


def _speaker(message: Mapping[str, Any]) -> Speaker:
    role = message.get("role")
    if role in ("system", "developer"):
        return "system"
    answers = any(block.get("type") == "tool_result" for block in blocks_of(message.get("content")))
    return "model" if role == "assistant" or answers else "user"


def _said(message: Mapping[str, Any]) -> str | None:
    spoken = _neutral(message.get("content"))
    return "\n".join(spoken) if all(isinstance(part, str) for part in spoken) else None


def _visible(message: Mapping[str, Any]) -> list[Any]:
    """Return what identifies a message, whichever client library sends it back.

    Clients move ``cache_control`` from one request to the next, drop thoughts, add fields that are null, and
    write one text as a string or as a block.
    """
    return [message.get("role"), _neutral(message.get("content"))]


def _neutral(content: Any) -> list[Any]:
    found: list[Any] = []
    for block in blocks_of(content):
        kind = block.get("type")
        if kind in _UNSEEN:
            continue
        if kind == "text":
            found.append(str(block.get("text") or ""))
        else:
            said = {
                key: value for key, value in block.items() if key != "cache_control" and value is not None
            }
            if kind == "tool_result":
                said["content"] = _neutral(said.get("content"))
            found.append(said)
    # Whitespace around a text is removed, because libraries trim it.
    trimmed = [part.strip() if isinstance(part, str) else part for part in joined_texts(found)]
    return [part for part in trimmed if part != ""]


def parse_anthropic_request(payload: Mapping[str, Any]) -> AnthropicRequest:
    """Read the parts of a request that the proxy needs; the upstream checks the rest.

    Raises :class:`RequestError` for a model or messages that are missing or of the wrong type, for tools that
    are no list and for a tool that is declared twice.
    """
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise ModelMissing()
    messages = payload.get("messages")
    if not isinstance(messages, list):
        raise RequestError(400, "messages must be a list of messages.", param="messages")
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise RequestError(400, f"messages[{position}] must be an object.", param=f"messages[{position}]")
    choice = payload.get("tool_choice")
    kind, named = (choice.get("type"), choice.get("name")) if isinstance(choice, dict) else (None, None)
    return AnthropicRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is True,
        messages=messages,
        declared=_declared(tools := listed_tools(payload)),
        tools_forbidden=kind == "none",
        forced=frozenset([named]) if kind == "tool" and isinstance(named, str) else None,
        wants_json=_wants_json(payload),
        preview=_preview(messages),
        system=_system(payload.get("system")),
        people=_people(payload.get("metadata")),
        has_proxy_calls=any(
            has_ours(block)
            for message in messages
            if message.get("role") == "assistant"
            for block in blocks_of(message.get("content"))
        ),
        eager=frozenset(
            [
                name
                for tool in tools
                if (name := declared_name(tool)) and tool.get("eager_input_streaming") is True
            ]
        ),
        chosen=chosen_tools(payload, tools) if tools or "mcp_servers" in payload else NOTHING_CHOSEN,
    )


def declared_name(tool: Any) -> str | None:
    """Return the name of one element of ``tools``, or of a choice, if it has one."""
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else None


def _declared(tools: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the declared tools, including the provider's; raise for a repeated one."""
    names: dict[str, None] = {}
    for position, tool in enumerate(tools):
        name = declared_name(tool)
        if name in names:
            param = f"tools[{position}].name"
            raise RequestError(400, f"The tool {(name or '')[:64]!r} is declared twice.", param=param)
        if name is not None:
            names[name] = None
    return tuple(names)


def _wants_json(payload: Mapping[str, Any]) -> bool:
    """Return whether the answer must be JSON, by the field or by the older field of a beta."""
    config = payload.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    return isinstance(wanted or payload.get("output_format"), dict)


def _system(system: Any) -> str:
    blocks = blocks_of(system)
    return blocks_text(block for block in blocks if not str(block.get("text")).startswith(_BILLING))


def _people(metadata: Any) -> str:
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) else ""


def _preview(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user" and (text := blocks_text(blocks_of(message.get("content")))):
            return text[:_PREVIEW]
    return ""
