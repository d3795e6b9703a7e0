"""C46: models that write calls into their text in odd ways, and upstreams that never end one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import DONE, content, finish, role
from faults_rig import ECHO, before
from raw_upstream import RawUpstream, Step, chunk, chunked
from running_proxy import Proxy
from text_call_rig import PATHS, WIRES, Said, ask, body_of, pieces, say, understood
from waiting import PATIENCE_S

CALL = f'<tool_call>\n{{"name": "{ECHO}", "arguments": {{"text": "noon"}}}}\n</tool_call>'
MIB = 1 << 20

every_wire = pytest.mark.parametrize("wire", WIRES)


@asynccontextmanager
async def reading(wire: str, *scripts: list[Step], **served: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy that reads calls in the format of Hermes, in front of a model with one dialect."""
    table = {"wires": (wire,), "text_calls": "hermes", **served}
    async with before(*scripts, served=table) as (proxy, upstream):
        yield proxy, upstream


async def message_of(wire: str, text: str, **served: Any) -> tuple[Said, int]:
    """Return what a client reads from a text, and the number of turns; the next turn answers."""
    scripts = [say(wire, text), say(wire, "It is noon.")]
    async with reading(wire, *scripts, **served) as (proxy, upstream):
        answer = await proxy.ask(ask(wire, tools=()), path=PATHS[wire])
        return understood(wire, answer), len(upstream.requests)


@every_wire
@pytest.mark.parametrize(
    "text",
    [
        "The end <tool_",
        "The end <tool_call>",
        '<tool_call>\n{"name": "',
        f"{CALL[:-12]}",
        CALL[:-3],
        '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
        "<tool_call>\n{]}\n</tool_call>",
    ],
    ids=["half an opening", "an opening", "a name", "no end", "half an end", "no tool", "no JSON"],
)
async def test_half_a_marker(wire: str, text: str) -> None:
    """C46: text that does not become a call is passed on as it is, and nothing runs."""
    said, turns = await message_of(wire, text)
    assert (said.text, said.calls, turns) == (text, [], 1)


@every_wire
async def test_a_marker_of_ten_megabytes(wire: str) -> None:
    """C46: a marker longer than its bound is plain text; a call after it still runs."""
    long = '<tool_call>{"name": "probe_tools__echo", "arguments": {"text": "' + "x" * (10 * MIB)
    scripts = [say(wire, f'{long}"\n{CALL}', stream=False), say(wire, "It is noon.", stream=False)]
    async with reading(wire, *scripts) as (proxy, upstream):
        asked = ask(wire, tools=(), stream=False)
        said = understood(wire, await proxy.ask(asked, path=PATHS[wire]), stream=False)
    assert len(said.text) > 10 * MIB
    assert said.text.startswith(long)
    assert len(upstream.requests) == 2


async def test_a_marker_of_ten_megabytes_does_not_hold_the_stream() -> None:
    """C46: a streaming client gets most of a long text before the stream ends."""
    long = '<tool_call>{"name": "probe_tools__echo", "arguments": {"text": "' + "word " * (2 * MIB)
    events = [content(piece) for piece in pieces(long, 65536)]
    release = asyncio.Event()
    script = [*chunked(role(), *events)[:-2], release, *chunked(finish(), DONE)[1:]]
    async with reading("chat", script) as (proxy, _), proxy.connect() as conversation:
        conversation.writer.write(proxy.request(json.dumps(ask("chat", tools=())).encode()))
        arrived = 0
        async with asyncio.timeout(PATIENCE_S):
            while arrived < 8 * MIB:
                arrived += len(await conversation.reader.read(1 << 20))
        release.set()
        end = b""
        async with asyncio.timeout(PATIENCE_S):
            while not end.endswith(b"0\r\n\r\n"):
                end = (end + await conversation.reader.read(1 << 20))[-100:]
    assert b"[DONE]" in end


@every_wire
async def test_a_marker_inside_a_string(wire: str) -> None:
    """C46: tags and braces inside an argument belong to the argument."""
    inside = 'a </tool_call> {"b"} <tool_call> \\ `c`'
    call = json.dumps({"name": ECHO, "arguments": {"text": inside}})
    async with reading(wire, say(wire, f"<tool_call>{call}</tool_call>"), say(wire, "Done.")) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask(ask(wire, tools=()), path=PATHS[wire])
        said = understood(wire, answer, hidden=(ECHO,))
        detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    assert (said.text, len(upstream.requests)) == ("Done.", 2)
    assert detail is not None
    assert [row.status for row in detail.invocations] == ["success"]
    for kept in detail.native_calls:  # There are none if the client asks that nothing be stored.
        assert json.loads(json.loads(kept.payload)["text_call"]["arguments"]) == {"text": inside}


@every_wire
async def test_two_forms_in_one_answer(wire: str) -> None:
    """C46: only the configured format is read; a call in another format stays text."""
    other = f'[TOOL_CALLS][{{"name": "{ECHO}", "arguments": {{"text": "no"}}}}]'
    said, turns = await message_of(wire, f"{other}\n{CALL}")
    assert turns == 2
    assert said.text.replace("\n\n", "") == f"{other}It is noon."


@every_wire
async def test_a_model_that_talks_about_the_form(wire: str) -> None:
    """C46: a call in a code fence, in inline code or in a sentence stays text."""
    text = (
        f"A call is written so:\n\n```xml\n{CALL}\n```\n\nThe tag `<tool_call>` opens it: `{CALL[:20]}`, "
        "and <tool_call> holds JSON with a name. <|im_end|>\n"
    )
    said, turns = await message_of(wire, text)
    assert (said.text, said.calls, turns) == (text, [], 1)


@every_wire
async def test_a_stream_that_breaks_off_in_a_marker(wire: str) -> None:
    """C46: if the stream breaks within a call, nothing runs, and the call does not reach the client."""
    script = say(wire, f"One moment.\n{CALL}")
    data = body_of(script)
    async with reading(wire, [script[0], chunk(data[: len(data) * 2 // 5]), b"5\r\nda"], say(wire, "no")) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask(ask(wire, tools=()), path=PATHS[wire])
    assert ECHO.encode() not in answer.body
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("count", [2, 64])
async def test_many_calls_in_one_text(count: int) -> None:
    """C46: all calls of one text run in one turn, and the client sees none of them."""
    calls = [CALL.replace("noon", str(number)) for number in range(count)]
    said, turns = await message_of("chat", "\n".join(calls))
    assert (said.text, said.calls, turns) == ("It is noon.", [], 2)


async def test_a_text_that_is_a_marker_again_and_again() -> None:
    """C46: many openings without an end stay plain text."""
    text = '<tool_call>{"name": "probe_tools__echo", "arguments": {"' * 5000
    scripts = [say("chat", text, stream=False)]
    async with reading("chat", *scripts) as (proxy, _):
        answer = await proxy.ask(ask("chat", tools=(), stream=False))
    assert understood("chat", answer, stream=False).text == text
