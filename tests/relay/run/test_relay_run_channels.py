"""Models that write all they say in channels (gpt-oss), over real sockets, for all pairs of dialects."""

from typing import Any

import pytest
from looping import ECHO
from raw_upstream import RawUpstream
from running_proxy import make_config, running
from text_call_rig import PATHS, WIRES, ask, behind, say, thought_in, understood

THOUGHT, SAID = "Let me think about {it}.", "It is <b>noon</b> in Paris."
ANALYSIS = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
FINAL = f"<|start|>assistant<|channel|>final<|message|>{SAID}"
TO = "<|start|>assistant<|channel|>commentary to=functions."
WEATHER = f'{TO}get_weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>'
OURS = f'{TO}{ECHO} <|constrain|>json<|message|>{{"text": "noon"}}'
CALL = ("get_weather", {"city": "Paris"})
FINISH = {"chat": "tool_calls", "responses": "completed", "anthropic": "tool_use", "ollama": "stop"}

everywhere = pytest.mark.parametrize(
    ("client", "upstream"), [(client, upstream) for client in WIRES for upstream in WIRES]
)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])


def served(url: str, upstream: str, **more: Any) -> dict[str, Any]:
    """An upstream that leaves the channels of its model in the text."""
    return {"base_url": url, "wires": (upstream,), "text_calls": "harmony", **more}


@everywhere
@streamed
@pytest.mark.parametrize("tools", [(), ("get_weather",)], ids=["no tools", "tools"])
async def test_thoughts_and_answer_are_told_apart(
    client: str, upstream: str, stream: bool, tools: tuple[str, ...]
) -> None:
    """The client gets the channel ``final`` as text and ``analysis`` as reasoning, and no mark of either."""
    asked = ask(client, stream=stream, tools=tools)
    async with (
        RawUpstream(say(upstream, ANALYSIS + FINAL, stream=stream)) as server,
        running(make_config(served(server.url, upstream), allow=())) as proxy,
    ):
        answer = await proxy.ask(asked, path=PATHS[client])
    said = understood(client, answer, stream=stream)
    assert (said.text, said.calls) == (SAID, [])
    assert thought_in(client, answer, stream=stream) == THOUGHT
    assert b"<|" not in answer.body


@everywhere
@streamed
async def test_calls_of_both_sides(client: str, upstream: str, stream: bool) -> None:
    """A message to a declared tool is a call: the proxy runs its own, and the client gets the other."""
    texts = [ANALYSIS + OURS, f"{ANALYSIS}<|channel|>commentary<|message|>Wait.<|end|>{WEATHER}", FINAL]
    scripts = [say(upstream, text, stream=stream) for text in texts]
    asked = ask(client, stream=stream)
    async with (
        RawUpstream(*scripts) as server,
        running(make_config(served(server.url, upstream), modules=("probe_tools",))) as proxy,
    ):
        first = await proxy.ask(asked, path=PATHS[client])
        said = understood(client, first, stream=stream, hidden=(ECHO, "<|"))
        assert (said.text, said.calls, said.finish) == ("Wait.", [CALL], FINISH[client])
        again = behind(client, asked, first, {said.ids[0]: "sunny"})
        second = await proxy.ask(again, path=PATHS[client])
        assert understood(client, second, stream=stream, hidden=("<|",)).text == SAID
        bodies = [request.body.decode() for request in server.requests]
    assert "noon" in bodies[1]
    assert "<|" not in bodies[1]
    assert bodies[2].index(ECHO) < bodies[2].rindex("sunny")


@pytest.mark.parametrize("wire", WIRES)
@streamed
async def test_other_texts_keep_their_bytes(wire: str, stream: bool) -> None:
    """Rule W2: a text that does not begin with a channel passes as it came."""
    asked = ask(wire, stream=stream)
    text = "A mark <|channel|> in `<|start|>` the middle.\n<b>"
    script = say(wire, text, stream=stream, repeats={"tools": asked["tools"]})
    bodies = []
    for form in ("harmony", "off"):
        async with (
            RawUpstream(script) as server,
            running(make_config(served(server.url, wire) | {"text_calls": form}, allow=())) as proxy,
        ):
            bodies.append((await proxy.ask(asked, path=PATHS[wire])).body)
    assert bodies[0] == bodies[1]


@everywhere
async def test_a_call_that_is_cut_off(client: str, upstream: str) -> None:
    """A call that the token limit cut off neither runs nor is shown."""
    async with (
        RawUpstream(say(upstream, ANALYSIS + OURS[:-3], cut=True)) as server,
        running(make_config(served(server.url, upstream), modules=("probe_tools",))) as proxy,
    ):
        answer = await proxy.ask(ask(client), path=PATHS[client])
        assert len(server.requests) == 1
    said = understood(client, answer, hidden=(ECHO,))
    assert (said.text, said.calls) == ("", [])


async def test_an_unknown_recipient_stays_text() -> None:
    """A message to a tool that nobody declared is shown as the model wrote it."""
    text = f"{TO}unknown<|message|>{{}}<|call|>"
    async with (
        RawUpstream(say("chat", ANALYSIS + text)) as server,
        running(make_config(served(server.url, "chat"), allow=())) as proxy,
    ):
        said = understood("chat", await proxy.ask(ask("chat"), path=PATHS["chat"]))
    assert (said.text, said.calls, said.finish) == (text, [], "stop")
