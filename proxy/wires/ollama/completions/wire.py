"""Ollama's completions (``/api/generate``), which the proxy sends to other dialects as a chat of one message.

Source: Ollama's API reference, "Generate a completion", and its types ``GenerateRequest`` and
``GenerateResponse``.  An upstream that speaks Ollama gets such a request unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.ollama.body import OllamaBody
from proxy.wires.ollama.completions.conversation import read_completion
from proxy.wires.ollama.completions.lines import CompletionLines
from proxy.wires.ollama.crossing.encoder import OllamaTurnEncoder
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS
from proxy.wires.ollama.crossing.to_upstream import body_of
from proxy.wires.ollama.lines import load_answer
from proxy.wires.ollama.reply import OllamaReplyWriter
from proxy.wires.ollama.request import OllamaRequest
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.ollama.writer import OllamaStreamWriter
from proxy.wires.turn.edits import AppendedTurn, Edits
from proxy.wires.turn.request_members import model_name, preview_of


class _CompletionBody(OllamaBody):
    """The client's own body, which has no place for turns; only the upstream's body gets them."""

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        """Write nothing: the body has no place for turns."""
        return AppendedTurn(message, results, ())


class OllamaCompletionWire(OllamaWire):
    """The wire of ``/api/generate``, for clients only: the proxy asks no upstream in it."""

    codec = ConversationCodec(COMPLETION_FIELDS, read_completion, body_of)
    body_class = _CompletionBody

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request; no server tool takes part in its answer.

        Raises :class:`~proxy.base.errors.RequestError` for a model that is missing or no name.
        """
        return OllamaRequest(
            members=tuple(payload),
            model=model_name(payload),
            stream=payload.get("stream") is not False,
            messages=(),
            system=said if isinstance(said := payload.get("system"), str) else "",
            preview=preview_of(payload.get("prompt")),
            tools_forbidden=True,
        )

    def load_answer(self, payload: Mapping[str, Any]) -> bytes | None:
        if payload.get("prompt"):
            return None
        return load_answer(payload, CompletionLines(str(payload.get("model"))))

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        return OllamaTurnEncoder(request.model, CompletionLines)

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        kind = OllamaStreamWriter if request.stream else OllamaReplyWriter
        return kind(view, lines=CompletionLines)
