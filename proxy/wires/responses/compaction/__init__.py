"""Compactions (``/responses/compact``): upstreams of other dialects are asked for a summary.

An upstream that speaks Responses gets the request unchanged.

Source: OpenAI's API reference, "Compact a response".
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from proxy.wires.chosen import NOTHING_SHOWN, ShownTools
from proxy.wires.client_port import ClientRequest, StreamWriter, Trace
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.responses import ResponsesWire
from proxy.wires.responses.client_tools import ClientTools
from proxy.wires.responses.compaction.codec import CompactionCodec
from proxy.wires.responses.compaction.reply import CompactionReplyWriter
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.request import ResponsesRequest, parse_responses_request

__all__ = ["ResponsesCompactionWire"]

_READ = ("model", "input", "instructions", "previous_response_id")


class ResponsesCompactionWire(ResponsesWire):
    """The wire of ``/responses/compact``.  Only clients use it; upstreams are asked in their own dialect."""

    codec: ConversationCodec = CompactionCodec()

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request; it uses no tools, and is not stored.

        Raises :class:`~proxy.errors.RequestError` as
        :func:`~proxy.wires.responses.request.parse_responses_request` does.
        """
        read = {name: payload[name] for name in _READ if name in payload}
        return parse_responses_request({**read, "tool_choice": "none", "store": False})

    def writer(
        self,
        request: ClientRequest,
        *,
        is_hidden: Callable[[str], bool],
        trace: Trace,
        model: str,
        usage_was_added: bool,
        caller: str = "",
        shown: ShownTools = NOTHING_SHOWN,
    ) -> StreamWriter:
        """See :meth:`proxy.wires.client_port.ClientPort.writer`."""
        asked = cast(ResponsesRequest, request)
        return CompactionReplyWriter(
            asked=asked,
            summaries=self.summaries(caller),
            model=model,
            echo={},
            tools=ClientTools(asked.asked, is_hidden, open_names=False),
            signer=ItemSigner(self._key, caller),
            is_hidden=is_hidden,
            last_text_only=True,
        )
