"""Ollama's completions (``/api/generate``), which the proxy sends to other dialects as a chat of one message.

Source: Ollama's API reference, "Generate a completion", and its types ``GenerateRequest`` and
``GenerateResponse``. An upstream that speaks Ollama gets such a request unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.base.conversation import Conversation, Message, Text
from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.crossing.fields import Fields
from proxy.wires.ollama.body import OllamaBody
from proxy.wires.ollama.crossing.encoder import OllamaTurnEncoder
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS
from proxy.wires.ollama.crossing.from_client import read_images, read_settings
from proxy.wires.ollama.crossing.to_upstream import body_of
from proxy.wires.ollama.lines import LineMaker, load_answer
from proxy.wires.ollama.reply import OllamaReplyWriter
from proxy.wires.ollama.request import OllamaRequest
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.ollama.writer import OllamaStreamWriter
from proxy.wires.turn.edits import AppendedTurn, Edits
from proxy.wires.turn.request_members import model_name, preview_of


def read_completion(payload: Mapping[str, Any]) -> Conversation:
    """Read a completion: the prompt is the user's message, after the system prompt.

    Raises :class:`RequestError`, which names a field of the wrong type.
    """
    asked = Fields(payload, COMPLETION_FIELDS)
    model = asked.model()
    system, prompt = asked.text("system"), asked.text("prompt")
    said = [Text(prompt, at="prompt")] if prompt else []
    settings = read_settings(asked)
    user = Message("user", (*said, *read_images(asked)), at="prompt")
    # Clients send these fields even if they are empty.
    for name, nothing in (("suffix", ""), ("template", ""), ("raw", False), ("context", [])):
        asked.skip(name, nothing)
    return Conversation(
        model=model,
        messages=(user,),
        system=(Message("system", (Text(system, at="system"),), at="system"),) if system else (),
        **settings._asdict(),
        native=asked.rest(),
        names=asked.names,
    )


class CompletionLines(LineMaker):
    """A maker of lines of completions. A line holds what a chat has in a message, and no calls."""

    __slots__ = ()

    def _saying(self, said: Mapping[str, Any]) -> dict[str, Any]:
        line = {"response": said.get("content", "")}
        return {**line, "thinking": said["thinking"]} if "thinking" in said else line

    def _member_of(self, name: str) -> str:
        return "response" if name == "content" else name

    def message_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        text = payload.get("response")
        if not isinstance(text, str):
            return None
        thinking = payload.get("thinking")
        return {"content": text, "thinking": thinking} if thinking else {"content": text}


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
