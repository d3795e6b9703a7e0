"""Compactions (``/responses/compact``): the proxy asks upstreams of other dialects for a summary.

An upstream that speaks Responses gets the request unchanged.

Source: OpenAI's API reference, "Compact a response".
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import orjson
from msgspec.structs import replace

from proxy.base.chance import epoch_s
from proxy.base.errors import WireError
from proxy.base.events import FinishReason
from proxy.wires.chosen import NOTHING_SHOWN
from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.responses.compaction.codec import read_compaction
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS
from proxy.wires.responses.crossing.to_upstream import body_of
from proxy.wires.responses.items import item_text, mint_item_id
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.own_items.summaries import SealedSummaries
from proxy.wires.responses.reply import ResponsesReplyWriter
from proxy.wires.responses.request import ResponsesRequest, parse_responses_request
from proxy.wires.responses.resource import ClientTools, whole_usage
from proxy.wires.responses.wire import ResponsesWire

_MOST_KEPT_BYTES: Final = 64 << 10
"""The most bytes of the user's newest messages that follow the summary verbatim."""
_WORDS: Final = "The user's newest messages, word for word:"


class CompactionReplyWriter(ResponsesReplyWriter):
    """Turns the model's answer into a compaction."""

    def __init__(
        self, view: ClientView, *, asked: ResponsesRequest, summaries: SealedSummaries, **options: Any
    ) -> None:
        """Take the ``options`` of :class:`~proxy.wires.responses.reply.ResponsesReplyWriter`."""
        super().__init__(view, asked=asked.asked, **options)
        self._request = asked
        self._summaries = summaries

    def finish(self, reason: FinishReason | None) -> bytes:
        """Return the compaction as JSON. Raise :class:`WireError` if there is no summary."""
        super().finish(reason)
        answer = self.answer
        summary = "".join(item_text(item) for item in answer.get("output") or () if isinstance(item, dict))
        if not summary.strip() or answer.get("status") != "completed":
            why = "its answer is empty" if not summary.strip() else "its answer is not complete"
            raise WireError(f"The model did not write a summary of the conversation: {why}.")
        usage = answer.get("usage")
        return orjson.dumps(
            {
                "id": mint_item_id("response"),
                "object": "response.compaction",
                "created_at": epoch_s(),
                "output": [self._summaries.item(_with_words(summary, _newest_words(self._request)))],
                "usage": whole_usage(usage if isinstance(usage, dict) else {}),
            }
        )

    def result(self) -> dict[str, Any] | None:
        """Return ``None``, because no request can continue a compaction by its id."""
        return None


def _with_words(summary: str, words: list[str]) -> str:
    """Return a summary, followed by the user's messages, one paragraph each."""
    return "\n\n".join([summary, _WORDS, *words]) if words else summary


def _newest_words(request: ResponsesRequest) -> list[str]:
    """Return the texts of the user's newest messages, oldest first, as many as fit into 64 KiB."""
    kept: list[str] = []
    room = _MOST_KEPT_BYTES
    for item in reversed(request.items):
        if item.get("role") != "user" or not (text := item_text(item).strip()):
            continue
        room -= len(text.encode("utf-8", "surrogatepass"))
        if room < 0:
            break
        kept.append(text)
    return kept[::-1]


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
