"""OpenAI Chat Completions, as data."""

from typing import Final

from msgspec.structs import replace

from proxy.wires.dialect import Endpoint, RepairSigns
from proxy.wires.openai.dialect import SHARED

CHAT: Final = replace(
    SHARED,
    name="chat",
    path="/chat/completions",
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
