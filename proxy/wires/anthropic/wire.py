"""The wire of Anthropic Messages."""

from typing import cast

from proxy.wires.anthropic.approvals import ANTHROPIC_APPROVALS
from proxy.wires.anthropic.body import AnthropicBody
from proxy.wires.anthropic.crossing.encoder import AnthropicTurnEncoder, turn_blocks
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.anthropic.crossing.from_client import read_conversation
from proxy.wires.anthropic.crossing.to_upstream import without_reasoning, write_conversation
from proxy.wires.anthropic.dialect import ANTHROPIC
from proxy.wires.anthropic.held import masked_turn
from proxy.wires.anthropic.reader import AnthropicTurnReader
from proxy.wires.anthropic.reply import AnthropicReplyWriter
from proxy.wires.anthropic.request import AnthropicRequest, parse_anthropic_request
from proxy.wires.anthropic.typed_tools.searching import with_search
from proxy.wires.anthropic.typed_tools.table import as_functions
from proxy.wires.anthropic.writer import AnthropicStreamWriter
from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.wire import Wire


class AnthropicWire(Wire):
    """The wire of Anthropic Messages."""

    dialect = ANTHROPIC
    approvals = ANTHROPIC_APPROVALS
    as_functions = staticmethod(as_functions)
    with_search = staticmethod(with_search)
    codec = ConversationCodec(
        ANTHROPIC_FIELDS,
        read_conversation,
        write_conversation,
        returns_reasoning=True,
        repair_missing_reasoning=without_reasoning,
    )

    parse = staticmethod(parse_anthropic_request)
    reader = AnthropicTurnReader
    body_class = AnthropicBody
    only_with_tools = ("tool_choice",)
    write_turn = staticmethod(turn_blocks)
    masked_turn = staticmethod(masked_turn)

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        return AnthropicTurnEncoder(request.model, cast(AnthropicRequest, request).eager)

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        asked = cast(AnthropicRequest, request)
        kind = AnthropicStreamWriter if asked.stream else AnthropicReplyWriter
        return kind(view, last_text_only=asked.wants_json, used_ids=asked.used_ids())
