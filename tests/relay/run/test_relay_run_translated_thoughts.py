"""Thoughts of other dialects' upstreams have a signature for Messages clients, which then send them back."""

import json
from typing import Any

import messages_script as messages
import pytest
from pair_kits import SPEAKERS, Turn
from recorded_answers import Asked, Given, Scripted
from running_proxy import make_config, running

from proxy.app.app import Overrides

SIGNATURE = "toolrelay-translated"
THOUGHT = {"type": "thinking", "thinking": "Let me see.", "signature": SIGNATURE}
ANSWER = {"type": "text", "text": "It is noon."}
ASK: dict[str, Any] = {
    "model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "What time is it?"}],
}  # fmt: skip
AGAIN = {
    **ASK,
    "messages": [
        *ASK["messages"],
        {"role": "assistant", "content": [THOUGHT, ANSWER]},
        {"role": "user", "content": "And now?"},
    ],
}


class Model(Scripted):
    """A model that thinks and answers."""

    def __init__(self, wire: str) -> None:
        super().__init__(self._say)
        self._speaker = SPEAKERS[wire]

    def _say(self, asked: Asked) -> Given:
        turn = Turn("It is noon.", thought="Let me see.")
        if asked.payload.get("stream"):
            return Given(content_type=self._speaker.content_type, pieces=self._speaker.events(turn))
        return Given(json.dumps(self._speaker.reply(turn)).encode())

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


def before(model: Model, wire: str, *allow: str) -> Any:
    """Run a proxy in front of the model."""
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": (wire,)}, allow=allow)
    return running(config, Overrides(wrap_upstream=lambda _: model))


@pytest.mark.parametrize("wire", ["responses", "ollama"])
async def test_a_thought_is_signed_and_read_back(wire: str) -> None:
    """The stream and the reply have the signature; the same upstream gets the thought as its own."""
    model = Model(wire)
    async with before(model, wire, "core__*") as proxy:
        streamed = await proxy.ask({**ASK, "stream": True}, path="/v1/messages")
        assert messages.read_stream(streamed.body).blocks == [THOUGHT, ANSWER]
        last = await proxy.ask(AGAIN, path="/v1/messages")
    assert SIGNATURE not in json.dumps(model.asked[-1].payload)
    assert last.status == 200
    if wire == "responses":  # Ollama's double thinks only in streams.
        assert last.json["content"] == [THOUGHT, ANSWER]


@pytest.mark.refuses("messages-members")
@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_a_messages_upstream_that_refuses_it_gets_the_rest(allow: tuple[str, ...]) -> None:
    """A conversation can go on at Anthropic, which takes back only what it has signed itself."""
    model = Model("anthropic")
    async with before(model, "anthropic", *allow) as proxy:
        answer = await proxy.ask(AGAIN, path="/v1/messages")
    assert answer.status == 200
    first, second = (asked.payload["messages"] for asked in model.asked)
    assert first == AGAIN["messages"]
    assert second == [first[0], {"role": "assistant", "content": [ANSWER]}, first[2]]
