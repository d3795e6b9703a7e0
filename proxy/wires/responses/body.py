"""Responses: the request body for the upstream, turn after turn.

There are two ways to continue; the upstream decides which is possible. *Chained*: it stored the turn
before, and gets only new items with ``previous_response_id``. *Stateless*: it gets everything again,
including reasoning, item by item as it came. With a ``conversation`` the upstream appends to it by itself,
and wants only the outputs.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.events import ResultImage, ToolCall
from proxy.json.splice import elements, join_array, join_object, members
from proxy.records.result_for_model import failure_text, stored_result
from proxy.records.rows import MessageRecord
from proxy.wires.responses.items import (
    SERVER_LABEL,
    answer_length,
    as_upstream_items,
    called_name,
    is_model_item,
    is_ours,
    sealed_bytes,
    unique_calls,
)
from proxy.wires.responses.own_items.outputs import (
    called_by,
    definition_of,
    function_name,
    image_bytes,
    image_message,
    image_messages,
    masked_item,
    output_item,
    recorded_item,
    without_images,
)
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.own_items.summaries import SealedSummaries, is_own_compaction
from proxy.wires.responses.request import ResponsesRequest
from proxy.wires.turn.choice import forces_own, relaxed
from proxy.wires.turn.edits import (
    AppendedTurn,
    Edits,
    Part,
    RestoredMessages,
    is_too_long_error,
    tokens_left,
    with_restored,
    written,
    written_result,
)
from proxy.wires.turn.named_tools import named_tools
from proxy.wires.turn.narrowed import drop_idle_choice, without_tools
from proxy.wires.turn.refused_fields import ITEM_FIELDS, RefusedFields
from proxy.wires.turn.result_images import choose_images, takes_no_images
from proxy.wires.upstream_port import Mask, RequestBody, ResponseChain, StateHabit, SuspendedCall

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MOST_IMAGE_BYTES = 24 << 20
"""The most bytes of the proxy's images in one request, in base64. Providers accept some 50 MB."""
_OURS = SERVER_LABEL.encode()
_REASONING_REFUSED = ("encrypted_content", "encrypted content", "without its required")
_NOT_RUN = failure_text("budget_exhausted", "Not run: the request was over.")


class _Turn(AppendedTurn, frozen=True):
    """A turn; ``outputs`` are its results as items, ``response`` is the upstream's response without its
    output, and ``calls_made`` the number of calls that the proxy and the provider ran."""

    outputs: Sequence[bytes]
    response: Mapping[str, Any]
    calls_made: int


class _Resumed(Struct, frozen=True):
    """What a request continues: the items before its input, and its ``previous_response_id`` as JSON."""

    items: Sequence[Part] = ()
    previous: bytes | None = None
    image_bytes: int = 0


