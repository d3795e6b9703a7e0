"""The wire of Ollama's own chat."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.ollama.approvals import OLLAMA_APPROVALS
from proxy.wires.ollama.body import OllamaBody
from proxy.wires.ollama.crossing.encoder import OllamaTurnEncoder, turn_message
from proxy.wires.ollama.crossing.fields import OLLAMA_FIELDS
from proxy.wires.ollama.crossing.from_client import read_conversation
from proxy.wires.ollama.crossing.to_upstream import body_of
from proxy.wires.ollama.dialect import OLLAMA
from proxy.wires.ollama.held import masked_turn
from proxy.wires.ollama.lines import LineMaker, load_answer
from proxy.wires.ollama.reader import OllamaTurnReader
from proxy.wires.ollama.reply import OllamaReplyWriter
from proxy.wires.ollama.request import OllamaRequest, parse_ollama_request
from proxy.wires.ollama.writer import OllamaStreamWriter
from proxy.wires.wire import Wire


class OllamaWire(Wire):
    """The wire of ``/api/chat``."""

    dialect = OLLAMA
    approvals = OLLAMA_APPROVALS
    # Ollama's own client sends reasoning back, but LangChain's does not.
    codec = ConversationCodec(OLLAMA_FIELDS, read_conversation, body_of)

    reader = OllamaTurnReader
    body_class: ClassVar[type[OllamaBody]] = OllamaBody
    write_turn = staticmethod(turn_message)
    masked_turn = staticmethod(masked_turn)

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        return parse_ollama_request(payload)

    def load_answer(self, payload: Mapping[str, Any]) -> bytes | None:
        if payload.get("messages"):
            return None
        return load_answer(payload, LineMaker(str(payload.get("model"))))

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        return OllamaTurnEncoder(request.model)

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        asked = cast(OllamaRequest, request)
        kind = OllamaStreamWriter if asked.stream else OllamaReplyWriter
        return kind(view, last_text_only=asked.wants_json, used_ids=asked.used_ids())
