"""How closely a model shall look at an image, behind upstreams whose dialect has no form for it."""

from typing import Any

import messages_script as messages
import ollama_script as ollama
import pytest
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}},
            ],
        }
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": PNG, "detail": "high"},
            ],
        }
    ],
}
CLIENTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", CHAT, "messages[].content[].detail"),
    "responses": ("/v1/responses", RESPONSES, "input[].content[].detail"),
}
ANSWERS: dict[str, list[Step]] = {
    "anthropic": messages.reply(messages.text("A dot.")),
    "ollama": ollama.reply("A dot."),
}


@pytest.mark.parametrize("upstream", ANSWERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_detail_that_is_left_out_is_named(client: str, upstream: str) -> None:
    """A response header names the field, and the upstream gets the image without it."""
    path, ask, field = CLIENTS[client]
    async with (
        RawUpstream(ANSWERS[upstream]) as served,
        running(make_config({"base_url": served.url, "wires": (upstream,)})) as proxy,
    ):
        answer = await proxy.ask(ask, path=path)
        assert answer.status == 200, answer.body
        assert field in (answer.header("x-toolrelay-left-out") or "").split(", ")
        sent = served.requests[0].body
    assert PNG.partition(",")[2].encode() in sent
    assert b'"detail"' not in sent
