"""Repeats by clients that do not mark them as such: after a faulty stream, without ``stream``."""

from collections.abc import Mapping, Sequence
from typing import Any

import messages_script as messages
import pytest
import responses_script as responses
from chat_script import call, content, finish, role
from chat_script import reply as chat_reply
from chat_script import stream as chat_stream
from looping import looping
from probe_tools import Watch
from raw_upstream import FIN, Step, chunk, head
from request_keys import keyed

from proxy.relay.memory.idempotency import Idempotency, repeat_of

BUY = "probe_tools__buy"
MILK = '{"what":"milk"}'
EVENTS = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")

TURNS: dict[str, tuple[Sequence[Step], Sequence[Step]]] = {
    "chat": (
        chat_stream(role(), call("call_1", BUY, MILK), finish("tool_calls")),
        [EVENTS, chunk(content("Bou")), FIN],
    ),
    "responses": (
        responses.stream(responses.function_call("call_1", BUY, MILK)),
        [EVENTS, chunk(responses.encode(responses.opening())), FIN],
    ),
    "anthropic": (
        messages.stream(messages.tool_use("toolu_1", BUY, {"what": "milk"})),
        [EVENTS, chunk(messages.start(id="msg_2")), FIN],
    ),
}
"""A streamed turn that buys, and one that breaks off."""

REPLIES: dict[str, tuple[Sequence[Step], Sequence[Step]]] = {
    "chat": (
        chat_reply(None, ("call_1", BUY, MILK)),
        chat_reply("Bought."),
    ),
    "responses": (
        responses.reply(responses.function_call("call_1", BUY, MILK)),
        responses.reply(responses.message("Bought.")),
    ),
    "anthropic": (
        messages.reply(messages.tool_use("toolu_1", BUY, {"what": "milk"})),
        messages.reply(messages.text("Bought.")),
    ),
}
"""The same without streaming: a turn that buys, and the answer."""

ASKS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/v1/responses", {"model": "m", "input": "hi"}),
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 99, "messages": [messages.user(text="hi")]}),
}
STREAMED: dict[str, Mapping[str, Any]] = {
    "chat": {"stream": True, "stream_options": {"include_usage": True}},
    "responses": {"stream": True},
    "anthropic": {"stream": True},
}
SESSION = {"x-claude-code-session-id": "s-1", "x-stainless-retry-count": "0"}


@pytest.mark.parametrize("upstream", TURNS)
@pytest.mark.parametrize("client", ASKS)
async def test_the_same_body_without_stream_buys_nothing_twice(
    client: str, upstream: str, watch: Watch
) -> None:
    """Rule R5: after a failed stream, the same body without ``stream`` is a repeat and buys nothing."""
    path, ask = ASKS[client]
    scripts = (*TURNS[upstream], *REPLIES[upstream])
    async with looping(*scripts, served={"wires": [upstream]}) as (proxy, server):
        first = await proxy.ask({**ask, **STREAMED[client]}, SESSION, path=path)
        assert (first.status, b"error" in first.body) == (200, True)
        second = await proxy.ask(dict(ask), SESSION, path=path)
        assert (second.status, b"Bought." in second.body) == (200, True)
        assert len(server.requests) == 4
    assert watch.finished == ["buy"]
    assert b"milk" in server.requests[3].body


@pytest.mark.parametrize("more", [{"temperature": 1}, {}], ids=["another body", "another session"])
async def test_what_is_not_the_same_buys_again(more: Mapping[str, Any], watch: Watch) -> None:
    """A request with another body, or in another session of the client, is no repeat and buys again."""
    path, ask = ASKS["anthropic"]
    scripts = (*TURNS["anthropic"], *REPLIES["anthropic"])
    headers = SESSION if more else {**SESSION, "x-claude-code-session-id": "s-2"}
    async with looping(*scripts, served={"wires": ["anthropic"]}) as (proxy, _):
        await proxy.ask({**ask, "stream": True}, SESSION, path=path)
        await proxy.ask({**ask, **more}, headers, path=path)
    assert watch.finished == ["buy", "buy"]


def test_an_unsaid_repeat_comes_soon() -> None:
    """Rule R5: an unmarked request counts as a repeat for ten minutes only, a marked one also later."""
    at = 0.0
    repeats = Idempotency(forget=lambda _: None, clock=lambda: at)
    first = repeats.begin(keyed("k"), is_repeat=False)
    repeats.caused(keyed("k"), first)
    first.answer_for("inv_1")
    running = repeats.begin(keyed("k"), is_repeat=False)
    assert running.request is not None
    assert not running.request.is_repeat  # The first has not ended: a client may ask twice at once.
    repeats.ended(keyed("k"), first)
    for later, repeated in ((599.0, True), (601.0, False)):
        at = later
        again = repeats.begin(keyed("k"), is_repeat=False)
        assert again.request is not None
        assert again.request.is_repeat is repeated
        assert (again.caused is first.caused) is repeated
    assert repeats.begin(keyed("k"), is_repeat=True).caused is first.caused


def test_an_answered_request_is_asked_anew() -> None:
    """Rule R5: once a repeat got the answer, the same request counts as a new one."""
    repeats = Idempotency(forget=lambda _: None)
    first = repeats.begin(keyed("k"), is_repeat=False)
    repeats.caused(keyed("k"), first)
    repeats.ended(keyed("k"), first)
    second = repeats.begin(keyed("k"), is_repeat=False)
    repeats.answered(keyed("k"), second)
    repeats.ended(keyed("k"), second)
    third = repeats.begin(keyed("k"), is_repeat=False)
    assert third.request is not None
    assert not third.request.is_repeat


def test_how_an_answer_travels_is_no_part_of_a_request() -> None:
    """Two bodies that differ only in ``stream``, ``stream_options`` or order have the same key."""
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": []},
        {"model": "m", "messages": [], "stream": True},
        {"stream": False, "model": "m", "stream_options": {"include_usage": True}, "messages": []},
        {"messages": [], "model": "m"},
    ]
    assert len({repeat_of("me", "", "/x", body)[0].digest for body in bodies}) == 1
    other = repeat_of("me", "", "/x", {"model": "m", "messages": [], "n": 1})
    assert other[0].digest != repeat_of("me", "", "/x", bodies[0])[0].digest
