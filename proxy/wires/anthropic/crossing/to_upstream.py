"""Writes a conversation as the body of a Messages request.

Source: Anthropic's API reference, "Create a Message", and the errors with which the API refuses a body:
results must come first in the message after their calls, no text is empty, the first message is the user's.

Sources for ``strict``, which takes less of JSON Schema than OpenAI's: ``ToolParam.strict`` and
``lib/_parse/_transform.py`` of the ``anthropic`` package; "JSON Schema limitations" in
https://platform.claude.com/docs/en/build-with-claude/structured-outputs; "tools.25.custom: For 'integer'
type, properties maximum, minimum are not supported" (github.com/earendil-works/pi/issues/9953).

Sources for thinking: Anthropic's guides "Effort" and "Thinking", and the SDK's types ``ThinkingConfigParam``
and ``ThinkingTypes``. An effort alone leaves the models of 4.6 to 4.8 without thinking; later ones think by
default. Sonnet 5.5 refuses ``disabled`` and takes ``between_tools`` instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from proxy.base.conversation import (
    Audio,
    Conversation,
    CustomTool,
    File,
    FunctionTool,
    Image,
    Inline,
    Message,
    NativePart,
    NativeTool,
    Part,
    Reasoning,
    ReasoningSettings,
    Refusal,
    Remote,
    Source,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.base.globs import fits
from proxy.schemas.portable import follow, repaired, subschemas
from proxy.wires.anthropic.crossing.fields import KEEPER
from proxy.wires.crossing.ledger import Ledger, fitting_id, without_none
from proxy.wires.crossing.media import omit_detail
from proxy.wires.profile import Profile
from proxy.wires.turn.arguments import arguments_object

_MOST_ID: Final = 64
_MOST_NAME: Final = 128
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_UNANSWERED: Final = "This call was not answered."
_BEFORE: Final = "(continued)"
_MAX_TOKENS: Final = 8192
"""The limit for a model that is not known, if the client sets none; Messages needs one."""
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "none": "none", "required": "any"}


def without_reasoning(conversation: Conversation) -> Conversation:
    """Turn thinking off: with it, each turn with calls must begin with a thought and its signature."""
    return replace(conversation, reasoning=ReasoningSettings("none"))


def body_of(conversation: Conversation, profile: Profile, ledger: Ledger) -> dict[str, Any]:
    """Return the body of a Messages request. See :attr:`.ConversationCodec.body`."""
    ledger.check(conversation)
    writer = _Blocks(ledger)
    limit = conversation.output.max_tokens
    body: dict[str, Any] = {
        "model": conversation.model,
        "max_tokens": profile.max_output_tokens or _MAX_TOKENS if limit is None else limit,
        "messages": writer.messages(conversation.messages),
    }
    system = [block for message in conversation.system for block in writer.contents(message.parts)]
    for message in conversation.system:
        ledger.put_natives(message.native, {})
    if not body["messages"]:
        # A prompt of system messages alone is the first message of a conversation.
        body["messages"] = [{"role": "user", "content": system}] if system else []
    elif system:
        body["system"] = system
    body |= _tools(conversation, ledger)
    body |= _settings(conversation, ledger, chooses=body.get("tool_choice"))
    if not body["messages"]:
        raise ledger.refuse(ledger.name_of("messages"), "Messages needs at least one message with content.")
    return body


# ---------------------------------------------------------------- messages


class _Blocks:
    """A writer of messages as blocks of a user and an assistant who take turns."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Write the messages; neighbours with the same role become one."""
        written: list[dict[str, Any]] = []
        waiting: dict[str, str] = {}
        for message in messages:
            role = "assistant" if message.role == "assistant" else "user"
            if message.role == "tool":
                blocks = self._results(message, waiting)
            else:
                blocks = [*self._unanswered(waiting), *self._said(message)]
            if message.role == "assistant":
                self._add(written, "user", [block for block in blocks if _is(block, "tool_result")])
                blocks = [block for block in blocks if not _is(block, "tool_result")]
                waiting = {part.call_id: part.at for part in message.parts if isinstance(part, ToolCallPart)}
            self._add(written, role, blocks)
        self._add(written, "user", self._unanswered(waiting))
        if messages and written and written[-1]["role"] == "assistant":
            raise self._ledger.refuse(messages[-1].at, "The last message has to be the user's.")
        if written and written[0]["role"] == "assistant":
            written.insert(0, {"role": "user", "content": [{"type": "text", "text": _BEFORE}]})
        return written

    @staticmethod
    def _add(written: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
        if not blocks:
            return
        if written and written[-1]["role"] == role:
            written[-1]["content"] += blocks
        else:
            written.append({"role": role, "content": blocks})

    def _results(self, message: Message, waiting: dict[str, str]) -> list[dict[str, Any]]:
        """Write the results of a turn's calls, each once; a result without a call becomes user content."""
        blocks: list[dict[str, Any]] = []
        strays: list[dict[str, Any]] = []
        for part in message.parts:
            if not isinstance(part, ToolResultPart):
                continue
            if waiting.pop(part.call_id, None) is None:
                strays += self.contents(part.parts)
                self._ledger.put_natives(part.native, {})
                continue
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": _call_id(part.call_id)}
            if content := self.contents(part.parts):
                block["content"] = content
            if part.is_error:
                block["is_error"] = True
            self._ledger.put_natives(part.native, block)
            blocks.append(block)
        return [*blocks, *self._unanswered(waiting), *strays]

    def _unanswered(self, waiting: dict[str, str]) -> list[dict[str, Any]]:
        """Write a result for each call that the client did not answer."""
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": _call_id(call_id),
                "content": _UNANSWERED,
                "is_error": True,
            }
            for call_id in waiting
        ]
        waiting.clear()
        return blocks

    def _said(self, message: Message) -> list[dict[str, Any]]:
        blocks = self.contents(message.parts)
        if message.role in ("system", "developer"):
            # In the middle of a conversation it keeps its place, and the tag names its role.
            blocks = [
                {**block, "text": f"<system>{block['text']}</system>"} if _is(block, "text") else block
                for block in blocks
            ]
        holder: dict[str, Any] = {}
        self._ledger.put_natives(message.native, holder)
        return blocks

    def contents(self, parts: Sequence[Part]) -> list[Any]:
        """Write blocks for parts; a part that is left out has none."""
        return [block for part in parts for block in self._block(part)]

    def _block(self, part: Part) -> Iterator[Any]:
        made: dict[str, Any]
        match part:
            case Text() | Refusal():
                if part.text.isspace():
                    return  # Messages refuses a text of white space only.
                made = {"type": "text", "text": part.text}
            case ToolCallPart():
                made = self._call(part)
            case Image():
                omit_detail(part, self._ledger)
                made = {"type": "image", "source": self._source(part.source, part.at)}
            case File():
                titled = {
                    name: text for name, text in (("title", part.name), ("context", part.context)) if text
                }
                made = {"type": "document", "source": self._source(part.source, part.at), **titled}
            case Reasoning():
                if (thought := self._thought(part)) is None:
                    return
                made = thought
            case NativePart():
                if (whole := self._ledger.native_fragment(part.native)) is not None:
                    yield whole
                return
            case Audio():
                raise self._ledger.refuse(part.at, "Messages takes no sound.")
            case _:
                raise self._ledger.refuse(part.at, "It has no place in a message of this kind.")
        self._ledger.put_natives(part.native, made)
        yield made

    def _call(self, part: ToolCallPart) -> dict[str, Any]:
        if part.custom:
            raise self._ledger.refuse(part.at, "Messages has no tools whose input is text.")
        name = self._ledger.tool_name(part.name, _MOST_NAME)
        return {
            "type": "tool_use",
            "id": _call_id(part.call_id),
            "name": name,
            "input": arguments_object(part.arguments),
        }

    def _thought(self, part: Reasoning) -> dict[str, Any] | None:
        """Write reasoning only if it has its signature or its encrypted data."""
        if part.redacted:
            return {"type": "redacted_thinking", "data": part.redacted}
        if part.signature:
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        self._ledger.omit(part.at, "Messages takes reasoning back only with its signature.")
        return None

    def _source(self, source: Source, at: str) -> dict[str, Any]:
        match source:
            case Inline(is_text=True):
                return {"type": "text", "media_type": "text/plain", "data": source.data}
            case Inline():
                return {"type": "base64", "media_type": source.media_type, "data": source.data}
            case Remote():
                return {"type": "url", "url": source.url}
            case Stored(keeper=keeper) if keeper == KEEPER:
                return {"type": "file", "file_id": source.file_id}
            case Stored():
                raise self._ledger.refuse(at, "The file is kept by another provider.")


