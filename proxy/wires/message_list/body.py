"""The editor of a request body that holds its conversation as a list of messages.

This module has the part that all such dialects have in common: it cuts the body, offers tools, adds, keeps
and restores turns, and leaves out what an upstream refuses.  Each dialect defines the form of a tool, a
message and a result.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import orjson

from proxy.base.events import ResultImage, ToolCall, ToolDefinition, ToolDefinitions
from proxy.json.splice import (
    elements,
    extend_array,
    extend_object,
    join_array,
    join_object,
    members,
)
from proxy.records.result_for_model import ResultForModel, stored_result
from proxy.records.rows import MessageRecord
from proxy.wires.message_list.request import MessageListRequest
from proxy.wires.turn.choice import own_and_offered
from proxy.wires.turn.named_tools import named_tools
from proxy.wires.turn.narrowed import drop_idle_choice, without_tools
from proxy.wires.turn.refused_fields import RefusedFields
from proxy.wires.turn.restored import (
    RestoredMessages,
    drop_unneeded,
    is_too_long_error,
    restored_size,
    with_restored,
    written,
    written_result,
)
from proxy.wires.turn.result_images import ImageBudget, choose_images
from proxy.wires.upstream_port import Mask, SuspendedCall, TranslatedEditor

__all__ = ["MessageListBody"]


class MessageListBody(TranslatedEditor):
    """The body of one run's upstream requests.

    :class:`~proxy.wires.upstream_port.BodyEditor` describes the public methods.

    The body is cut into the raw values of its members only when a member that the client sent must change.
    Until then ``_added_members`` holds the added members.
    """

    _MESSAGES: ClassVar[str] = "messages"
    """The member with the conversation."""
    _TOOLS: ClassVar[str] = "tools"
    """The member with the tools."""
    _ONLY_WITH_TOOLS: ClassVar[Sequence[str]] = ()
    """The members that upstreams refuse without tools: first the choice of a tool."""
    _RESULT_ID: ClassVar[str]
    """The member of a result with the id of its call, in a dialect whose messages have one result each."""
    _NEEDED_FIELDS: ClassVar[frozenset[str]] = frozenset()
    """Fields without which a message would mean something else: no refusal removes them."""
    _MOST_IMAGE_BYTES: ClassVar[int] = 0
    """The size limit for our images in one request, in base64; 0 if results have no place for images."""

    def __init__(self, raw: bytes, request: MessageListRequest, *, tools_key: str = "") -> None:
        """``tools_key`` is the name of the member with the tools; empty for the usual name."""
        self._raw = raw
        self._request = request
        self._named = request.members
        self._added_members: dict[str, bytes] = {}
        self._cut: dict[str, bytes] | None = None
        self._client_messages: list[bytes] | None = None
        self._tools_key = tools_key or self._TOOLS
        self._form = f"{request.dialect_name} {self._tools_key}"
        self._declared = self._members.get(self._tools_key) if self._tools_key in self._named else None
        self._restored: dict[int, RestoredMessages] = {}
        self._added: list[bytes] = []
        self._masked: dict[bytes, bytes] = {}
        self._used_tokens = 0
        self._is_model_message = partial(_is_model_message, type(request))
        self._refused = RefusedFields(self._MESSAGES, self._NEEDED_FIELDS, self._is_model_message)
        self._images = ImageBudget(self._MOST_IMAGE_BYTES)
        self._own: Collection[str] = request.declared
        self._offered: frozenset[str] = frozenset()
        self._withheld: frozenset[str] = frozenset()
        self._without_tools = False
        self._translated = False

    # How a dialect writes and reads tools and messages.

    @abstractmethod
    def _tool(self, definition: ToolDefinition) -> bytes:
        """Return one element of the list of tools."""

    @abstractmethod
    def _declared_name(self, tool: Any) -> str | None:
        """Return the name of a tool in the client's list."""

    @abstractmethod
    def _masked_turn(self, raw: bytes, mask: Mask) -> bytes:
        """Return a message with the private arguments of its calls masked; the same bytes if it has none."""

    @abstractmethod
    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        """Return the result of a call, with the images that may be sent."""

    @abstractmethod
    def _rows(self, run_id: str, turn: int, message: Mapping[str, Any]) -> Sequence[MessageRecord]:
        """Return a message as rows of the record, which are numbered later."""

    def _replacement(self, declared: bytes, definition: ToolDefinition) -> bytes:
        """Return what replaces a tool that the client ``declared`` under the name of a server tool."""
        return self._definition(definition)

    def _definition(self, definition: ToolDefinition) -> bytes:
        """Return one element of the list of tools, which is encoded once for all requests."""
        written = definition.written.get(self._form)
        if written is None:
            written = definition.written[self._form] = self._tool(definition)
        return written

    def _image_bytes(self, message: bytes) -> int:
        """Return the size of our images in a message, or of a message that has such images; else 0."""
        return 0

    def _without_images(self, message: bytes) -> bytes:
        """Return a message with words in place of our images."""
        return message

    def _limit_tokens(self, parts: dict[str, bytes]) -> None:
        """Lower the client's limit on output tokens in ``parts`` by the tokens that earlier turns used.

        Do nothing if the dialect has no such limit.
        """
        return

    # The members of the body.

    @property
    def _members(self) -> dict[str, bytes]:
        """The raw values of the body's members. Callers may change this mapping."""
        if self._cut is None:
            self._cut = {**members(self._raw), **self._added_members}
            self._raw = b""
        return self._cut

    @property
    def _messages(self) -> list[bytes]:
        """The raw messages that the client sent."""
        if self._client_messages is None:
            self._client_messages = elements(self._members.get(self._MESSAGES, b"[]"))
        return self._client_messages

    def _set(self, name: str, value: bytes) -> None:
        """Set a member that the client may have sent, too."""
        if self._cut is None and name not in self._named:
            self._added_members[name] = value
        else:
            self._members[name] = value

    def _uncut(self) -> bytes | None:
        """Return the client's bytes and the added members; ``None`` if anything else has changed."""
        tools_changed = self._withheld or self._without_tools
        changed = self._restored or self._added or tools_changed or self._used_tokens or self._strips_all
        if self._cut is None and not changed and not self._may_drop_choice:
            return extend_object(self._raw, self._added_members)
        return None

    def _put_messages(self, parts: dict[str, bytes]) -> None:
        """Set the conversation in ``parts``, the members of the next request."""
        if self._restored or self._strips_all:
            parts[self._MESSAGES] = join_array(self._stripped(self._whole(), self._theirs))
        elif self._added:
            parts[self._MESSAGES] = extend_array(
                parts.get(self._MESSAGES, b"[]"), self._stripped(self._added)
            )

    def render(self) -> bytes:
        if (whole := self._uncut()) is not None:
            return whole
        parts = self._narrowed()
        if self._may_drop_choice:
            choice, *others = self._ONLY_WITH_TOOLS
            drop_idle_choice(parts, tools=self._tools_key, choice=choice, others=others)
        self._put_messages(parts)
        if self._used_tokens:
            self._limit_tokens(parts)
        return self._joined(parts)

    def _joined(self, parts: dict[str, bytes]) -> bytes:
        """Return the body with these members."""
        return join_object(parts)

    def rename_model(self, model: str) -> None:
        self._members["model"] = orjson.dumps(model)

    # Tools.

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        new = ToolDefinitions(added)
        self._own, self._offered = own_and_offered(self._request.declared, new, replaced)
        tools = self._declared if self._declared and self._declared[:1] == b"[" else b"[]"
        if replaced:
            ours = {definition.name: definition for definition in replaced}
            tools = join_array(self._replaced(raw, ours) for raw in elements(tools))
        if new or replaced:
            ours_joined = new.joined(self._form, self._definition)
            self._set(self._tools_key, extend_array(tools, [ours_joined] if new else ()))

    def _replaced(self, raw: bytes, ours: Mapping[str, ToolDefinition]) -> bytes:
        definition = ours.get(self._declared_name(orjson.loads(raw)) or "")
        return raw if definition is None else self._replacement(raw, definition)

    def withhold(self, names: Collection[str]) -> None:
        self._withheld = frozenset(names)

    def withdraw(self) -> None:
        self._withheld = self._offered = frozenset()
        self._own = self._request.declared
        if self._declared is not None:
            self._members[self._tools_key] = self._declared
        elif self._cut is None:
            self._added_members.pop(self._tools_key, None)
        else:
            self._cut.pop(self._tools_key, None)

    def tools_named(self, message: str) -> frozenset[str]:
        tools = elements(self._narrowed().get(self._tools_key, b"[]"))
        return named_tools(message, tools, self._offered, self._declared_name)

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Do nothing, unless the dialect can force a call."""
        return

    def forbid_tools(self) -> bool:
        """Leave out all tools, also the client's, unless the dialect has another way to prevent calls."""
        self._without_tools = True
        return False

    def _narrowed(self) -> dict[str, bytes]:
        """Return the members of the body without the tools that are withheld or forbidden."""
        parts = without_tools(
            self._members,
            self._withheld,
            self._declared_name,
            tools=self._tools_key,
            choice="",
            only_with_tools=(),
        )
        if self._without_tools:
            parts.pop(self._tools_key, None)
        return parts

    def ask_usage(self) -> None:
        """Do nothing, unless the dialect reports usage only on request."""
        return

    # Turns.

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        self._added += [message, *results]

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return orjson.dumps(
            {
                "messages": [self._shown(part, mask).decode() for part in (*self._added, message)],
                "calls": [
                    {
                        "call_id": call.call_id,
                        "client_id": call.client_id,
                        "result": stored_result(call.result),
                    }
                    for call in calls
                ],
            }
        )

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        held = orjson.loads(payload)
        for call in held["calls"]:
            if call["result"] is not None:
                call["result"] = written_result(call["result"], self.result_message)
        if waiting := [one["result"] for one in held["calls"] if isinstance(one["result"], ResultForModel)]:
            # No model is asked, so only the number of the turns is needed.
            self._restored[position] = RestoredMessages(position + 1, waiting, needed, 0)
            return
        end, results = self._collect_results(position + 1, held)
        restored = [*(part.encode() for part in held["messages"]), *results]
        if (size := sum(map(self._image_bytes, restored))) and not self._images.take(size):
            restored = list(map(self._without_images, restored))
        self._restored[position] = RestoredMessages.replacing(
            self._messages, position, end, restored, needed=needed
        )

    def _collect_results(self, start: int, held: Mapping[str, Any]) -> tuple[int, list[bytes]]:
        """Return where the client's results of a held turn end, and the messages that replace them.

        The results come in the order of the calls, ours and the client's, under the upstream's call ids.
        """
        end = start
        theirs: dict[str, bytes] = {}
        while end < len(self._messages) and (ids := self._answered_ids(self._messages[end])) is not None:
            theirs |= dict.fromkeys(ids, self._messages[end])
            end += 1
        results = []
        for call in held["calls"]:
            if call["result"] is not None:
                results.append(call["result"])
            elif (raw := theirs.get(call["client_id"])) is not None:
                same = call["client_id"] == call["call_id"]
                results.append(raw if same else self._with_id(raw, call["call_id"]))
        return end, results

    def _answered_ids(self, raw: bytes) -> Sequence[str] | None:
        return self._request.answered_ids(orjson.loads(raw))

    def _with_id(self, result: bytes, call_id: str) -> bytes:
        """Return a result as the result of another call."""
        return join_object({**members(result), self._RESULT_ID: orjson.dumps(call_id)})

    @property
    def restored(self) -> tuple[int, int]:
        return restored_size(self._restored)

    def _shown(self, raw: bytes, mask: Mask) -> bytes:
        """Return one of the proxy's messages as the store may hold it, for later restoring and the record."""
        masked = self._masked.get(raw)
        if masked is None:
            masked = self._masked[raw] = self._masked_turn(raw, mask)
        return masked

    def _whole(self) -> list[bytes]:
        """Return the whole conversation as the upstream gets it, before anything is left out."""
        return [*written(with_restored(self._messages, self._restored)), *self._added]

    def _ours(self) -> list[bytes]:
        """Return the messages of the next request that the client did not send in this request."""
        return [
            *self._added,
            *written(one for replacement in self._restored.values() for one in replacement.messages),
        ]

    def lower_token_limit(self, used: int) -> None:
        self._used_tokens = used

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows: list[MessageRecord] = []
        turn = 0
        for raw in self._added:
            message = orjson.loads(self._recorded(raw, mask))
            turn += self._is_model_message(message)
            rows += [
                replace(row, seq=seq) for seq, row in enumerate(self._rows(run_id, turn, message), len(rows))
            ]
        return rows

    def _recorded(self, raw: bytes, mask: Mask) -> bytes:
        """Return one of the proxy's messages as the record may hold it."""
        return self._shown(raw, mask)

    # Results and their images.

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        text, passed = choose_images(content, images, self._fits)
        return self._result(call, text, passed)

    def _fits(self, image: ResultImage) -> bool:
        """Return whether an image may be sent, and reserve room for it."""
        may_send = self._MOST_IMAGE_BYTES > 0 and not self._images.closed
        return may_send and self._images.take(len(image.url))

    def leave_out_images(self) -> None:
        self._images.closed = True

    @property
    def images_refused(self) -> bool:
        return self._images.refused

    # What the upstream refuses.

    def recover(self, message: str, code: str | None) -> bool:
        if is_too_long_error(message, code):
            return drop_unneeded(self._restored)
        return self._may_learn() and self._leave_out_refused(message, code)

    def _leave_out_refused(self, message: str, code: str | None) -> bool:
        """Leave out a field of the model's messages, or our images; return whether the error names one."""
        if self._refused.learn(message, self._whole(), self._theirs):
            return True
        if not self._images.closed and any(map(self._image_bytes, self._ours())):
            self._images.refuse(message, code)
            return True
        return False

    def _stripped(self, messages: Sequence[bytes], theirs: Sequence[bytes] = ()) -> Sequence[bytes]:
        """Return messages without what was refused. The client's own messages, ``theirs``, stay complete."""
        kept = self._refused.strip(messages, theirs)
        if not self._images.closed:
            return kept
        sent = set(map(id, theirs))
        return [raw if id(raw) in sent else self._without_images(raw) for raw in kept]

    def mark_translated(self) -> None:
        self._translated = True

    @property
    def _theirs(self) -> Sequence[bytes]:
        """The messages that the client wrote itself. Nothing is left out of them."""
        return () if self._translated else self._messages

    @property
    def _may_drop_choice(self) -> bool:
        """Whether the request is a translation that chooses among tools; it may have none."""
        return self._translated and any(member in self._named for member in self._ONLY_WITH_TOOLS)

    @property
    def _strips_all(self) -> bool:
        """Whether fields are left out of messages that the request held from the beginning."""
        return self._translated and bool(self._refused)

    def _may_learn(self) -> bool:
        """Return whether a refusal may concern something that the client did not write itself."""
        return bool(self._restored or self._added or self._translated)

    def leave_out_fields(self, names: Collection[str]) -> None:
        self._refused.leave_out(names)

    @property
    def fields_refused(self) -> frozenset[str]:
        return self._refused.learned


def _is_model_message(dialect: type[MessageListRequest], message: Mapping[str, Any]) -> bool:
    return dialect.speaker(message) == "model"
