"""OpenAI Chat Completions, as data."""

from typing import Final

from msgspec.structs import replace

from proxy.wires.dialect import Endpoint, RepairSigns, TextPiece
from proxy.wires.openai.dialect import SHARED

CHAT: Final = replace(
    SHARED,
    name="chat",
    path="/chat/completions",
    repair=RepairSigns(suspect=b'"tool_calls"'),
    answer_ids="chatcmpl-",
    # Sources: OpenAI's API reference, "The chat completion chunk object"; ``reasoning_content`` is that of
    # DeepSeek, ``reasoning`` that of OpenRouter and newer vLLM.
    pieces=(
        *(
            TextPiece(("choices", "*", "delta", name))
            for name in ("content", "refusal", "reasoning_content", "reasoning")
        ),
        TextPiece(("choices", "*", "delta", "function_call", "arguments"), in_json=True),
        TextPiece(("choices", "*", "delta", "tool_calls", "*", "function", "arguments"), in_json=True),
        TextPiece(("choices", "*", "delta", "tool_calls", "*", "custom", "input")),
    ),
)

ENDPOINTS: Final = (
    Endpoint(
        CHAT, "POST", "/chat/completions", "generate",
        body="routed", model="named", usage="on_request", streams=True, deployed=True, operation="chat",
    ),
    # Changes the metadata of an answer, which was counted when it was given.
    Endpoint(CHAT, "POST", "/chat/completions/{id}", usage="none"),
)  # fmt: skip
