"""OpenAI Chat Completions, as data."""

from typing import Final

from proxy.wires.dialect import Dialect, Endpoint, Errors, RepairSigns, UsageFields
from proxy.wires.dialects.model_lists import OPENAI_LISTS
from proxy.wires.dialects.openai import (
    CREDENTIALS,
    FRAMING,
    PREFIX,
    QUERY,
    QUIRKS,
    error_body,
    error_event,
    read_error,
)

__all__ = ["CHAT", "ENDPOINTS"]

CHAT: Final = Dialect(
    name="chat",
    wire="chat",
    prefix=PREFIX,
    path="/chat/completions",
    framing=FRAMING,
    errors=Errors(error_body, error_event, read_error),
    credentials=CREDENTIALS,
    usage=UsageFields("prompt_tokens", "completion_tokens", "total_tokens"),
    quirks=QUIRKS,
    models=OPENAI_LISTS,
    query=QUERY,
    repair=RepairSigns(suspect=b'"tool_calls"'),
    answer_ids="chatcmpl-",
)

ENDPOINTS: Final = (
    Endpoint(
        CHAT, "POST", "/chat/completions", "generate",
        body="routed", model="named", usage="on_request", streams=True, deployed=True, operation="chat",
    ),
    # Changes the metadata of an answer, which was counted when it was given.
    Endpoint(CHAT, "POST", "/chat/completions/{id}", usage="none"),
)  # fmt: skip