class ResponsesBody(RequestBody, ResponseChain):
    """The body of one run's upstream requests."""

    def __init__(
        self,
        raw: bytes,
        request: ResponsesRequest,
        state: StateHabit,
        signer: ItemSigner,
        summaries: SealedSummaries,
        *,
        translated: bool = False,
    ) -> None:
        """Raise :class:`RequestError` for a compaction of the proxy that it cannot read."""
        self._signer = signer
        self._members = members(raw)
        self._request = request
        self._state: StateHabit = state
        given = self._members.get("input", b"[]")
        self._text_input = given if given[:1] == b'"' else None
        is_array = given[:1] == b"["
        self._input = elements(given) if is_array else [orjson.dumps(item) for item in request.items]
        if request.has_proxy_calls:
            self._open_compactions(summaries)
        self._declared = self._members.get("tools")
        self._offered: tuple[object, object, bytes] | None = None
        self._resumed: tuple[bytes, _Resumed] = b"", _Resumed()
        self._refused = RefusedFields("input", ITEM_FIELDS, is_model_item)
        self._new_image_bytes = 0
        self._translated = translated

    @property
    def chain(self) -> ResponseChain:
        return self

    def _open_compactions(self, summaries: SealedSummaries) -> None:
        """Replace the proxy's own compaction items by their summaries."""
        for position, item in enumerate(self._request.items):
            if is_own_compaction(item):
                self._input[position] = orjson.dumps(summaries.message(item, f"input[{position}]"))

    def _with_offered(self, edits: Edits) -> bytes:
        """Return the client's tools and the offered ones. They are joined once for all turns."""
        if (
            self._offered is None
            or self._offered[0] is not edits.added
            or self._offered[1] is not edits.replaced
        ):
            ours = {definition.name: definition_of(definition) for definition in edits.replaced}
            declared = elements(self._declared) if self._declared and self._declared[:1] == b"[" else []
            tools = [ours.get(function_name(raw), raw) for raw in declared]
            if edits.added:
                tools.append(edits.added.joined("responses", definition_of))
            self._offered = edits.added, edits.replaced, join_array(tools)
        return self._offered[2]

    def _continued(self, edits: Edits) -> _Resumed:
        """Return what the request continues: a response of the proxy, whose id the upstream does not know.

        ``edits.resumed`` is the result of :meth:`continuation` for that response's run.
        """
        if self._resumed[0] != edits.resumed:
            held = orjson.loads(edits.resumed)
            items = self._restored_items(held)
            previous = held["upstream_id"] or held["previous_response_id"]
            read = _Resumed(items, orjson.dumps(previous) if previous else None, _image_bytes(items))
            self._resumed = edits.resumed, read
        return self._resumed[1]

    def _restored_items(self, held: Mapping[str, Any]) -> list[Part]:
        return [written_result(item, partial(self.result_message, Edits())) for item in held["items"]]

    def _previous(self, edits: Edits) -> bytes | None:
        """Return the JSON of the request's ``previous_response_id``."""
        return self._continued(edits).previous if edits.resumed else self._members.get("previous_response_id")

    def continuation(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return what the request after this run needs to continue it.

        ``message`` is the run's last turn. ``calls`` are its calls with the proxy's results, which wait for
        the client's.
        """
        turn = orjson.loads(message)
        pending = self._answers(calls)
        chained = self._can_chain(edits, turn)
        items = pending
        if not (chained or "conversation" in self._members):
            items = [*self._held_input(edits), *_added(edits), *_turn_items(turn), *pending]
        return orjson.dumps(
            {
                "upstream_ids": [
                    response["id"]
                    for response in (*(made.response for made in _turns(edits)), turn)
                    if response["store"] is True and _ID.fullmatch(response["id"])
                ],
                "upstream_id": turn["id"] if chained else "",
                "previous_response_id": orjson.loads(self._previous(edits) or b"null"),
                "items": _stored(items, mask),
            }
        )

    def _answers(self, calls: Sequence[SuspendedCall]) -> list[Part]:
        """Return an output for each call that the client does not answer, whether it ran or not."""
        return [
            call.result or output_item(call.call_id, _NOT_RUN)
            for call in calls
            if call.result is not None or call.client_id is None
        ]

    def input_items(self) -> bytes:
        return orjson.dumps(list(self._request.items))

    def _whole_input(self, edits: Edits) -> list[bytes]:
        """Return :meth:`_held_input` for the model; raises UnfilledHole if a call still waits."""
        return written(self._held_input(edits))

    def _held_input(self, edits: Edits) -> list[Part]:
        """Return the items before a resumed response, then the client's input with the hidden items in it.

        The oldest of the proxy's images become text if there are too many bytes of them.
        """
        before, restored = self._continued(edits).items, edits.restored
        sizes = {at: turn.image_bytes for at, turn in restored.items() if turn.image_bytes}
        sizes[-1] = self._continued(edits).image_bytes
        while sum(sizes.values()) > _MOST_IMAGE_BYTES - self._new_image_bytes:
            oldest = min(sizes)
            del sizes[oldest]
            if oldest < 0:
                before = _without_images(before)
            else:
                messages = _without_images(restored[oldest].messages)
                restored = {**restored, oldest: replace(restored[oldest], messages=messages)}
        return [*before, *with_restored(self._input, restored)]

    def restore(self, position: int, payload: bytes, *, needed: bool) -> RestoredMessages:
        """Read the hidden items of a run.

        They replace the client's version of the model's turn, whose images follow. In a conversation the
        client sends only outputs, so they are inserted before these.
        """
        held = orjson.loads(payload)
        end = position + answer_length(orjson.loads(item) for item in self._input[position:])
        items = [*self._restored_items(held), *image_messages(self._input[position:end])]
        replacement = RestoredMessages.replacing(self._input, position, end, items, needed=needed)
        # Encrypted turns never go upstream, so they do not count as replaced.
        size = replacement.size + sealed_bytes(self._input[position:end])
        return replace(replacement, size=size, image_bytes=_image_bytes(items))

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        turn = orjson.loads(message)
        callers = {
            item["call_id"]: item["caller"]
            for item in turn["output"]
            if item.get("type") == "function_call" and item.get("caller") is not None
        }
        outputs = [_with_caller(result, callers) for result in results]
        calls_made = len(results) + sum(map(_is_provider_run, turn["output"]))
        written = [*_turn_items(turn), *outputs]
        return _Turn(message, results, written, outputs, {**turn, "output": None}, calls_made)

    def _can_chain(self, edits: Edits, turn: Mapping[str, Any]) -> bool:
        """Return whether the upstream stored the turn, as far as it tells."""
        if edits.stateless or self._state == "stateless" or not turn["id"] or not self._request.may_store:
            return False
        return self._state == "chained" or turn["store"] is True

    def _last_turn(self, edits: Edits) -> _Turn | None:
        """Return the turn whose response the next request continues; ``None`` if there is none."""
        last = _turns(edits)[-1] if edits.turns else None
        return last if last is not None and self._can_chain(edits, last.response) else None

    def suspend(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        turn = orjson.loads(message)
        items: list[Part] = [*_added(edits), *_turn_items(turn), *self._answers(calls)]
        if "conversation" in self._members:
            # The upstream has the rest.
            items = self._answers(calls)
        return orjson.dumps({"items": _stored(items, mask)})

    def result_message(
        self, edits: Edits, call: ToolCall, content: str, images: Sequence[ResultImage]
    ) -> bytes:
        """Return one result. Images go beside the text if the request has room for them."""
        text, passed = choose_images(
            content, images, (lambda _: False) if edits.images_left_out else self._fits
        )
        return output_item(call.call_id, text, passed)

    def _fits(self, image: ResultImage) -> bool:
        """Reserve room for an image. Return whether there was enough."""
        size = self._new_image_bytes + len(image.url)
        if size > _MOST_IMAGE_BYTES:
            return False
        self._new_image_bytes = size
        return True

    @property
    def _theirs(self) -> Sequence[bytes]:
        """The items that the client wrote itself. Nothing is left out of them."""
        return () if self._translated else self._input

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        tools = elements(self._narrowed(edits).get("tools", b"[]"))
        return named_tools(message, tools, edits.offered, called_by)

    def forces_own_call(self, edits: Edits) -> bool:
        own = [name for name in self._request.declared if name not in edits.offered]
        return forces_own(orjson.loads(self._members.get("tool_choice", b"null")), own, called_by)

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        if is_too_long_error(message, code):
            return edits.without_unneeded()
        text = f"{code or ''} {message}".lower()
        if any(pattern in text for pattern in _REASONING_REFUSED) or ("rs_" in text and "not found" in text):
            may_help = any(map(_is_reasoning, (*self._whole_input(edits), *_added(edits))))
            is_new = may_help and not edits.reasoning_left_out
            return replace(edits, reasoning_left_out=True) if is_new else None
        if self._last_turn(edits) is not None and "previous_response" in text:
            return replace(edits, stateless=True)
        ours = self._ours(edits)
        kept = self._kept(ours, edits)
        if learned := self._refused.learn(edits, message, kept, self._theirs):
            return learned
        if not edits.images_left_out and any(without_images(item) != item for item in kept):
            # Servers without images word their refusals in many ways.
            return replace(edits, images_left_out=True, images_refused=takes_no_images(message, code))
        return None

    def _ours(self, edits: Edits) -> Sequence[bytes]:
        """Return the items of the next request that may hold results of server tools."""
        if edits.turns and (self._last_turn(edits) is not None or "conversation" in self._members):
            return _turns(edits)[-1].outputs
        return [*self._whole_input(edits), *_added(edits)]

    def render(self, edits: Edits) -> bytes:
        parts = self._narrowed(edits)
        is_edited = bool(edits.restored or self._continued(edits).items)
        if edits.turns:
            parts["input"] = self._later_input(edits, parts)
        elif (self._text_input is None or is_edited) and (whole := self._whole_input(edits)):
            kept = self._kept(whole, edits)
            # The client is responsible for what it sent; what the proxy adds must fit to it.
            parts["input"] = join_array(unique_calls(kept) if is_edited else kept)
        if edits.used_tokens:
            bound = orjson.loads(parts.get("max_output_tokens", b"null"))
            if type(bound) is int:
                parts["max_output_tokens"] = tokens_left(bound, edits.used_tokens)
        made = sum(turn.calls_made for turn in _turns(edits))
        if made and self._request.max_calls is not None:
            # Providers accept no less than 1. A run without calls left also forbids tools.
            parts["max_tool_calls"] = str(max(1, self._request.max_calls - made)).encode()
        return join_object(parts)

    def _edited_members(self, edits: Edits) -> dict[str, bytes]:
        """Return the members with the model's name, the offered tools, the choice and the response before."""
        parts = dict(self._members)
        if edits.model:
            parts["model"] = orjson.dumps(edits.model)
        if edits.resumed:
            if (previous := self._previous(edits)) is not None:
                parts["previous_response_id"] = previous
            else:
                parts.pop("previous_response_id", None)
        if edits.added or edits.replaced:
            parts["tools"] = self._with_offered(edits)
        if edits.forbids_calls:
            parts["tool_choice"] = b'"none"'
        elif edits.called and "tool_choice" in parts:
            choice = orjson.loads(parts["tool_choice"])
            free = relaxed(choice, edits.called, (), called_by)
            if free != choice:
                parts["tool_choice"] = orjson.dumps(free)
        return parts

    def _narrowed(self, edits: Edits) -> dict[str, bytes]:
        """Return the members of the body without the withheld tools."""
        left = without_tools(
            self._edited_members(edits),
            edits.withheld,
            called_by,
            tools="tools",
            choice="tool_choice",
            # A stored prompt may contain tools of its own.
            only_with_tools=() if self._request.open_names else ("tool_choice",),
        )
        if self._translated:
            drop_idle_choice(left, tools="tools", choice="tool_choice", others=("parallel_tool_calls",))
        return left

    def _later_input(self, edits: Edits, parts: dict[str, bytes]) -> bytes:
        """Return the input of a turn after the first."""
        last = self._last_turn(edits)
        if last is not None and "conversation" not in parts:
            parts["previous_response_id"] = orjson.dumps(last.response["id"])
        if last is not None or "conversation" in parts:
            return join_array(_sent(_turns(edits)[-1].outputs, edits))
        return join_array(unique_calls(self._kept([*self._whole_input(edits), *_added(edits)], edits)))

    def _as_upstream(self, raw: bytes, edits: Edits) -> list[bytes]:
        """Return an item unchanged, or the items that replace one of the proxy's own."""
        labels = self._request.chosen.labels
        if not (labels or _OURS in raw) or not is_ours(item := orjson.loads(raw), labels):
            return [raw]
        if (image := image_message(item)) is not None:
            return list(_sent([orjson.dumps(image)], edits))
        signed = self._signer.verify(item)
        called = called_name(item, self._request.chosen.servers, edits.offered)
        items = as_upstream_items(item, signed=signed, labels=labels, called=called)
        return [orjson.dumps(item) for item in items]

    def _kept(self, items: Sequence[bytes], edits: Edits) -> list[bytes]:
        """Return the items without unreadable ones, and without those that lost the item they belong to."""
        known = [sent for item in _sent(items, edits) for sent in self._as_upstream(item, edits)]
        # This must be first: the client's own items are recognized by object identity.
        known = list(self._refused.strip(edits.fields_left_out, known, self._theirs))
        kept: list[bytes] = []
        for position, item in enumerate(known):
            if _is_reasoning(item):
                following = known[position + 1] if position + 1 < len(known) else None
                orphaned = following is None or not is_model_item(orjson.loads(following))
                if edits.reasoning_left_out or orphaned:
                    continue
            elif edits.reasoning_left_out and _kind(item) == "function_call":
                # With the id, the provider would require the reasoning that belongs to it.
                item = join_object({key: raw for key, raw in members(item).items() if key != "id"})
            kept.append(item)
        return kept

    def records(self, edits: Edits, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows = []
        turn = 1
        answered = False
        for seq, raw in enumerate(_added(edits)):
            item = orjson.loads(masked_item(raw, mask))
            is_output = item.get("type") == "function_call_output"
            turn += answered and not is_output
            answered = is_output
            rows.append(recorded_item(run_id, turn, seq, item))
        return rows


def _stored(items: Sequence[Part], mask: Mask) -> list[Any]:
    return [stored_result(masked_item(item, mask) if isinstance(item, bytes) else item) for item in items]


def _image_bytes(items: Sequence[Part]) -> int:
    return image_bytes([item for item in items if isinstance(item, bytes)])


def _without_images(items: Sequence[Part]) -> list[Part]:
    return [without_images(item) if isinstance(item, bytes) else item for item in items]


def upstream_ids(continuation: bytes) -> list[str]:
    """Return the ids of a run's responses that the upstream stores, from the run's ``continuation``."""
    held = orjson.loads(continuation)
    return list(held.get("upstream_ids") or ())


def _turns(edits: Edits) -> Sequence[_Turn]:
    return cast(Sequence[_Turn], edits.turns)


def _added(edits: Edits) -> list[bytes]:
    """Return the items of this run's turns."""
    return [item for turn in edits.turns for item in turn.written]


def _turn_items(turn: Mapping[str, Any]) -> list[bytes]:
    return [orjson.dumps(item) for item in turn["output"]]


def _with_caller(result: bytes, callers: Mapping[str, Any]) -> bytes:
    """Return the output with the caller of its call, which calls of a program need."""
    if not callers or (caller := callers.get(orjson.loads(result)["call_id"])) is None:
        return result
    return join_object({**members(result), "caller": orjson.dumps(caller)})


def _sent(items: Sequence[bytes], edits: Edits) -> Sequence[bytes]:
    """Return the items, with text in place of the proxy's images if the upstream takes none."""
    return [without_images(item) for item in items] if edits.images_left_out else items


def _is_provider_run(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a call of a tool that the upstream ran itself."""
    kind = str(item.get("type"))
    return kind.endswith("_call") and kind not in ("function_call", "custom_tool_call")


def _kind(raw: bytes) -> str:
    return str(orjson.loads(raw).get("type") or "message")


def _is_reasoning(raw: bytes) -> bool:
    return _kind(raw) == "reasoning"