def _is(block: Any, kind: str) -> bool:
    """Return whether a block has this type. It ignores native blocks, which are raw JSON."""
    return isinstance(block, dict) and block.get("type") == kind


def _call_id(call_id: str) -> str:
    return fitting_id(call_id, _MOST_ID, _ID)


# ---------------------------------------------------------------- settings


def _tools(conversation: Conversation, ledger: Ledger) -> dict[str, Any]:
    choice = conversation.tool_choice
    offered = choice.names if choice is not None and choice.kind == "allowed" else None
    tools = [
        made
        for tool in conversation.tools
        if offered is None or isinstance(tool, NativeTool) or tool.name in offered
        if (made := _tool(tool, ledger)) is not None
    ]
    # A choice without tools may be about server tools, which the proxy offers later.
    chosen = _choice(choice, ledger) if choice is not None else None
    if conversation.parallel_tool_calls is False and (choice is None or choice.kind != "none"):
        chosen = {**(chosen or {"type": "auto"}), "disable_parallel_tool_use": True}
    return without_none({"tools": tools or None, "tool_choice": chosen})


def _tool(tool: Tool, ledger: Ledger) -> Any:
    match tool:
        case NativeTool():
            return ledger.native_fragment(tool.native)
        case CustomTool():
            raise ledger.refuse(tool.at, "Messages has no tools whose input is text.")
        case FunctionTool():
            schema = repaired(tool.parameters or {})
            if schema["type"] != "object":
                raise ledger.refuse(tool.at, "The arguments of a tool have to be an object.")
            written: dict[str, Any] = {"name": ledger.tool_name(tool.name, _MOST_NAME)}
            if tool.description:
                written["description"] = tool.description
            written["input_schema"] = schema
            if tool.strict and takes_strict(schema):
                written["strict"] = True
            elif tool.strict:
                ledger.omit(f"{tool.at}.strict", "Messages takes no strict tool with this schema.")
            ledger.put_natives(tool.native, written)
            return written


