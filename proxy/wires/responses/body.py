"""Responses: the request body for the upstream, turn after turn.

There are two ways to continue; the upstream decides which is possible. *Chained*: it stored the turn
before, and gets only new items with ``previous_response_id``. *Stateless*: it gets everything again,
including reasoning, item by item as it came. With a ``conversation`` the upstream appends to it by itself,
and wants only the outputs.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.base.events import ResultImage, ToolCall, ToolDefinition, ToolDefinitions
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
    masked_item,
    output_item,
    recorded_item,
    without_images,
)
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.own_items.summaries import SealedSummaries, is_own_compaction
from proxy.wires.responses.request import ResponsesRequest
from proxy.wires.turn.choice import forces_own, own_and_offered, relaxed
from proxy.wires.turn.named_tools import named_tools
from proxy.wires.turn.narrowed import drop_idle_choice, without_tools
from proxy.wires.turn.refused_fields import ITEM_FIELDS, RefusedFields
from proxy.wires.turn.restored import (
    Part,
    RestoredMessages,
    drop_unneeded,
    is_too_long_error,
    restored_size,
    with_restored,
    written,
    written_result,
)
from proxy.wires.turn.result_images import choose_images, is_about_one_image
from proxy.wires.turn.token_limit import tokens_left
from proxy.wires.upstream_port import ChainedEditor, Mask, StateHabit, SuspendedCall, TranslatedEditor

__all__ = ["ResponsesBody", "upstream_ids"]

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MOST_IMAGE_BYTES = 24 << 20
"""The most bytes of the proxy's images in one request, in base64. Providers accept some 50 MB."""
_OURS = SERVER_LABEL.encode()
_REASONING_REFUSED = ("encrypted_content", "encrypted content", "without its required")
_NOT_RUN = failure_text("budget_exhausted", "Not run: the request was over.")


