"""Messages: reads the client's request.

Source: Anthropic's API reference, "Create a message".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from proxy.base.values import value_class
from proxy.wires.anthropic.blocks import blocks_of, blocks_text, called_blocks, has_ours, is_ours
from proxy.wires.anthropic.hosted.programs import given_container
from proxy.wires.anthropic.mcp_servers import chosen_tools
from proxy.wires.chosen import NOTHING_CHOSEN
from proxy.wires.message_list.request import CallsWithIdsRequest, JsonMessage
from proxy.wires.past.clock import SystemRule, without_clock
from proxy.wires.past.evidence import Speaker
from proxy.wires.turn.request_members import (
    check_result,
    declared_names,
    listed_messages,
    listed_tools,
    model_name,
    preview_of,
)
from proxy.wires.turn.texts import joined_texts

_UNSEEN: Final = ("thinking", "redacted_thinking")
"""Blocks that some clients do not send back."""
_MORE_THAN_TEXT: Final = ("tool_result", "image", "document")
_BILLING: Final = "x-anthropic-billing-header:"
"""A line that Claude Code writes about itself before its system prompt; it differs in each request."""


@value_class
class AnthropicRequest(CallsWithIdsRequest):
    """The parts of a request that the proxy needs.

    ``people`` is the user in ``metadata.user_id``. ``eager`` are the tools with ``eager_input_streaming``.
    """

    system: str = ""
    eager: frozenset[str] = frozenset()

    dialect_name: ClassVar[str] = "anthropic"

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Check that every result answers one open call of the assistant message before it, once."""
        calls: dict[str, str] = {}
        unanswered: dict[str, int] = {}
        for position, message in enumerate(self.messages):
            if message.get("role") == "assistant":
                calls = {call["id"]: str(call.get("name")) for call in called_blocks(message.get("content"))}
                unanswered = dict.fromkeys(calls, 1)
                continue
            content = message.get("content")
            for place, block in enumerate(content if isinstance(content, list) else ()):
                if isinstance(block, dict) and block.get("type") == "tool_result":
                    param = f"messages[{position}].content[{place}].tool_use_id"
                    check_result(param, block.get("tool_use_id"), calls, unanswered, reserved)

    def _model_messages(self) -> Sequence[tuple[int, JsonMessage]]:
        # The role is enough here: a look for results in all blocks of a long history would take milliseconds.
        return [(at, said) for at, said in enumerate(self.messages) if said.get("role") == "assistant"]

    def part_ids(self) -> Mapping[int, Sequence[str]]:
        if not self.has_proxy_calls:
            return {}
        return {
            at: [
                str(block.get("id"))
                for block in blocks_of(said.get("content"))
                if block.get("type") == "server_tool_use"
            ]
            for at, said in self._model_messages()
        }

    @classmethod
    def speaker(cls, message: JsonMessage) -> Speaker:
        role = message.get("role")
        if role in ("system", "developer"):
            return "system"
        if role == "assistant":
            return "model"
        return "tool" if _result_ids(message) else "user"

    @classmethod
    def _spoken(cls, message: JsonMessage) -> str | None:
        spoken = _neutral(message.get("content"))
        return "\n".join(spoken) if all(isinstance(part, str) for part in spoken) else None

    @classmethod
    def _identity(cls, message: JsonMessage) -> list[Any]:
        # Clients move `cache_control` from one request to the next, drop thoughts, add fields that are null,
        # and write one text as a string or as a block.
        return [message.get("role"), _neutral(message.get("content"))]

    @classmethod
    def _calls(cls, message: JsonMessage) -> Sequence[tuple[str, Any]]:
        return [(call["id"], call) for call in called_blocks(message.get("content"))]

    @classmethod
    def _text(cls, message: JsonMessage) -> str | None:
        blocks = blocks_of(message.get("content"))
        more = any(block.get("type") in _MORE_THAN_TEXT for block in blocks)
        return None if more else blocks_text(blocks)

    @classmethod
    def _call_identity(cls, call: Any) -> Any:
        return None if call is None else (call.get("name") or {}, call.get("input") or {})

    @classmethod
    def answered_ids(cls, message: JsonMessage) -> Sequence[str] | None:
        return None if message.get("role") == "assistant" else _result_ids(message)

    def _system_text(self, rule: SystemRule) -> str:
        if rule == "ignore":
            return ""
        system = self.system.strip()
        return without_clock(system) if rule == "clock" else system


def _result_ids(message: JsonMessage) -> list[str]:
    """Return the ids of the calls whose results a message has."""
    return [
        str(block.get("tool_use_id"))
        for block in blocks_of(message.get("content"))
        if block.get("type") == "tool_result"
    ]


def _neutral(content: Any) -> list[Any]:
    """Return content in the form that all clients have in common: texts as strings, others unchanged."""
    found: list[Any] = []
    for block in blocks_of(content):
        kind = block.get("type")
        if kind in _UNSEEN or is_ours(block):
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
    model, messages = model_name(payload), listed_messages(payload)
    choice = payload.get("tool_choice")
    kind, named = (choice.get("type"), choice.get("name")) if isinstance(choice, dict) else (None, None)
    return AnthropicRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is True,
        messages=messages,
        declared=declared_names(tools := listed_tools(payload), declared_name, "tools[{}].name"),
        tool_count=len(tools),
        tools_forbidden=kind == "none",
        forced=frozenset([named]) if kind == "tool" and isinstance(named, str) else None,
        wants_json=_wants_json(payload),
        preview=_preview(messages),
        system=_system(payload.get("system")),
        people=_people(payload.get("metadata")),
        container=given_container(payload),
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
            return preview_of(text)
    return ""
