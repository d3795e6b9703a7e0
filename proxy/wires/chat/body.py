"""Chat Completions: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: the body is cut into the raw values of its members, and only members
that must change are written anew.  If members are only added, as tools in most first turns, the body is not
even cut.  Tools and messages grow only at their end.  So each request of a run begins with the same bytes as
the one before, and the provider's prompt cache works.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from proxy.events import ResultImage, ToolCall, ToolDefinition
from proxy.records import MessageRecord
from proxy.wires.chat.request import ChatRequest, declared_name
from proxy.wires.json.splice import join_object, members
from proxy.wires.turn.choice import forces_own, own_and_offered, relaxed
from proxy.wires.turn.message_list import MessageListBody, tokens_left
from proxy.wires.turn.narrowed import without_tools
from proxy.wires.turn.refused_fields import MESSAGE_FIELDS, RefusedFields
from proxy.wires.turn.restored import RestoredMessages, drop_unneeded, is_too_long_error
from proxy.wires.turn.result_images import choose_images
from proxy.wires.upstream_port import Mask

__all__ = ["ChatBody", "masked_turn"]


class ChatBody(MessageListBody):
    """The body of one run's upstream requests."""

    def __init__(self, raw: bytes, request: ChatRequest) -> None:
        super().__init__(
            raw,
            request.members,
            RefusedFields("messages", MESSAGE_FIELDS, _is_assistant),
            tools_key="functions" if request.legacy else "tools",
        )
        self._choice_key = "function_call" if request.legacy else "tool_choice"
        self._legacy = request.legacy
        self._own: Collection[str] = request.declared
        self._offered: frozenset[str] = frozenset()

    def _definition(self, definition: ToolDefinition) -> bytes:
        """Return one element of ``tools``, or of the older ``functions``."""
        form = "chat functions" if self._legacy else "chat tools"
        written = definition.written.get(form)
        if written is None:
            written = definition.written[form] = _written(definition, self._legacy)
        return written

    def _declared_name(self, tool: Any) -> str | None:
        return declared_name(tool, self._legacy)

    def _masked_turn(self, raw: bytes, mask: Mask) -> bytes:
        if b'"tool_calls"' not in raw and b'"function_call"' not in raw:
            return raw  # orjson wrote the message, and it escapes no letter of a name.
        return masked_turn(raw, mask)

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        self._own, self._offered = own_and_offered(self._own, added, replaced)
        super().offer(added, replaced)

    def ask_usage(self) -> None:
        options = self._members["stream_options"] if "stream_options" in self._named else b"null"
        parts = members(options) if options[:1] == b"{" else {}
        self._set("stream_options", join_object({**parts, "include_usage": b"true"}))

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        held = orjson.loads(payload)
        end = position + 1
        answers: dict[str, bytes] = {}
        while end < len(self._messages):
            message = orjson.loads(self._messages[end])
            if message.get("role") != "tool":
                break
            answers[str(message.get("tool_call_id"))] = self._messages[end]
            end += 1
        restored = [part.encode() for part in held["messages"]]
        for call in held["calls"]:
            if call["result"] is not None:
                restored.append(call["result"].encode())
            elif (answer := answers.get(call["client_id"])) is not None:
                restored.append(_answering(answer, call["call_id"]))
        self._restored[position] = RestoredMessages.replacing(
            self._messages, position, end, restored, needed=needed
        )

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """Encode one result.  Tool messages of this dialect hold only text, so words describe the images."""
        content, _ = choose_images(content, images, lambda image: False)
        if call.legacy:
            return orjson.dumps({"role": "function", "name": call.name, "content": content})
        return orjson.dumps({"role": "tool", "tool_call_id": call.call_id, "content": content})

    def leave_out_images(self) -> None:
        """Do nothing: results of this dialect have no images."""

    @property
    def images_refused(self) -> bool:
        return False

    def relax_tool_choice(self, called: Collection[str]) -> None:
        if self._choice_key in self._members:
            choice = orjson.loads(self._members[self._choice_key])
            free = relaxed(choice, called, self._own, _tool_name)
            if free != choice:
                self._members[self._choice_key] = orjson.dumps(free)

    def forbid_tools(self) -> bool:
        choice = orjson.loads(self._members.get(self._choice_key, b"null"))
        if forces_own(choice, self._own, _tool_name):
            self._withheld |= self._offered
            return True
        self._members[self._choice_key] = b'"none"'
        return False

    def recover(self, message: str, code: str | None) -> bool:
        """Remove hidden turns that make the conversation too long, or fields that the upstream refuses in
        the model's messages."""
        if is_too_long_error(message, code):
            return drop_unneeded(self._restored)
        if not self._may_learn():
            return False
        return self._refused.learn(message, self._whole(), self._theirs)

    def render(self) -> bytes:
        if (whole := self._uncut()) is not None:
            return whole
        parts = self._narrowed()
        self._put_messages(parts)
        if self._used_tokens:
            for key in ("max_completion_tokens", "max_tokens"):
                bound = orjson.loads(parts[key]) if key in parts else None
                if type(bound) is int:
                    parts[key] = tokens_left(bound, self._used_tokens)
        return join_object(parts)

    def _narrowed(self) -> dict[str, bytes]:
        """Return the members of the body without the tools that are withheld."""
        return without_tools(
            self._members,
            self._withheld,
            _tool_name,
            tools=self._tools_key,
            choice=self._choice_key,
            only_with_tools=(self._choice_key, "parallel_tool_calls"),
        )

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows = []
        turn = 0
        for seq, raw in enumerate(self._added):
            message = orjson.loads(self._shown(raw, mask))
            turn += message.get("role") == "assistant"
            rows.append(_record(run_id, turn, seq, message))
        return rows


def _written(definition: ToolDefinition, legacy: bool) -> bytes:
    function: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.parameters,
    }
    if legacy:
        return orjson.dumps(function)
    if definition.strict:
        function["strict"] = True
    return orjson.dumps({"type": "function", "function": function})


def _tool_name(tool: Any) -> str | None:
    """Return the name of a tool, from a declaration in either form or from a choice."""
    return declared_name(tool) or declared_name(tool, legacy=True)


def _is_assistant(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _answering(message: bytes, call_id: str) -> bytes:
    """Return a client's result under the upstream's call id; unchanged if the id is the same."""
    parts = members(message)
    wanted = orjson.dumps(call_id)
    if orjson.loads(parts["tool_call_id"]) == call_id:
        return message
    return join_object({**parts, "tool_call_id": wanted})


def masked_turn(raw: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    message = orjson.loads(raw)
    called = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    if isinstance(message.get("function_call"), dict):
        called.append(message["function_call"])
    changed = False
    for function in called:
        masked = mask(function["name"], function["arguments"])
        changed = changed or masked != function["arguments"]
        function["arguments"] = masked
    return orjson.dumps(message) if changed else raw


def _record(run_id: str, turn: int, seq: int, message: Mapping[str, Any]) -> MessageRecord:
    content = message.get("content")
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    return MessageRecord(
        run_id=run_id,
        turn=turn,
        seq=seq,
        role=str(message.get("role")),
        content=content if isinstance(content, str) else None,
        content_json=None if content is None or isinstance(content, str) else orjson.dumps(content).decode(),
        tool_calls=orjson.dumps(calls).decode() if calls else None,
        function_call=orjson.dumps(legacy).decode() if legacy else None,
        tool_call_id=message.get("tool_call_id"),
        name=message.get("name"),
    )
