"""If the proxy loses an upstream, its client gets an error, wherever in the stream that happens.

Several clients take a plain end for a whole answer: anthropic-python, LangChain, Claude Code.
"""

import json
from collections.abc import Mapping
from typing import Any

import messages_script as messages
import pytest
import responses_script as responses
from chat_script import DONE, content, events_of, finish, role, usage
from recorded_answers import Asked, Given, Scripted
from responses_check import events_of as response_events
from running_proxy import Answer, make_config, running

from proxy.app.app import Overrides

SAID = responses.message("Hi.")
STREAMS: dict[str, tuple[bytes, bytes]] = {
    "chat": (role() + content("Hi.") + finish(), usage(3, 2) + DONE),
    "responses": (responses.turn(SAID), b""),
    "anthropic": (
        messages.start() + b"".join(messages.block_events(0, messages.text("Hi."))) + messages.ending(),
        messages.STOP,
    ),
}
"""A stream up to the event with its finish reason, and the bytes after that event."""

ASKS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "anthropic": ("/v1/messages", {"max_tokens": 99, "messages": [messages.user(text="hi")]}),
}


def ended(client: str, answer: Answer) -> str:
    """Return how an answer ends for its client: with an error, as a whole, or without an end."""
    if answer.status != 200:
        assert answer.json["error"]["message"]
        return "error"
    if client == "anthropic":
        assert answer.body.endswith(b"\n\n")
        name, data = answer.body.decode().rstrip().split("\n")[-2:]
        kind = json.loads(data.removeprefix("data: "))["type"]
        assert name == f"event: {kind}"
        return {"error": "error", "message_stop": "whole"}.get(kind, "open")
    if client == "chat":
        *chunks, end = events_of(answer.body)
        assert end == "[DONE]"
        last = [json.loads(chunk) for chunk in chunks[-2:]]
        if any("error" in chunk for chunk in last):
            return "error"
        reasons = [choice["finish_reason"] for chunk in last for choice in chunk["choices"]]
        return "whole" if any(reasons) else "open"
    kinds = [one["type"] for one in response_events(answer.body)]
    if kinds[-1] in ("error", "response.failed"):
        return "error"
    return "whole" if kinds[-1] == "response.completed" else "open"


def places(stream: bytes) -> list[int]:
    """Return where to cut a stream: around each end of a line or an event, and at places in between."""
    ends = [at + near for at in range(len(stream)) if stream[at] == 10 for near in (-1, 0, 1, 2)]
    return sorted({at for at in (*ends, *range(0, len(stream), 13)) if 0 <= at < len(stream)})


class Lost(Scripted):
    """An upstream that sends the beginning of a stream; then its connection breaks or the body just ends."""

    def __init__(self, stream: bytes, *, breaks: bool) -> None:
        super().__init__(self._begin)
        self._stream = stream
        self._breaks = breaks
        self.length = 0

    def _begin(self, asked: Asked) -> Given:
        begun = self._stream[: self.length]
        return Given(content_type="text/event-stream", pieces=[begun], breaks=self._breaks)

    async def aclose(self) -> None:
        """Do nothing: the proxy closes its upstream when it stops."""


@pytest.mark.parametrize("breaks", [True, False], ids=["breaks", "ends"])
@pytest.mark.parametrize("upstream", STREAMS)
@pytest.mark.parametrize("client", ASKS)
async def test_a_lost_upstream_is_an_error(client: str, upstream: str, breaks: bool) -> None:
    """Rule W1: wherever the upstream's stream stops early, the client gets an error in its own dialect."""
    said, rest = STREAMS[upstream]
    path, ask = ASKS[client]
    lost = Lost(said + rest, breaks=breaks)
    config = make_config(
        {"base_url": "http://127.0.0.1:9/v1", "wires": (upstream,)}, modules=("probe_tools",)
    )
    async with running(config, Overrides(wrap_upstream=lambda _: lost)) as proxy:

        async def end_at(length: int) -> str:
            lost.length = length
            return ended(client, await proxy.ask({"model": "m", "stream": True, **ask}, path=path))

        silent = [at for at in places(said.rstrip()) if await end_at(at) != "error"]
        assert silent == []
        assert await end_at(len(said)) in ("error", "whole")
        assert await end_at(len(said + rest)) == "whole"
