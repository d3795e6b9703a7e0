"""Compactions (``/responses/compact``): the proxy asks upstreams of other dialects for a summary.

An upstream that speaks Responses gets the request unchanged.

Source: OpenAI's API reference, "Compact a response".
"""

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from proxy.wires.chosen import NOTHING_SHOWN
from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.responses.compaction.codec import read_compaction
from proxy.wires.responses.compaction.reply import CompactionReplyWriter
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS
from proxy.wires.responses.crossing.to_upstream import body_of
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.request import ResponsesRequest, parse_responses_request
from proxy.wires.responses.resource import ClientTools
from proxy.wires.responses.wire import ResponsesWire

_READ = ("model", "input", "instructions", "previous_response_id")


class ResponsesCompactionWire(ResponsesWire):
    """The wire of ``/responses/compact``. Only clients use it; upstreams are asked in their own dialects."""

    codec = ConversationCodec(RESPONSES_FIELDS, read_compaction, body_of)

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request; it uses no tools, and is not stored.

        Raises :class:`~proxy.base.errors.RequestError` as
        :func:`~proxy.wires.responses.request.parse_responses_request` does.
        """
        read = {name: payload[name] for name in _READ if name in payload}
        return parse_responses_request({**read, "tool_choice": "none", "store": False})

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        asked = cast(ResponsesRequest, request)
        return CompactionReplyWriter(
            replace(view, trace="silent", shown=NOTHING_SHOWN),
            asked=asked,
            summaries=self.summaries(view.caller),
            echo={},
            tools=ClientTools(asked.asked, view.is_hidden, open_names=False),
            signer=ItemSigner(self._key, view.caller),
            last_text_only=True,
        )
