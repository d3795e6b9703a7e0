"""Messages: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: only members that must change are written anew. Tools and messages grow
only at their end, and breakpoints of the prompt cache stay where the client put them. So each request of a
run begins like the one before, and the provider's cache works.

Requests whose client's dialect has no breakpoints get the proxy's. The provider keeps what stands before a
breakpoint. A later request that begins the same way reads it at a tenth of the price. Source: Anthropic's
"Prompt caching": four at most, none on a thought or an empty text; tools come first, then the system prompt,
then the messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.json.splice import elements, extend_object, join_array, join_object, members, replace_values
from proxy.wires.anthropic.blocks import (
    TRANSLATED_SIGNATURE,
    without_ours,
    without_thoughts,
    without_translated,
)
from proxy.wires.anthropic.crossing.to_upstream import takes_strict
from proxy.wires.anthropic.held import (
    collect_results,
    image_bytes,
    masked_turn,
    result_block,
    rows_of,
    without_images,
)
from proxy.wires.anthropic.request import AnthropicRequest, declared_name
from proxy.wires.message_list.body import MessageListBody
from proxy.wires.turn.choice import relaxed
from proxy.wires.turn.edits import LEAST_TOKENS, AppendedTurn, Edits, is_too_long_error, tokens_left
from proxy.wires.turn.refused_fields import BLOCK_FIELDS


class AnthropicBody(MessageListBody):
    """The body of one run's upstream requests."""

    _NEEDED_FIELDS = BLOCK_FIELDS
    _CHOICE = "tool_choice"
    _MOST_IMAGE_BYTES = 20 << 20  # The provider accepts requests of 32 MB.

    _declared_name = staticmethod(declared_name)
    _masked_turn = staticmethod(masked_turn)
    _image_bytes = staticmethod(image_bytes)
    _without_images = staticmethod(without_images)
    _rows = staticmethod(rows_of)

    def __init__(self, raw: bytes, request: AnthropicRequest, *, translated: bool = False) -> None:
        super().__init__(raw, request, translated=translated)
        # A client of another dialect has set no marks of its own, except in texts and schemas.
        self._marks_cache = translated and MARK not in raw
        self._has_translated = request.has_proxy_calls and TRANSLATED_SIGNATURE.encode() in raw
        if request.has_proxy_calls:
            self._client_messages = list(map(without_ours, elements(self._members["messages"])))
            self._members["messages"] = join_array(self._client_messages)

    def _tool(self, definition: ToolDefinition) -> bytes:
        """Return a tool; it is ``strict`` only if the provider takes its schema then.

        The proxy checks the arguments in any case.
        """
        tool: dict[str, Any] = {
            "name": definition.name,
            "description": definition.description,
            "input_schema": definition.parameters,
        }
        if definition.strict and takes_strict(definition.parameters):
            tool["strict"] = True
        return orjson.dumps(tool)

    def _replacement(self, declared: bytes, definition: ToolDefinition) -> bytes:
        """Return our tool, with the client's breakpoint of the prompt cache."""
        kept = {key: value for key, value in members(declared).items() if key == "cache_control"}
        return extend_object(self._definition(definition), kept)

    def _collect_results(self, start: int, held: Mapping[str, Any]) -> tuple[int, list[bytes]]:
        """Put everything else that the client sent with its results after the results."""
        return collect_results(self._messages, start, held["calls"]) if held["calls"] else (start, [])

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        """Put all results of a turn in one message; a turn that paused has no results."""
        answers = (b'{"role":"user","content":' + join_array(results) + b"}",) if results else ()
        return AppendedTurn(message, results, (message, *answers))

    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        """Encode a result as a block; :meth:`append_turn` puts all results into one message."""
        return result_block(call.call_id, text, images)

    def _choice(self) -> Any:
        asked = super()._choice()
        return "required" if isinstance(asked, dict) and asked.get("type") == "any" else asked

    def _choose(self, parts: dict[str, bytes], edits: Edits) -> None:
        choice = self._choice()
        if edits.forbids_calls and "tools" in parts:
            parts["tool_choice"] = b'{"type":"none"}'
        elif relaxed(choice, edits.called, (), declared_name) != choice:
            parts["tool_choice"] = _free(parts["tool_choice"])

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        """Leave out our cache marks, too, if the upstream refuses them."""
        about_marks = "cache_control" in _error_words(message, code) and not is_too_long_error(message, code)
        if self._marks(edits) and about_marks:
            return replace(edits, cache_marks_left_out=True)
        return super().recover(edits, message, code)

    def _leave_out_refused(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        """Leave out thoughts, too, that another upstream has signed, or the proxy."""
        text = _error_words(message, code)
        theirs = edits.restored or self._has_translated
        if theirs and not edits.reasoning_left_out and "signature" in text and "thinking" in text:
            return replace(edits, reasoning_left_out=True)
        return super()._leave_out_refused(edits, message, code)

    def _may_learn(self, edits: Edits) -> bool:
        return self._has_translated or super()._may_learn(edits)

    def _strips_all(self, edits: Edits) -> bool:
        return edits.reasoning_left_out or super()._strips_all(edits)

    def _marks(self, edits: Edits) -> bool:
        """Return whether the request gets the proxy's marks of the prompt cache."""
        return self._marks_cache and not edits.cache_marks_left_out

    def _only_adds(self, edits: Edits) -> bool:
        return not self._marks(edits) and super()._only_adds(edits)

    def _joined(self, parts: dict[str, bytes], edits: Edits) -> bytes:
        return super()._joined(with_breakpoints(parts) if self._marks(edits) else parts, edits)

    def _stripped(
        self, messages: Sequence[bytes], edits: Edits, theirs: Sequence[bytes] = ()
    ) -> Sequence[bytes]:
        kept = super()._stripped(messages, edits, theirs)
        if edits.reasoning_left_out:
            sent = set(map(id, theirs))
            kept = [without_translated(raw) if id(raw) in sent else without_thoughts(raw) for raw in kept]
        return kept

    def _limit_tokens(self, parts: dict[str, bytes], used: int) -> None:
        if "max_tokens" in parts:
            parts["max_tokens"] = _tokens_left(parts, used)

    def _narrowed(self, edits: Edits, changed: Mapping[str, bytes]) -> dict[str, bytes]:
        left = super()._narrowed(edits, changed)
        if left.get("tool_choice") == b'"auto"' != self._members["tool_choice"]:
            left["tool_choice"] = _free(self._members["tool_choice"])
        return left


def _error_words(message: str, code: str | None) -> str:
    """Return what an upstream says of an error, in lower case."""
    return f"{code or ''} {message}".lower()


def _tokens_left(parts: Mapping[str, bytes], used: int) -> bytes:
    """Return what earlier turns left of the client's token limit, but more than the thinking budget."""
    bound = orjson.loads(parts["max_tokens"])
    if type(bound) is not int:
        return parts["max_tokens"]
    thinking = orjson.loads(parts.get("thinking", b"null"))
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else 0
    least = LEAST_TOKENS + (budget if type(budget) is int else 0)
    return tokens_left(bound, used, least)


def _free(choice: bytes) -> bytes:
    """Return a choice that forces nothing; its setting for parallel calls stays."""
    parts = members(choice)
    kept = {key: value for key, value in parts.items() if key == "disable_parallel_tool_use"}
    return join_object({"type": b'"auto"', **kept})


# ---------------------------------------------------------------- breakpoints of the prompt cache


MARK: Final = b'"cache_control"'
_BREAKPOINT: Final = {"cache_control": b'{"type":"ephemeral"}'}


def with_breakpoints(parts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Set breakpoints after the tools, the system prompt and the user's last two messages.

    The last message is new; the cache has everything up to the one before it from the last request.
    """
    marked = dict(parts)
    for name in ("tools", "system"):
        if name in parts:
            marked[name] = _last_marked(parts[name])
    messages = elements(parts["messages"])
    theirs = [at for at, raw in enumerate(messages) if members(raw).get("role") == b'"user"']
    for at in theirs[-2:]:
        messages[at] = _message_marked(messages[at])
    marked["messages"] = join_array(messages)
    return marked


def _message_marked(raw: bytes) -> bytes:
    content = members(raw).get("content", b"")
    marked = _last_marked(content)
    return raw if marked == content else replace_values(raw, {"content": marked})


def _last_marked(listed: bytes) -> bytes:
    """Set a breakpoint at the last element of a list; other values and an empty text stay unchanged."""
    if listed[:1] != b"[" or not (parts := elements(listed)):
        return listed
    last = orjson.loads(parts[-1])
    if not isinstance(last, dict) or (last.get("type") == "text" and not last.get("text")):
        return listed
    return join_array([*parts[:-1], extend_object(parts[-1], _BREAKPOINT)])
