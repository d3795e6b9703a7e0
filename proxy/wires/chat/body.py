"""Chat Completions: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: the body is cut into the raw values of its members, and only members
that must change are written anew. If members are only added, as tools in most first turns, the body is not
even cut. Tools and messages grow only at their end. So each request of a run begins with the same bytes as
the one before, and the provider's prompt cache works.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.json.splice import join_object, members
from proxy.records.rows import MessageRecord
from proxy.wires.chat.request import ChatRequest, declared_name
from proxy.wires.message_list.body import MessageListBody
from proxy.wires.turn.edits import tokens_left
from proxy.wires.turn.refused_fields import MESSAGE_FIELDS
from proxy.wires.upstream_port import Mask


class ChatBody(MessageListBody):
    """The body of one run's upstream requests."""

    _NEEDED_FIELDS = MESSAGE_FIELDS
    _CHOICE, _OTHERS_WITH_TOOLS = "tool_choice", ("parallel_tool_calls",)
    _RESULT_ID = "tool_call_id"

    def __init__(self, raw: bytes, request: ChatRequest, *, translated: bool = False) -> None:
        legacy = request.legacy
        super().__init__(
            raw,
            request,
            tools_key="functions" if legacy else "",
            choice_key="function_call" if legacy else "",
            translated=translated,
        )
        self._legacy = legacy

    def _tool(self, definition: ToolDefinition) -> bytes:
        """Return one element of ``tools``, or of the older ``functions``."""
        function: dict[str, Any] = {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.parameters,
        }
        if self._legacy:
            return orjson.dumps(function)
        if definition.strict:
            function["strict"] = True
        return orjson.dumps({"type": "function", "function": function})

    def _declared_name(self, tool: Any) -> str | None:
        return declared_name(tool, self._legacy)

    def _masked_turn(self, message: bytes, mask: Mask) -> bytes:
        if b'"tool_calls"' not in message and b'"function_call"' not in message:
            return message  # orjson wrote the message, and it escapes no letter of a name.
        return masked_turn(message, mask)

    def _chosen_name(self, tool: Any) -> str | None:
        return declared_name(tool) or declared_name(tool, legacy=True)

    def _usage_request(self) -> Mapping[str, bytes]:
        options = self._members["stream_options"] if "stream_options" in self._named else b"null"
        parts = members(options) if options[:1] == b"{" else {}
        return {"stream_options": join_object({**parts, "include_usage": b"true"})}

    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        """Encode a result. Tool messages of this dialect hold only text, so there are no images."""
        if call.legacy:
            return orjson.dumps({"role": "function", "name": call.name, "content": text})
        return orjson.dumps({"role": "tool", "tool_call_id": call.call_id, "content": text})

    def _limit_tokens(self, parts: dict[str, bytes], used: int) -> None:
        for key in ("max_completion_tokens", "max_tokens"):
            bound = orjson.loads(parts[key]) if key in parts else None
            if type(bound) is int:
                parts[key] = tokens_left(bound, used)

    def _rows(self, run_id: str, turn: int, message: Mapping[str, Any]) -> Sequence[MessageRecord]:
        content = message.get("content")
        calls = message.get("tool_calls")
        legacy = message.get("function_call")
        parts = None if content is None or isinstance(content, str) else orjson.dumps(content).decode()
        return [
            MessageRecord(
                run_id,
                turn,
                0,
                str(message.get("role")),
                content=content if isinstance(content, str) else None,
                content_json=parts,
                tool_calls=orjson.dumps(calls).decode() if calls else None,
                function_call=orjson.dumps(legacy).decode() if legacy else None,
                tool_call_id=message.get("tool_call_id"),
                name=message.get("name"),
            )
        ]


def masked_turn(message: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    turn = orjson.loads(message)
    called = [call["function"] for call in turn.get("tool_calls") or () if "function" in call]
    if isinstance(turn.get("function_call"), dict):
        called.append(turn["function_call"])
    changed = False
    for function in called:
        masked = mask(function["name"], function["arguments"])
        changed = changed or masked != function["arguments"]
        function["arguments"] = masked
    return orjson.dumps(turn) if changed else message
