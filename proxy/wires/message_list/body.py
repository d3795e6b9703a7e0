"""The editor of a request body that holds its conversation as a list of messages.

This module has the part that all such dialects have in common: it cuts the body, offers tools, adds, keeps
and restores turns, and leaves out what an upstream refuses. Each dialect defines the form of a tool, a
message and a result.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar

import orjson
from msgspec.structs import replace

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.json.splice import elements, extend_array, extend_object, join_array, join_object, members
from proxy.records.result_for_model import ResultForModel, stored_result
from proxy.records.rows import MessageRecord
from proxy.wires.message_list.request import MessageListRequest
from proxy.wires.turn.choice import forces_own, relaxed
from proxy.wires.turn.edits import (
    AppendedTurn,
    Edits,
    RestoredMessages,
    is_too_long_error,
    with_restored,
    written,
    written_result,
)
from proxy.wires.turn.named_tools import named_tools
from proxy.wires.turn.narrowed import drop_idle_choice, without_tools
from proxy.wires.turn.refused_fields import RefusedFields
from proxy.wires.turn.result_images import ImageBudget, choose_images, takes_no_images
from proxy.wires.upstream_port import Mask, RequestBody, SuspendedCall


class MessageListBody(RequestBody):
    """The body of one run's upstream requests.

    The body is cut into the raw values of its members only when a member that the client sent must change.
    """

    _MESSAGES: ClassVar[str] = "messages"
    """The member with the conversation."""
    _TOOLS: ClassVar[str] = "tools"
    """The member with the tools."""
    _CHOICE: ClassVar[str] = ""
    """The member with the choice of a tool; empty if the dialect cannot force a call."""
    _OTHERS_WITH_TOOLS: ClassVar[Sequence[str]] = ()
    """The other members that upstreams refuse without tools."""
    _RESULT_ID: ClassVar[str]
    """The member of a result with the id of its call, in a dialect whose messages have one result each."""
    _NEEDED_FIELDS: ClassVar[frozenset[str]] = frozenset()
    """Fields without which a message would mean something else: no refusal removes them."""
    _MOST_IMAGE_BYTES: ClassVar[int] = 0
    """The size limit for our images in one request, in base64; 0 if results have no place for images."""

    def __init__(
        self,
        raw: bytes,
        request: MessageListRequest,
        *,
        tools_key: str = "",
        choice_key: str = "",
        translated: bool = False,
    ) -> None:
        """The keys are the names of the members with the tools and with the choice; empty for the usual.

        ``translated``: the client sent no message of this body, so fields may be left out of each.
        """
        self._raw = raw
        self._request = request
        self._named = request.members
        self._cut: dict[str, bytes] | None = None
        self._client_messages: list[bytes] | None = None
        self._tools_key = tools_key or self._TOOLS
        self._choice_key = choice_key or self._CHOICE
        self._form = f"{request.dialect_name} {self._tools_key}"
        self._declared = self._members.get(self._tools_key) if self._tools_key in self._named else None
        self._offered: tuple[object, object, bytes] | None = None
        self._masked: dict[bytes, bytes] = {}
        self._is_model_message = partial(_is_model_message, type(request))
        self._translated = translated

    @cached_property
    def _refused(self) -> RefusedFields:
        return RefusedFields(self._MESSAGES, self._NEEDED_FIELDS, self._is_model_message)

    @cached_property
    def _images(self) -> ImageBudget:
        return ImageBudget(self._MOST_IMAGE_BYTES)

    # How a dialect writes and reads tools and messages.

    @abstractmethod
    def _tool(self, definition: ToolDefinition) -> bytes:
        """Return one element of the list of tools."""

    @abstractmethod
    def _declared_name(self, tool: Any) -> str | None:
        """Return the name of a tool in the client's list."""

    @abstractmethod
    def _masked_turn(self, message: bytes, mask: Mask) -> bytes:
        """Return a message with the private arguments of its calls masked; the same bytes if it has none."""

    @abstractmethod
    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        """Return the result of a call, with the images that may be sent."""

    @abstractmethod
    def _rows(self, run_id: str, turn: int, message: Mapping[str, Any]) -> Sequence[MessageRecord]:
        """Return a message as rows of the record, which are numbered later."""

    def _chosen_name(self, tool: Any) -> str | None:
        """Return the name of a tool, from a declaration or from a choice."""
        return self._declared_name(tool)

    def _usage_request(self) -> Mapping[str, bytes]:
        """Return the members that ask for usage, in a dialect that reports it only on request."""
        return {}

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

    def _limit_tokens(self, parts: dict[str, bytes], used: int) -> None:
        """Lower the client's limit on output tokens in ``parts`` by the tokens that earlier turns used.

        Do nothing if the dialect has no such limit.
        """
        return

    # The members of the body.

    @property
    def _members(self) -> dict[str, bytes]:
        """The raw values of the members of the client's body."""
        if self._cut is None:
            self._cut = members(self._raw)
            self._raw = b""
        return self._cut

    @property
    def _messages(self) -> list[bytes]:
        """The raw messages that the client sent."""
        if self._client_messages is None:
            self._client_messages = elements(self._members.get(self._MESSAGES, b"[]"))
        return self._client_messages

    def _changed(self, edits: Edits) -> dict[str, bytes]:
        """Return the members that are added, or have a new value whatever the client sent."""
        changed = {"model": orjson.dumps(edits.model)} if edits.model else {}
        if edits.added or edits.replaced:
            changed[self._tools_key] = self._with_offered(edits)
        if edits.asks_usage:
            changed |= self._usage_request()
        return changed

    def _with_offered(self, edits: Edits) -> bytes:
        """Return the client's tools and the offered ones. They are joined once for all turns."""
        if (
            self._offered is None
            or self._offered[0] is not edits.added
            or self._offered[1] is not edits.replaced
        ):
            tools = self._declared if self._declared and self._declared[:1] == b"[" else b"[]"
            if edits.replaced:
                ours = {definition.name: definition for definition in edits.replaced}
                tools = join_array(self._replaced(raw, ours) for raw in elements(tools))
            new = [edits.added.joined(self._form, self._definition)] if edits.added else ()
            self._offered = edits.added, edits.replaced, extend_array(tools, new)
        return self._offered[2]

    def _replaced(self, raw: bytes, ours: Mapping[str, ToolDefinition]) -> bytes:
        definition = ours.get(self._declared_name(orjson.loads(raw)) or "")
        return raw if definition is None else self._replacement(raw, definition)

    def _only_adds(self, edits: Edits) -> bool:
        """Return whether the request differs from the client's by added members alone."""
        tools_changed = edits.withheld or edits.forbids_calls
        changed = edits.restored or edits.turns or tools_changed or edits.used_tokens
        return self._cut is None and not (changed or self._strips_all(edits) or self._may_drop_choice)

    def _put_messages(self, parts: dict[str, bytes], edits: Edits) -> None:
        """Set the conversation in ``parts``, the members of the next request."""
        if edits.restored or self._strips_all(edits):
            parts[self._MESSAGES] = join_array(self._stripped(self._whole(edits), edits, self._theirs))
        elif edits.turns:
            added = self._stripped(_added(edits), edits)
            parts[self._MESSAGES] = extend_array(parts.get(self._MESSAGES, b"[]"), added)

    def render(self, edits: Edits) -> bytes:
        changed = self._changed(edits)
        if self._only_adds(edits) and changed.keys().isdisjoint(self._named):
            return extend_object(self._raw, changed)
        parts = self._narrowed(edits, changed)
        if self._may_drop_choice:
            drop_idle_choice(
                parts, tools=self._tools_key, choice=self._choice_key, others=self._OTHERS_WITH_TOOLS
            )
        self._put_messages(parts, edits)
        if edits.used_tokens:
            self._limit_tokens(parts, edits.used_tokens)
        return self._joined(parts, edits)

    def _joined(self, parts: dict[str, bytes], edits: Edits) -> bytes:
        """Return the body with these members."""
        return join_object(parts)

    # Tools.

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        parts = self._narrowed(edits, self._changed(edits))
        return named_tools(
            message, elements(parts.get(self._tools_key, b"[]")), edits.offered, self._declared_name
        )

    def forces_own_call(self, edits: Edits) -> bool:
        own = [name for name in self._request.declared if name not in edits.offered]
        return forces_own(self._choice(), own, self._chosen_name)

    def _choice(self) -> Any:
        """Return the client's tool choice, ``None`` without one, in the form of Chat and Responses."""
        return orjson.loads(self._members[self._choice_key]) if self._choice_key in self._named else None

    def _narrowed(self, edits: Edits, changed: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the members of the body without the tools that are withheld or forbidden."""
        parts = {**self._members, **changed}
        if self._choice_key:
            self._choose(parts, edits)
        elif edits.forbids_calls:
            parts.pop(self._tools_key, None)
        return without_tools(
            parts,
            edits.withheld,
            self._chosen_name,
            tools=self._tools_key,
            choice=self._choice_key,
            only_with_tools=(self._choice_key, *self._OTHERS_WITH_TOOLS),
        )

    def _choose(self, parts: dict[str, bytes], edits: Edits) -> None:
        """Set the tool choice of the next request."""
        if edits.forbids_calls:
            parts[self._choice_key] = b'"none"'
        elif edits.called and self._choice_key in parts:
            choice = orjson.loads(parts[self._choice_key])
            free = relaxed(choice, edits.called, (), self._chosen_name)
            if free != choice:
                parts[self._choice_key] = orjson.dumps(free)

    # Turns.

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        return AppendedTurn(message, results, (message, *results))

    def suspend(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return orjson.dumps(
            {
                "messages": [self._shown(part, mask).decode() for part in (*_added(edits), message)],
                "calls": [_stored_call(call) for call in calls],
            }
        )

    def restore(self, position: int, payload: bytes, *, needed: bool) -> RestoredMessages:
        held = orjson.loads(payload)
        for call in held["calls"]:
            if call["result"] is not None:
                call["result"] = written_result(call["result"], partial(self.result_message, Edits()))
        if waiting := [one["result"] for one in held["calls"] if isinstance(one["result"], ResultForModel)]:
            # No model is asked, so only the number of the turns is needed.
            return RestoredMessages(position + 1, waiting, needed, 0)
        end, results = self._collect_results(position + 1, held)
        restored = [*(part.encode() for part in held["messages"]), *results]
        if (size := sum(map(self._image_bytes, restored))) and not self._images.take(size):
            restored = list(map(self._without_images, restored))
        return RestoredMessages.replacing(self._messages, position, end, restored, needed=needed)

    def _collect_results(self, start: int, held: Mapping[str, Any]) -> tuple[int, list[bytes]]:
        """Return where the client's results of a held turn end, and the messages that replace them.

        The results come in the order of the calls, ours and the client's, under the upstream's call ids.
        """
        end = start
        theirs: dict[str, bytes] = {}
        while (
            end < len(self._messages)
            and (ids := self._request.answered_ids(orjson.loads(self._messages[end]))) is not None
        ):
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

    def _with_id(self, result: bytes, call_id: str) -> bytes:
        """Return a result as the result of another call."""
        return join_object({**members(result), self._RESULT_ID: orjson.dumps(call_id)})

    def _shown(self, raw: bytes, mask: Mask) -> bytes:
        """Return one of the proxy's messages as the store may hold it, for later restoring and the record."""
        masked = self._masked.get(raw)
        if masked is None:
            masked = self._masked[raw] = self._masked_turn(raw, mask)
        return masked

    def _whole(self, edits: Edits) -> list[bytes]:
        """Return the whole conversation as the upstream gets it, before anything is left out."""
        return [*written(with_restored(self._messages, edits.restored)), *_added(edits)]

    def records(self, edits: Edits, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows: list[MessageRecord] = []
        turn = 0
        for raw in _added(edits):
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

    def result_message(
        self, edits: Edits, call: ToolCall, content: str, images: Sequence[ResultImage]
    ) -> bytes:
        text, passed = choose_images(
            content, images, (lambda _: False) if edits.images_left_out else self._fits
        )
        return self._result(call, text, passed)

    def _fits(self, image: ResultImage) -> bool:
        """Return whether an image may be sent, and reserve room for it."""
        return self._MOST_IMAGE_BYTES > 0 and self._images.take(len(image.url))

    # What the upstream refuses.

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        if is_too_long_error(message, code):
            return edits.without_unneeded()
        return self._leave_out_refused(edits, message, code) if self._may_learn(edits) else None

    def _leave_out_refused(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        """Leave out a field of the model's messages, or our images, if the error names one."""
        if learned := self._refused.learn(edits, message, self._whole(edits), self._theirs):
            return learned
        restored = written(chain.from_iterable(turn.messages for turn in edits.restored.values()))
        if not edits.images_left_out and any(map(self._image_bytes, (*_added(edits), *restored))):
            return replace(edits, images_left_out=True, images_refused=takes_no_images(message, code))
        return None

    def _stripped(
        self, messages: Sequence[bytes], edits: Edits, theirs: Sequence[bytes] = ()
    ) -> Sequence[bytes]:
        """Return messages without what was refused. The client's own messages, ``theirs``, stay complete."""
        kept = self._refused.strip(edits.fields_left_out, messages, theirs)
        if not edits.images_left_out:
            return kept
        sent = set(map(id, theirs))
        return [raw if id(raw) in sent else self._without_images(raw) for raw in kept]

    @property
    def _theirs(self) -> Sequence[bytes]:
        """The messages that the client wrote itself. Nothing is left out of them."""
        return () if self._translated else self._messages

    @property
    def _may_drop_choice(self) -> bool:
        """Whether the request is a translation that chooses among tools; it may have none."""
        members = (self._choice_key, *self._OTHERS_WITH_TOOLS)
        return self._translated and any(member in self._named for member in members)

    def _strips_all(self, edits: Edits) -> bool:
        """Return whether fields are left out of messages that the request held from the beginning."""
        return self._translated and bool(edits.fields_left_out)

    def _may_learn(self, edits: Edits) -> bool:
        """Return whether a refusal may concern something that the client did not write itself."""
        return bool(edits.restored or edits.turns or self._translated)


def _stored_call(call: SuspendedCall) -> dict[str, Any]:
    """Return a call of a held turn, as it is stored."""
    stored = {
        "call_id": call.call_id,
        "client_id": call.client_id,
        "result": stored_result(call.result),
    }
    if (made := call.made_by_program) is not None:
        # Of the client's own tools no argument is private; it sends these back as they are.
        stored["made"] = [made.name, orjson.loads(made.arguments)]
    return stored


def _is_model_message(dialect: type[MessageListRequest], message: Mapping[str, Any]) -> bool:
    return dialect.speaker(message) == "model"


def _added(edits: Edits) -> list[bytes]:
    """Return the messages of this run's turns."""
    return [message for turn in edits.turns for message in turn.written]
