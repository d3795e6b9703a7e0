"""The wire of Anthropic Messages."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.wires.anthropic.approvals import ANTHROPIC_APPROVALS
from proxy.wires.anthropic.body import AnthropicBody
from proxy.wires.anthropic.crossing.encoder import AnthropicTurnEncoder, turn_blocks
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.anthropic.crossing.from_client import read_conversation
from proxy.wires.anthropic.crossing.to_upstream import body_of, without_reasoning
from proxy.wires.anthropic.dialect import ANTHROPIC
from proxy.wires.anthropic.held import masked_turn
from proxy.wires.anthropic.hosted.code import without_callers
from proxy.wires.anthropic.hosted.programs import (
    ContainerInUse,
    Containers,
    check_members,
    given_container,
    joined_programs,
)
from proxy.wires.anthropic.hosted.sealed_results import SealedResults
from proxy.wires.anthropic.hosted.tools import SearchForm, hosted_tools, spoken
from proxy.wires.anthropic.reader import AnthropicTurnReader, PlainMessage
from proxy.wires.anthropic.reply import AnthropicReplyWriter
from proxy.wires.anthropic.request import AnthropicRequest, parse_anthropic_request
from proxy.wires.anthropic.typed_tools.searching import with_search
from proxy.wires.anthropic.typed_tools.table import as_functions
from proxy.wires.anthropic.writer import AnthropicStreamWriter
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientRequest, ClientView, ProgramResults, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.hosted.part_ids import PartIds
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions, UpstreamTypes
from proxy.wires.wire import Wire


class AnthropicWire(Wire):
    """The wire of Anthropic Messages.

    ``key`` encrypts the results of searches that clients carry. Without it only this process can read them.
    ``old_keys`` still decrypt them.
    """

    dialect = ANTHROPIC
    approvals = ANTHROPIC_APPROVALS
    hosted_tools = staticmethod(hosted_tools)
    spoken = staticmethod(spoken)
    codec = ConversationCodec(
        ANTHROPIC_FIELDS,
        read_conversation,
        body_of,
        returns_reasoning=True,
        repair_missing_reasoning=without_reasoning,
    )

    parse = staticmethod(parse_anthropic_request)
    reader = AnthropicTurnReader
    body_class = AnthropicBody
    only_with_tools = ("tool_choice",)
    write_turn = staticmethod(turn_blocks)
    masked_turn = staticmethod(masked_turn)

    def __init__(self, key: bytes | None = None, *, old_keys: Sequence[bytes] = ()) -> None:
        self._keys = (key or secrets.token_bytes(32), *old_keys)

    def joined_programs(self, raw: bytes) -> tuple[bytes, ProgramResults] | None:
        return joined_programs(raw)

    def check_container(self, payload: Mapping[str, Any], caller: str, *, needed: bool) -> None:
        check_members(payload)
        Containers(self._keys, caller).check(given_container(payload), needed=needed)

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        if any(tool.programs is not None for tool, _ in request.chosen.hosted):
            raw = without_callers(raw)
        return super().without_chosen(raw, request, shown)

    def verified(self, ids: Sequence[str], caller: str) -> Sequence[str]:
        return PartIds(self._keys, caller).verified(ids)

    def sealed_turns(self, request: ClientRequest, caller: str) -> Iterator[tuple[int, bytes]]:
        return SealedResults(self._keys, caller).turns(cast(AnthropicRequest, request).messages)

    def with_search(self, payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
        return with_search(payload, upstream, partial(self.as_functions, payload, upstream))

    def as_functions(self, payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
        """See :meth:`proxy.wires.wire.Wire.as_functions`. Also raises for a ``thread`` that nobody keeps.

        The clients' helper for tools asks for a thread unasked, and then sends new messages alone. Most
        servers of this dialect ignore the field, so the model would forget; with server tools the upstream's
        thread would lack what the client has. After this error the helper sends the whole conversation.
        Source: ``lib/threads`` of anthropic 2.14.
        """
        keeps = EVERY_TYPE in upstream.native and not (upstream.crosses or upstream.mixes)
        if payload.get("thread") is not None and not keeps:
            raise RequestError(
                400,
                "thread: this server keeps no conversation. Send all of its messages, without thread.",
                param="thread",
                code="thread_unsupported_request",
            )
        return as_functions(payload, upstream.native)

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        return AnthropicTurnEncoder(request.model, cast(AnthropicRequest, request).eager)

    def plain_turn(self, request: ClientRequest, *, usage_was_added: bool) -> PlainTurn | None:
        asked = cast(AnthropicRequest, request)
        is_read = asked.stream or asked.wants_json or asked.chosen or asked.container
        return None if is_read else PlainMessage()

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        asked = cast(AnthropicRequest, request)
        ids = None
        if forms := view.shown.forms:
            results = SealedResults(self._keys, view.caller)
            sealing = {
                name: form.sealing(results) if isinstance(form, SearchForm) else form
                for name, form in forms.items()
            }
            ids = PartIds(self._keys, view.caller)
            view = replace(view, shown=replace(view.shown, forms=sealing).signed(ids))
        kind = AnthropicStreamWriter if asked.stream else AnthropicReplyWriter
        container = ContainerInUse(Containers(self._keys, view.caller), asked.container)
        made = kind(view, container=container, last_text_only=asked.wants_json, used_ids=asked.used_ids())
        made.part_ids = ids
        return made