class ResponsesBody(ChainedEditor, TranslatedEditor):
    """The body of one run's upstream requests."""

    def __init__(
        self,
        raw: bytes,
        request: ResponsesRequest,
        state: StateHabit,
        signer: ItemSigner,
        summaries: SealedSummaries,
    ) -> None:
        """Raise :class:`RequestError` for a compaction of the proxy that it cannot read."""
        self._signer = signer
        self._members = members(raw)
        self._request = request
        self._state: StateHabit = state
        self._chained = False
        given = self._members.get("input", b"[]")
        self._text_input = given if given[:1] == b'"' else None
        is_array = given[:1] == b"["
        self._input = elements(given) if is_array else [orjson.dumps(item) for item in request.items]
        if request.has_proxy_calls:
            self._open_compactions(summaries)
        self._declared = self._members.get("tools")
        self._before: list[Part] = []
        self._restored: dict[int, RestoredMessages] = {}
        self._resumed = False
        self._added: list[bytes] = []
        self._outputs: list[bytes] = []
        self._callers: dict[str, Any] = {}
        self._last_id = ""
        self._used_tokens = 0
        self._without_reasoning = False
        self._repair = False
        self._calls_made = 0
        self._kept_upstream: list[str] = []
        self._without_images = False
        self._images_refused = False
        self._refused = RefusedFields("input", ITEM_FIELDS, is_model_item)
        self._image_bytes: dict[int, int] = {}
        self._new_image_bytes = 0
        self._withheld: frozenset[str] = frozenset()
        self._translated = False
        self._own: Collection[str] = request.declared
        self._offered: frozenset[str] = frozenset()

    def _open_compactions(self, summaries: SealedSummaries) -> None:
        """Replace the proxy's own compaction items by their summaries."""
        for position, item in enumerate(self._request.items):
            if is_own_compaction(item):
                self._input[position] = orjson.dumps(summaries.message(item, f"input[{position}]"))

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        new = ToolDefinitions(added)
        self._own, self._offered = own_and_offered(self._request.declared, new, replaced)
        ours = {definition.name: definition_of(definition) for definition in replaced}
        declared = elements(self._declared) if self._declared and self._declared[:1] == b"[" else []
        kept = [ours.get(function_name(raw), raw) for raw in declared]
        if new:
            kept.append(new.joined("responses", definition_of))
        if kept:
            self._members["tools"] = join_array(kept)

    def mark_translated(self) -> None:
        self._translated = True

    def withhold(self, names: Collection[str]) -> None:
        self._withheld = frozenset(names)

    def withdraw(self) -> None:
        self._withheld = self._offered = frozenset()
        self._own = self._request.declared
        if self._declared is None:
            self._members.pop("tools", None)
        else:
            self._members["tools"] = self._declared

    def rename_model(self, model: str) -> None:
        self._members["model"] = orjson.dumps(model)

    def ask_usage(self) -> None:
        """Do nothing: the terminal event always has the usage."""

    def resume(self, continuation: bytes) -> None:
        """Continue from a response of the proxy, whose id the upstream does not know.

        ``continuation`` is the result of :meth:`continuation` for that response's run.
        """
        self._resumed = True
        held = orjson.loads(continuation)
        before = [written_result(item, self.result_message) for item in held["items"]]
        if held["upstream_id"]:
            self._members["previous_response_id"] = orjson.dumps(held["upstream_id"])
        elif held["previous_response_id"]:
            self._members["previous_response_id"] = orjson.dumps(held["previous_response_id"])
        else:
            self._members.pop("previous_response_id", None)
        if before:
            self._text_input = None
            self._before = before
            self._repair = True
            self._count_images(-1, before)

    def continuation(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return what the request after this run needs to continue it.

        ``message`` is the run's last turn. ``calls`` are its calls with the proxy's results, which wait for
        the client's.
        """
        turn = orjson.loads(message)
        pending = self._answers(calls)
        items: list[Part]
        chained = self._can_chain(turn)
        if chained or "conversation" in self._members:
            items = pending
        else:
            items = [*self._held_input(), *self._added, *self._turn_items(turn), *pending]
        self._note_kept(turn)
        return orjson.dumps(
            {
                "upstream_ids": self._kept_upstream,
                "upstream_id": turn["id"] if chained else "",
                "previous_response_id": orjson.loads(self._members.get("previous_response_id", b"null")),
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

    def _held_input(self) -> list[Part]:
        """Return the items before a resumed response, then the client's input with the hidden items in it."""
        return [*self._before, *with_restored(self._input, self._restored)]

    def _whole_input(self) -> list[bytes]:
        """Return the same for the model; raises UnfilledHole if a call still waits."""
        return written(self._held_input())

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """Put the hidden items of a run back into a client's full input.

        They replace the client's version of the model's turn. In a conversation the client sends only
        outputs, so they are inserted before these.
        """
        held = orjson.loads(payload)
        end = position + answer_length(orjson.loads(item) for item in self._input[position:])
        restored = [written_result(item, self.result_message) for item in held["items"]]
        self._text_input = None
        replacement = RestoredMessages.replacing(self._input, position, end, restored, needed=needed)
        # Encrypted turns never go upstream, so they do not count as replaced.
        sealed = sealed_bytes(self._input[position:end])
        self._restored[position] = replace(replacement, size=replacement.size + sealed)
        self._repair = True
        self._count_images(position, restored)

    @property
    def restored(self) -> tuple[int, int]:
        turns, size = restored_size(self._restored)
        return turns + self._resumed, size

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        turn = orjson.loads(message)
        self._chained = self._can_chain(turn)
        self._last_id = turn["id"]
        self._note_kept(turn)
        self._callers = {
            item["call_id"]: item["caller"]
            for item in turn["output"]
            if item.get("type") == "function_call" and item.get("caller") is not None
        }
        self._outputs = [self._with_caller(result) for result in results]
        self._calls_made += len(results) + sum(map(_is_provider_run, turn["output"]))
        self._added += [*self._turn_items(turn), *self._outputs]

    def _note_kept(self, turn: Mapping[str, Any]) -> None:
        """Record a response that the upstream says it stores, so that it can be deleted."""
        if turn["store"] is True and _ID.fullmatch(turn["id"]):
            self._kept_upstream.append(turn["id"])

    def _can_chain(self, turn: Mapping[str, Any]) -> bool:
        """Return whether the upstream stored the turn, as far as it tells."""
        if self._state == "stateless" or not turn["id"] or not self._request.may_store:
            return False
        return self._state == "chained" or turn["store"] is True

    def _turn_items(self, turn: Mapping[str, Any]) -> list[bytes]:
        return [orjson.dumps(item) for item in turn["output"]]

    def _with_caller(self, result: bytes) -> bytes:
        """Return the output with the caller of its call, which calls of a program need."""
        caller = self._callers.get(orjson.loads(result)["call_id"])
        return result if caller is None else join_object({**members(result), "caller": orjson.dumps(caller)})

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        turn = orjson.loads(message)
        items: list[Part] = [*self._added, *self._turn_items(turn), *self._answers(calls)]
        if "conversation" in self._members:
            # The upstream has the rest.
            items = self._answers(calls)
        return orjson.dumps({"items": _stored(items, mask)})

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """Return one result. Images go beside the text if the request has room for them."""
        text, passed = choose_images(content, images, self._fits)
        return output_item(call.call_id, text, passed)

    def _fits(self, image: ResultImage) -> bool:
        """Reserve room for an image. Return whether there was enough."""
        if self._without_images or not self._make_room(len(image.url)):
            return False
        self._new_image_bytes += len(image.url)
        return True

    def leave_out_images(self) -> None:
        self._without_images = True

    @property
    def images_refused(self) -> bool:
        return self._images_refused

    def leave_out_fields(self, names: Collection[str]) -> None:
        self._refused.leave_out(names)

    @property
    def fields_refused(self) -> frozenset[str]:
        return self._refused.learned

    @property
    def _theirs(self) -> Sequence[bytes]:
        """The items that the client wrote itself. Nothing is left out of them."""
        return () if self._translated else self._input

    def _count_images(self, place: int, items: Sequence[Part]) -> None:
        """Count the images that were restored at a place of the input; -1 stands for before all."""
        # While a call waits no model is asked, and nothing has to fit.
        whole = [item for item in items if isinstance(item, bytes)]
        if len(whole) == len(items) and (size := image_bytes(whole)):
            self._image_bytes[place] = size
            self._make_room(0)

    def _make_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes of images fit, after replacing older images by text."""
        most = _MOST_IMAGE_BYTES - self._new_image_bytes - size
        if most < 0:
            return False
        while sum(self._image_bytes.values()) > most:
            oldest = min(self._image_bytes)
            del self._image_bytes[oldest]
            if oldest < 0:
                self._before = [without_images(item) for item in written(self._before)]
            else:
                replacement = self._restored[oldest]
                messages = [without_images(item) for item in written(replacement.messages)]
                self._restored[oldest] = replace(replacement, messages=messages)
        return True

    def tools_named(self, message: str) -> frozenset[str]:
        tools = elements(self._narrowed().get("tools", b"[]"))
        return named_tools(message, tools, self._offered, called_by)

    def relax_tool_choice(self, called: Collection[str]) -> None:
        choice = orjson.loads(self._members.get("tool_choice", b"null"))
        free = relaxed(choice, called, self._own, called_by)
        if free != choice:
            self._members["tool_choice"] = orjson.dumps(free)

    def forbid_tools(self) -> bool:
        choice = orjson.loads(self._members.get("tool_choice", b"null"))
        if forces_own(choice, self._own, called_by):
            self._withheld |= self._offered
            return True
        self._members["tool_choice"] = b'"none"'
        return False

    def lower_token_limit(self, used: int) -> None:
        self._used_tokens = used

    def recover(self, message: str, code: str | None) -> bool:
        """Change what the upstream refused, if possible. Return whether a retry makes sense."""
        if is_too_long_error(message, code):
            dropped = drop_unneeded(self._restored)
            known = {at: size for at, size in self._image_bytes.items() if at < 0 or at in self._restored}
            self._image_bytes = known
            return dropped
        text = f"{code or ''} {message}".lower()
        if any(pattern in text for pattern in _REASONING_REFUSED) or ("rs_" in text and "not found" in text):
            if self._without_reasoning or not any(map(_is_reasoning, (*self._whole_input(), *self._added))):
                return False
            self._without_reasoning = True
            return True
        if self._chained and "previous_response" in text:
            self._chained = False
            self._state = "stateless"
            return True
        if self._refused.learn(message, self._kept(self._ours()), self._theirs):
            return True
        ours = self._ours() if not self._without_images else []
        if any(without_images(item) != item for item in ours):
            # Servers without images word their refusals in many ways.
            self._without_images = True
            self._images_refused = bool(message) and not is_about_one_image(text)
            return True
        return False

    def _ours(self) -> list[bytes]:
        """Return the items of the next request that may hold results of server tools."""
        if self._added and (self._chained or "conversation" in self._members):
            return self._outputs
        return [*self._whole_input(), *self._added]

    def render(self) -> bytes:
        parts = self._narrowed()
        if self._added:
            parts["input"] = self._later_input(parts)
        elif self._text_input is None and (whole := self._whole_input()):
            kept = self._kept(whole)
            # The client is responsible for what it sent; what the proxy adds must fit to it.
            parts["input"] = join_array(unique_calls(kept) if self._repair else kept)
        if self._used_tokens:
            bound = orjson.loads(parts.get("max_output_tokens", b"null"))
            if type(bound) is int:
                parts["max_output_tokens"] = tokens_left(bound, self._used_tokens)
        if self._calls_made and self._request.max_calls is not None:
            # Providers accept no less than 1. A run without calls left also forbids tools.
            parts["max_tool_calls"] = str(max(1, self._request.max_calls - self._calls_made)).encode()
        return join_object(parts)

    def _narrowed(self) -> dict[str, bytes]:
        """Return the members of the body without the withheld tools."""
        left = without_tools(
            self._members,
            self._withheld,
            called_by,
            tools="tools",
            choice="tool_choice",
            # A stored prompt may contain tools of its own.
            only_with_tools=() if self._request.open_names else ("tool_choice",),
        )
        if self._translated:
            drop_idle_choice(left, tools="tools", choice="tool_choice", others=("parallel_tool_calls",))
        return left

    def _later_input(self, parts: dict[str, bytes]) -> bytes:
        """Return the input of a turn after the first."""
        if "conversation" in parts:
            return join_array(self._said(self._outputs))
        if self._chained:
            parts["previous_response_id"] = orjson.dumps(self._last_id)
            return join_array(self._said(self._outputs))
        return join_array(unique_calls(self._kept([*self._whole_input(), *self._added])))

    def _said(self, items: Sequence[bytes]) -> Sequence[bytes]:
        """Return the items, with text in place of the proxy's images if the upstream takes none."""
        return [without_images(item) for item in items] if self._without_images else items

    def _as_upstream(self, raw: bytes) -> list[bytes]:
        """Return an item unchanged, or the items that replace one of the proxy's own."""
        labels = self._request.chosen.labels
        if not (labels or _OURS in raw) or not is_ours(item := orjson.loads(raw), labels):
            return [raw]
        signed = self._signer.verify(item)
        called = called_name(item, self._request.chosen.servers, self._offered)
        items = as_upstream_items(item, signed=signed, labels=labels, called=called)
        return [orjson.dumps(item) for item in items]

    def _kept(self, items: Sequence[bytes]) -> list[bytes]:
        """Return the items without unreadable ones, and without those that lost the item they belong to."""
        known = [sent for item in self._said(items) for sent in self._as_upstream(item)]
        # This must be first: the client's own items are recognized by object identity.
        known = list(self._refused.strip(known, self._theirs))
        kept: list[bytes] = []
        for position, item in enumerate(known):
            if _is_reasoning(item):
                following = known[position + 1] if position + 1 < len(known) else None
                orphaned = following is None or not _is_model_item(following)
                if self._without_reasoning or orphaned:
                    continue
            elif self._without_reasoning and _kind(item) == "function_call":
                # With the id, the provider would require the reasoning that belongs to it.
                item = join_object({key: raw for key, raw in members(item).items() if key != "id"})
            kept.append(item)
        return kept

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows = []
        turn = 1
        answered = False
        for seq, raw in enumerate(self._added):
            item = orjson.loads(masked_item(raw, mask))
            is_output = item.get("type") == "function_call_output"
            turn += answered and not is_output
            answered = is_output
            rows.append(recorded_item(run_id, turn, seq, item))
        return rows


def _stored(items: Sequence[Part], mask: Mask) -> list[Any]:
    return [stored_result(masked_item(item, mask) if isinstance(item, bytes) else item) for item in items]


def upstream_ids(continuation: bytes) -> list[str]:
    """Return the ids of a run's responses that the upstream stores, from the run's ``continuation``."""
    held = orjson.loads(continuation)
    return list(held.get("upstream_ids") or ())


def _is_provider_run(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a call of a tool that the upstream ran itself."""
    kind = str(item.get("type"))
    return kind.endswith("_call") and kind not in ("function_call", "custom_tool_call")


def _kind(raw: bytes) -> str:
    return str(orjson.loads(raw).get("type") or "message")


def _is_reasoning(raw: bytes) -> bool:
    return _kind(raw) == "reasoning"


def _is_model_item(raw: bytes) -> bool:
    return is_model_item(orjson.loads(raw))