def _choice(choice: ToolChoice, ledger: Ledger) -> dict[str, Any]:
    if choice.kind == "named":
        return {"type": "tool", "name": ledger.tool_name(choice.names[0], _MOST_NAME)}
    if choice.kind == "allowed":
        return {"type": "any" if choice.forced else "auto"}
    return {"type": _CHOICES[choice.kind]}


def _settings(
    conversation: Conversation, ledger: Ledger, *, chooses: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the settings that the client asked for; ``chooses`` is the choice of a tool."""
    output, sampling, service = conversation.output, conversation.sampling, conversation.service
    if sampling.temperature is not None and sampling.temperature > 1:
        raise ledger.refuse(ledger.name_of("sampling.temperature"), "Messages allows at most 1.")
    config: dict[str, Any] = {}
    effort = conversation.reasoning.effort
    if effort in _EFFORTS:
        config["effort"] = effort
    if output.format is not None:
        if output.format.schema is None:
            raise ledger.refuse(ledger.name_of("output.format"), "Messages needs a schema for JSON.")
        config["format"] = {"type": "json_schema", "schema": output.format.schema}
    user = service.user or service.safety_identifier
    tiers = {"auto": "auto", "default": "standard_only"}
    if service.tier is not None and service.tier not in tiers:
        ledger.omit(ledger.name_of("service.tier"), "Messages has no such tier.")
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_sequences": list(output.stops) or None,
        "output_config": config or None,
        "thinking": _thinking(conversation, chooses) if effort else None,
        "metadata": {"user_id": user} if user else None,
        "service_tier": tiers.get(service.tier or ""),
        "stream": conversation.stream or None,
    }
    return without_none(asked)


def _thinking(conversation: Conversation, chooses: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return what turns thinking on or off for the effort that was asked for; ``None`` for the default.

    Some models think only on request, which is refused beside a forced call and beside sampling.
    """
    model, sampling = conversation.model, conversation.sampling
    if conversation.reasoning.effort == "none":
        return {"type": thinking_off(model)}
    is_forced = chooses is not None and chooses["type"] in ("any", "tool")
    is_sampled = any(value is not None for value in (sampling.temperature, sampling.top_p, sampling.top_k))
    return {"type": "adaptive"} if needs_adaptive(model) and not (is_forced or is_sampled) else None


# ---------------------------------------------------------------- what models take


_KEYWORDS: Final = frozenset(
    {
        *("$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "definitions"),
        *("description", "enum", "format", "items", "minItems", "properties", "required", "title", "type"),
    }
)
_FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_COUNTS: Final = (0, 1)


def takes_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether a strict tool may have this schema."""
    return all(_fits(node) for _, node in subschemas(schema, "")) and not _is_recursive(schema)


def _fits(node: Mapping[str, Any]) -> bool:
    is_open = node.get("type") == "object" and node.get("additionalProperties") is not False
    return (
        node.keys() <= _KEYWORDS
        and not is_open
        and node.get("format", "uuid") in _FORMATS
        and node.get("minItems", 0) in _COUNTS
    )


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a reference leads to a part that holds it, or to nothing."""
    targets = {node["$ref"] for _, node in subschemas(schema, "") if isinstance(node.get("$ref"), str)}
    below = {ref: _references(follow(schema, ref)) for ref in targets}
    for ref in targets:
        reached, waiting = set[str](), [ref]
        while waiting:
            for target in below[waiting.pop()]:
                if target == ref:
                    return True
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
    return False


def _references(node: Mapping[str, Any] | None) -> set[str]:
    parts = subschemas(node, "") if node is not None else ()
    return {part["$ref"] for _, part in parts if isinstance(part.get("$ref"), str)}


# ---------------------------------------------------------------- thinking


_ADAPTIVE: Final = tuple(
    f"*claude-{name}*"
    for line in ("opus", "sonnet")
    for name in (*(f"{line}-4-{n}" for n in (6, 7, 8)), *(f"{line}-4.{n}" for n in (6, 7, 8)))
)
_BETWEEN_TOOLS: Final = ("*claude-sonnet-5-5*", "*claude-sonnet-5.5*")


def needs_adaptive(model: str) -> bool:
    """Return whether a model thinks only if the request asks for ``adaptive`` thinking."""
    return any(fits(model, pattern) for pattern in _ADAPTIVE)


def thinking_off(model: str) -> str:
    """Return the type of thinking with which a model thinks least."""
    return "between_tools" if any(fits(model, pattern) for pattern in _BETWEEN_TOOLS) else "disabled"
