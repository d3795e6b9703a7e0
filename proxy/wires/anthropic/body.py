"""Messages: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: only members that must change are written anew.  Tools and messages grow
only at their end, and breakpoints of the prompt cache stay where the client put them.  So each request of a
run begins like the one before, and the provider's cache works.

Requests whose client's dialect has no breakpoints get the proxy's.  The provider keeps what stands before a
breakpoint.  A later request that begins the same way reads it at a tenth of the price.  Source: Anthropic's
"Prompt caching": four at most, none on a thought or an empty text; tools come first, then the system prompt,
then the messages.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.json.splice import elements, extend_object, join_array, join_object, members, replace_values
from proxy.records.rows import MessageRecord
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
from proxy.wires.turn.choice import forces_own, relaxed
from proxy.wires.turn.narrowed import without_tools
from proxy.wires.turn.refused_fields import BLOCK_FIELDS
from proxy.wires.turn.restored import is_too_long_error
from proxy.wires.turn.token_limit import LEAST_TOKENS, tokens_left
from proxy.wires.upstream_port import CachingEditor, Mask

__all__ = ["MARK", "AnthropicBody", "with_breakpoints"]


class AnthropicBody(MessageListBody, CachingEditor):
    """The body of one run's upstream requests."""

    _NEEDED_FIELDS = BLOCK_FIELDS
    _ONLY_WITH_TOOLS = ("tool_choice",)
    _MOST_IMAGE_BYTES = 20 << 20  # The provider accepts requests of 32 MB.

    def __init__(self, raw: bytes, request: AnthropicRequest) -> None:
        super().__init__(raw, request)
        self._without_thoughts = False
        self._marks_cache = False
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

    def _declared_name(self, tool: Any) -> str | None:
        return declared_name(tool)

    def _masked_turn(self, raw: bytes, mask: Mask) -> bytes:
        return masked_turn(raw, mask)

    def mark_cache(self) -> None:
        values = (self._raw,) if self._cut is None else self._cut.values()
        self._marks_cache = not any(MARK in part for part in values)

    def _collect_results(self, start: int, held: Mapping[str, Any]) -> tuple[int, list[bytes]]:
        """Put everything else that the client sent with its results after the results."""
        return collect_results(self._messages, start, held["calls"]) if held["calls"] else (start, [])

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """Add a turn, with all its results in one message; a turn that paused has no results."""
        self._added.append(message)
        if results:
            self._added.append(b'{"role":"user","content":' + join_array(results) + b"}")

    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        """Encode a result as a block; :meth:`append_turn` puts all results into one message."""
        return result_block(call.call_id, text, images)

    def _image_bytes(self, message: bytes) -> int:
        return image_bytes(message)

    def _without_images(self, message: bytes) -> bytes:
        return without_images(message)

    @property
    def _choice(self) -> Any:
        """The client's choice in the form of the other wires, which have common code for choices."""
        asked = orjson.loads(self._members["tool_choice"]) if "tool_choice" in self._members else None
        return "required" if isinstance(asked, dict) and asked.get("type") == "any" else asked

    def relax_tool_choice(self, called: Collection[str]) -> None:
        if "tool_choice" not in self._named:
            return
        choice = self._choice
        if relaxed(choice, called, self._own, declared_name) != choice:
            self._members["tool_choice"] = _free(self._members["tool_choice"])

    def forbid_tools(self) -> bool:
        if forces_own(self._choice, self._own, declared_name):
            self._withheld |= self._offered
            return True
        if "tools" in self._members:
            self._members["tool_choice"] = b'{"type":"none"}'
        return False

    def recover(self, message: str, code: str | None) -> bool:
        """Leave out our cache marks, too, if the upstream refuses them."""
        about_marks = "cache_control" in _error_words(message, code) and not is_too_long_error(message, code)
        if self._marks_cache and about_marks:
            self._marks_cache = False
            return True
        return super().recover(message, code)

    def _leave_out_refused(self, message: str, code: str | None) -> bool:
        """Leave out thoughts, too, that another upstream has signed, or the proxy."""
        text = _error_words(message, code)
        theirs = self._restored or self._has_translated
        if theirs and not self._without_thoughts and "signature" in text and "thinking" in text:
            self._without_thoughts = True
            return True
        return super()._leave_out_refused(message, code)

    def _may_learn(self) -> bool:
        return self._has_translated or super()._may_learn()

    @property
    def _strips_all(self) -> bool:
        return self._without_thoughts or super()._strips_all

    def _uncut(self) -> bytes | None:
        return None if self._marks_cache else super()._uncut()

    def _joined(self, parts: dict[str, bytes]) -> bytes:
        return super()._joined(with_breakpoints(parts) if self._marks_cache else parts)

    def _stripped(self, messages: Sequence[bytes], theirs: Sequence[bytes] = ()) -> Sequence[bytes]:
        kept = super()._stripped(messages, theirs)
        if self._without_thoughts:
            sent = set(map(id, theirs))
            kept = [without_translated(raw) if id(raw) in sent else without_thoughts(raw) for raw in kept]
        return kept

    def _limit_tokens(self, parts: dict[str, bytes]) -> None:
        if "max_tokens" in parts:
            parts["max_tokens"] = self._tokens_left(parts)

    def _tokens_left(self, parts: Mapping[str, bytes]) -> bytes:
        """Return what earlier turns left of the client's token limit, but more than the thinking budget."""
        bound = orjson.loads(parts["max_tokens"])
        if type(bound) is not int:
            return parts["max_tokens"]
        thinking = orjson.loads(parts.get("thinking", b"null"))
        budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else 0
        least = LEAST_TOKENS + (budget if type(budget) is int else 0)
        return tokens_left(bound, self._used_tokens, least)

    def _narrowed(self) -> dict[str, bytes]:
        """Return the members of the body without the tools that are withheld."""
        left = without_tools(
            self._members,
            self._withheld,
            declared_name,
            tools="tools",
            choice="tool_choice",
            only_with_tools=("tool_choice",),
        )
        choice = left.get("tool_choice")
        if choice == b'"auto"' and choice != self._members["tool_choice"]:
            left["tool_choice"] = _free(self._members["tool_choice"])
        return left

    def _rows(self, run_id: str, turn: int, message: Mapping[str, Any]) -> Sequence[MessageRecord]:
        return rows_of(run_id, turn, message)


def _error_words(message: str, code: str | None) -> str:
    """Return what an upstream says of an error, in lower case."""
    return f"{code or ''} {message}".lower()


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
