"""Chat Completions: the request as it goes upstream, turn after turn.

The client's values keep their bytes: the body is cut into the raw values of its members, and only
the members that have to change are written anew.  Where there are but members to add, as tools in
most first turns, it is not even cut.  Tools and messages only ever grow at their end, so that what
one turn sent is a byte-equal prefix of what the next one sends, and a provider's prompt cache holds.
"""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import orjson

from proxy.events import ResultImage, ToolCall, ToolDefinition, left_out
from proxy.records import MessageRecord
from proxy.wires.base import HeldTurn, Mask
from proxy.wires.chat.request import ChatRequest, declared_name
from proxy.wires.json.splice import elements, extend_array, extend_object, join_array, join_object, members
from proxy.wires.turn.choice import forces_own, own_and_offered, relaxed
from proxy.wires.turn.narrowed import without_tools
from proxy.wires.turn.refused_fields import MESSAGE_FIELDS, RefusedFields
from proxy.wires.turn.rehydrate import Rehydrated, count_back, drop_unneeded, laid_over, says_too_long

__all__ = ["ChatBody"]

_LEAST_TOKENS = 16
_BY_NAME = attrgetter("name")


class ChatBody:
    """The body of one run's upstream requests."""

    def __init__(self, raw: bytes, request: ChatRequest) -> None:
        self._raw = raw
        self._named = request.members
        self._behind: dict[str, bytes] = {}
        self._cut: dict[str, bytes] | None = None
        self._client_messages: list[bytes] | None = None
        self._tools_key = "functions" if request.legacy else "tools"
        self._choice_key = "function_call" if request.legacy else "tool_choice"
        self._declared = self._members.get(self._tools_key) if self._tools_key in self._named else None
        self._legacy = request.legacy
        self._put_back: dict[int, Rehydrated] = {}
        self._added: list[bytes] = []
        self._masked: dict[bytes, bytes] = {}
        self._used_tokens = 0
        self._refused = RefusedFields("messages", MESSAGE_FIELDS, _is_assistant)
        self._withheld: frozenset[str] = frozenset()
        self._own: Collection[str] = request.declared
        self._offered: frozenset[str] = frozenset()

    @property
    def _members(self) -> dict[str, bytes]:
        """The raw values of the body's members, to be changed."""
        if self._cut is None:
            self._cut = {**members(self._raw), **self._behind}
            self._raw = b""
        return self._cut

    @property
    def _messages(self) -> list[bytes]:
        """The raw messages that the client sent."""
        if self._client_messages is None:
            self._client_messages = elements(self._members["messages"])
        return self._client_messages

    def _add(self, name: str, value: bytes) -> None:
        """Set a member that may be one of the client's."""
        if self._cut is None and name not in self._named:
            self._behind[name] = value
        else:
            self._members[name] = value

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        self._own, self._offered = own_and_offered(self._own, added, replaced)
        new = [self._definition(definition) for definition in sorted(added, key=_BY_NAME)]
        tools = self._declared if self._declared and self._declared[:1] == b"[" else b"[]"
        if replaced:
            ours = {definition.name: self._definition(definition) for definition in replaced}
            tools = join_array(
                ours.get(declared_name(orjson.loads(raw), self._legacy) or "", raw) for raw in elements(tools)
            )
        if new or replaced:
            self._add(self._tools_key, extend_array(tools, new))

    def withhold(self, names: Collection[str]) -> None:
        self._withheld = frozenset(names)

    def withdraw(self) -> None:
        self._withheld = frozenset()
        if self._declared is not None:
            self._members[self._tools_key] = self._declared
        elif self._cut is None:
            self._behind.pop(self._tools_key, None)
        else:
            self._cut.pop(self._tools_key, None)

    def _definition(self, definition: ToolDefinition) -> bytes:
        """One element of ``tools``, or of the older ``functions``."""
        form = "chat functions" if self._legacy else "chat tools"
        written = definition.written.get(form)
        if written is None:
            written = definition.written[form] = _written(definition, self._legacy)
        return written

    def rename_model(self, model: str) -> None:
        self._members["model"] = orjson.dumps(model)

    def ask_usage(self) -> None:
        options = self._members["stream_options"] if "stream_options" in self._named else b"null"
        parts = members(options) if options[:1] == b"{" else {}
        self._add("stream_options", join_object({**parts, "include_usage": b"true"}))

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
        self._put_back[position] = Rehydrated.over(self._messages, position, end, restored, needed=needed)

    @property
    def put_back(self) -> tuple[int, int]:
        return count_back(self._put_back)

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        self._added += [message, *results]

    def suspend(self, message: bytes, calls: Sequence[HeldTurn], mask: Mask) -> bytes:
        return orjson.dumps(
            {
                "messages": [self._shown(part, mask).decode() for part in (*self._added, message)],
                "calls": [
                    {
                        "call_id": call.call_id,
                        "client_id": call.client_id,
                        "result": call.result.decode() if call.result is not None else None,
                    }
                    for call in calls
                ],
            }
        )

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """One result.  Tool messages of this wire hold text alone, so images are said in words."""
        if images:
            content = "\n".join(part for part in (content, *(left_out(one.words) for one in images)) if part)
        if call.legacy:
            return orjson.dumps({"role": "function", "name": call.name, "content": content})
        return orjson.dumps({"role": "tool", "tool_call_id": call.call_id, "content": content})

    def leave_out_images(self) -> None:
        """Nothing to do: there are none."""

    @property
    def images_refused(self) -> bool:
        return False

    def leave_out_fields(self, names: Collection[str]) -> None:
        self._refused.leave_out(names)

    @property
    def fields_refused(self) -> frozenset[str]:
        return self._refused.learned

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

    def spend_tokens(self, used: int) -> None:
        self._used_tokens = used

    def recover(self, message: str, code: str | None) -> bool:
        """Leave hidden turns out again where they make the conversation too long, or of the model's
        messages what the upstream does not take back."""
        if says_too_long(message, code):
            return drop_unneeded(self._put_back)
        if not (self._put_back or self._added):
            return False
        whole = [*laid_over(self._messages, self._put_back), *self._added]
        return self._refused.learn(message, whole, self._messages)

    def render(self) -> bytes:
        if self._cut is None and not (self._put_back or self._added or self._withheld or self._used_tokens):
            return extend_object(self._raw, self._behind)
        parts = self._narrowed()
        if self._put_back:
            whole = [*laid_over(self._messages, self._put_back), *self._added]
            parts["messages"] = join_array(self._refused.strip(whole, self._messages))
        else:
            parts["messages"] = extend_array(parts["messages"], self._refused.strip(self._added))
        if self._used_tokens:
            for key in ("max_completion_tokens", "max_tokens"):
                bound = orjson.loads(parts[key]) if key in parts else None
                if type(bound) is int:
                    left = max(bound - self._used_tokens, min(_LEAST_TOKENS, bound))
                    parts[key] = str(left).encode()
        return join_object(parts)

    def _narrowed(self) -> dict[str, bytes]:
        """The members of the body, less the tools that are withheld."""
        return without_tools(
            self._members,
            self._withheld,
            _tool_name,
            tools=self._tools_key,
            choice=self._choice_key,
            only_with_tools=(self._choice_key, "parallel_tool_calls"),
        )

    def _shown(self, raw: bytes, mask: Mask) -> bytes:
        """A message of ours as it may be kept: for what is put back later, and for the record."""
        if b'"tool_calls"' not in raw and b'"function_call"' not in raw:
            return raw  # orjson wrote it, which escapes no letter of a name.
        masked = self._masked.get(raw)
        if masked is None:
            masked = self._masked[raw] = _masked(raw, mask)
        return masked

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
    """The name of a tool where it is declared, in either way, or chosen."""
    return declared_name(tool) or declared_name(tool, legacy=True)


def _is_assistant(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _answering(message: bytes, call_id: str) -> bytes:
    """A client's result under the id the upstream knows; bytes as they came where it is the same."""
    parts = members(message)
    wanted = orjson.dumps(call_id)
    if orjson.loads(parts["tool_call_id"]) == call_id:
        return message
    return join_object({**parts, "tool_call_id": wanted})


def _masked(raw: bytes, mask: Mask) -> bytes:
    """A message with the private arguments of its calls masked; the same bytes where none are."""
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
