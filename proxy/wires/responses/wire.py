"""The wire of OpenAI Responses."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson
from msgspec import structs

from proxy.base.conversation import Message
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientRequest, ClientView, ProgramResults, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.hosted.part_ids import PartIds
from proxy.wires.responses.approvals import RESPONSES_APPROVALS
from proxy.wires.responses.body import ResponsesBody
from proxy.wires.responses.crossing.encoder import ResponsesTurnEncoder
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS
from proxy.wires.responses.crossing.from_client import read_conversation
from proxy.wires.responses.crossing.to_upstream import body_of
from proxy.wires.responses.dialect import RESPONSES
from proxy.wires.responses.items import own_mark, response_of, turn_items, with_items, without_sealed_turns
from proxy.wires.responses.own_items.hosted import hosted_tools, spoken
from proxy.wires.responses.own_items.images import shown_images
from proxy.wires.responses.own_items.outputs import masked_item
from proxy.wires.responses.own_items.programs import (
    Fingerprints,
    ProgramForm,
    joined_programs,
    output_of,
    without_callers,
)
from proxy.wires.responses.own_items.shown import opening_items
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.own_items.summaries import SealedSummaries
from proxy.wires.responses.reader import ResponsesTurnReader
from proxy.wires.responses.reply import ResponsesReplyWriter
from proxy.wires.responses.request import ResponsesRequest, parse_responses_request
from proxy.wires.responses.resource import ClientTools
from proxy.wires.responses.typed_tools.request import as_functions
from proxy.wires.responses.typed_tools.searching import with_search
from proxy.wires.responses.typed_tools.table import items_with_tools
from proxy.wires.responses.writer import ResponsesStreamWriter
from proxy.wires.turn.chosen import rewrite_choice
from proxy.wires.upstream_port import Mask, RequestBody, StateHabit
from proxy.wires.wire import Wire

_OURS = own_mark("").encode()


class ResponsesWire(Wire):
    """The Responses wire.

    ``key`` signs the items that show server calls, and encrypts summaries. Without it only this process can
    verify and read them. ``old_keys`` still decrypt summaries.
    """

    dialect = RESPONSES
    approvals = RESPONSES_APPROVALS
    as_functions = staticmethod(as_functions)
    hosted_tools = staticmethod(hosted_tools)
    shown_images = staticmethod(shown_images)
    spoken = staticmethod(spoken)
    with_search = staticmethod(with_search)
    items_with_tools = staticmethod(items_with_tools)
    codec = ConversationCodec(RESPONSES_FIELDS, read_conversation, body_of, returns_reasoning=True)

    reader = ResponsesTurnReader
    only_with_tools = ("tool_choice", "parallel_tool_calls")
    write_turn = staticmethod(turn_items)

    def __init__(self, key: bytes | None = None, *, old_keys: Sequence[bytes] = ()) -> None:
        self._key = key or secrets.token_bytes(32)
        self._keys = (self._key, *old_keys)

    def joined_programs(self, raw: bytes) -> tuple[bytes, ProgramResults] | None:
        return joined_programs(raw)

    def check_container(self, payload: Mapping[str, Any], caller: str, *, needed: bool) -> None:
        if needed:
            Fingerprints(self._keys, caller).check(payload)

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        return parse_responses_request(payload)

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        """See :meth:`proxy.wires.wire.Wire.without_chosen`.

        The request keeps the labels of the servers, because items that show calls of their tools need them.
        """
        if any(tool.programs is not None for tool, _ in request.chosen.hosted):
            raw = without_callers(raw)
        less, asked = super().without_chosen(raw, request, shown)
        return less, replace(cast(ResponsesRequest, asked), chosen=request.chosen)

    def _rewrite_choice(self, parts: dict[str, bytes], request: ClientRequest, shown: ShownTools) -> None:
        rewrite_choice(parts, shown, request.chosen, named=_named, allowed=_allowed)

    def without_carried(self, raw: bytes) -> bytes:
        return without_sealed_turns(raw)

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        asked = cast(ResponsesRequest, request)
        return ResponsesTurnEncoder(request.model, asked.asked, asked.response_id)

    def may_refer(self, raw: bytes, *, only_ours: bool = False) -> bool:
        return not only_ours or _OURS in raw

    def referred(self, request: ClientRequest) -> Mapping[str, str]:
        asked = cast(ResponsesRequest, request)
        return {item_id: response_of(item_id) for item_id in (*asked.references, *asked.named_images)}

    def verified(self, ids: Sequence[str], caller: str) -> Sequence[str]:
        return PartIds(self._keys, caller).verified(ids)

    def with_items(self, raw: bytes, request: ClientRequest, responses: Sequence[bytes]) -> bytes:
        return with_items(raw, cast(ResponsesRequest, request).items, responses)

    def read_turn(self, message: bytes) -> Message:
        output = orjson.loads(message)["output"]
        messages = self.codec.read({"model": "-", "input": output}).messages
        return Message("assistant", tuple(part for message in messages for part in message.parts))

    def masked_turn(self, message: bytes, mask: Mask) -> bytes:
        turn = orjson.loads(message)
        output = [orjson.Fragment(masked_item(orjson.dumps(item), mask)) for item in turn["output"]]
        return orjson.dumps({**turn, "output": output})

    def body(
        self,
        raw: bytes,
        request: ClientRequest,
        state: StateHabit = "auto",
        *,
        caller: str = "",
        translated: bool = False,
    ) -> RequestBody:
        asked = cast(ResponsesRequest, request)
        signer, summaries = ItemSigner(self._key, caller), self.summaries(caller)
        return ResponsesBody(raw, asked, state, signer, summaries, translated=translated)

    def summaries(self, caller: str) -> SealedSummaries:
        """Return the writer and reader of a caller's compaction items."""
        return SealedSummaries(self._keys, caller)

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        asked = cast(ResponsesRequest, request)
        echo = _echo(asked)
        if servers := view.shown.servers:
            # A client that already has a server's list does not get it again.
            known = asked.lists
            lists = [server for server in servers if server.label not in known]
        else:
            lists = []
        signer = ItemSigner(self._key, view.caller)
        ids = None
        if view.shown.forms:
            ids = PartIds(self._keys, view.caller)
            view = structs.replace(view, shown=view.shown.signed(ids))
        for form in view.shown.forms.values():
            if isinstance(form, ProgramForm):
                form.fingerprints = Fingerprints(self._keys, view.caller)
        kind = ResponsesStreamWriter if asked.stream else ResponsesReplyWriter
        made = kind(
            view,
            asked=asked.asked,
            echo=echo,
            tools=ClientTools(asked.asked, view.is_hidden, open_names=asked.open_names),
            signer=signer,
            last_text_only=asked.wants_json,
            first=[
                *map(output_of, view.ended),
                *opening_items(lists, view.approved, view.shown, signer),
            ],
        )
        made.part_ids = ids
        return made


def _named(name: str) -> dict[str, Any]:
    """Return the choice of one function."""
    return {"type": "function", "name": name}


def _allowed(mode: str, tools: list[Any]) -> dict[str, Any]:
    """Return the choice of some functions."""
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def _echo(asked: ResponsesRequest) -> dict[str, bytes]:
    """Return the client's values of the fields that the proxy changes and the resource repeats (rule W2).

    ``previous_response_id`` is only included if the request has one; otherwise it cannot differ.
    :class:`ClientTools` provides ``tools``.
    """
    choice = asked.asked.get("tool_choice")
    echo = {"tool_choice": b'"auto"' if choice is None else orjson.dumps(choice)}
    if asked.continues is not None:
        echo["previous_response_id"] = orjson.dumps(asked.continues)
    return echo
