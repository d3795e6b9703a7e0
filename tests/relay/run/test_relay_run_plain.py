"""A turn of plain text is read without frames, and nobody can tell: not the client, not the record."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import probe_tools
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs
from running_proxy import Proxy, make_config, running
from stepping import CHAT, END, EVENT, HEAD
from waiting import until

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.chat.request import parse_chat_request
from proxy.wires.chat.wire import ChatWire
from proxy.wires.chat.writer import ChatStreamWriter
from proxy.wires.client_port import ClientView
from proxy.wires.stream.held import identity
from proxy.wires.stream.plain import PlainTurn

HEADER = b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":['


def chunk(delta: str, reason: str = "null", more: str = "") -> bytes:
    """Return one event of a Chat stream."""
    choice = b'{"index":0,"delta":%b,"finish_reason":%b}' % (delta.encode(), reason.encode())
    return HEADER + choice + b"]" + more.encode() + b"}\n\n"


def call(name: str, arguments: str, call_id: str, index: int = 0) -> bytes:
    """Return an event with a whole call."""
    made = {
        "index": index,
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return chunk(json.dumps({"tool_calls": [made]}))


USAGE = '{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}'
PLAIN = [
    EVENT,
    chunk('{"role":"assistant","content":""}'),
    chunk('{"role":"assistant","content":"Hello","refusal":null}'),
    chunk('{"content":" there, \\"friend\\" \\u00e9 \\ud83d\\ude00"}'),
    chunk('{"content":" Gr\u00fc\u00dfe \U0001f600"}'),
    chunk('{"content":"x"}', more=',"obfuscation":"abc"'),
    chunk('{"reasoning_content":"I think"}'),
    chunk('{"refusal":"no"}'),
    chunk("{}", '"stop"'),
    chunk("{}", '"length"'),
    HEADER + b'],"usage":' + USAGE.encode() + b"}\n\n",
    chunk('{"content":"y"}', more=f',"usage":{USAGE}'),
    chunk('{"content":"z"}', more=',"usage":null'),
]
ODD = [
    b": comment\n\n",
    b"\n\n",
    b"event: error\ndata: {}\n\n",
    b'data: {"error":{"message":"bad","code":"c"}}\n\n',
    b"data: {broken\n\n",
    b'data: {"a":\ndata: 1}\n\n',
    b'data: {"choices":\n[]}\n\n',
    b"data: []\n\n",
    EVENT.replace(b"\n\n", b"\r\n\r\n"),
    EVENT.replace(b"data: ", b"data:"),
    EVENT.replace(b'"id":"c1"', b'"id":""'),
    EVENT.replace(b'"index":0', b'"index":1'),
    chunk('{"content":"half \\ud83d"}'),
    chunk('{"content":"\\ude00 other half"}'),
    chunk('{"content":[{"type":"text","text":"part"}]}'),
    chunk('{"content":"a","annotations":[]}'),
    chunk('{"content":"a","tool_calls":null}'),
    chunk('{"tool_calls":[]}'),
    chunk('{"content":"about tool_calls"}'),
    chunk("null"),
    chunk("{}", '"content_filter"'),
    chunk("{}", '"tool_calls"'),
    chunk("{}", '"abort"'),
    chunk("{}", "1"),
    chunk('{"content":"' + "long " * 4000 + '"}'),
    call("probe_tools__echo", '{"text":"hi"}', "call_1"),
    call("mine", "{}", "call_2", 1),
    call("probe_tools__echo", '{"text":', "call_3"),
    call("probe_tools__echo", '{"text":"hi"}', "call_4").replace(b"tool_calls", b"tool\\u005fcalls"),
    b"data: [DONE]\n\n",
    b"data: [DONE]",
]
WHOLE = HEAD.replace(b"text/event-stream", b"application/json")
PLAIN_MEMBERS = [
    '"content":"Hello"',
    '"content":" there, \\"friend\\" \\u00e9 Grüße"',
    '"content":null',
    '"refusal":null,"annotations":[]',
    '"reasoning_content":"I think"',
    '"refusal":"no"',
]
ODD_MEMBERS = [
    '"content":[{"type":"text","text":"part"}]',
    '"content":"half \\ud83d"',
    '"content":"about tool_calls"',
    '"content":7',
    '"tool_calls":null',
    '"tool_calls":[]',
    '"annotations":[{"type":"url_citation"}]',
    '"tool_calls":[{"id":"call_1","type":"function","function":{"name":"probe_tools__echo",'
    '"arguments":"{\\"text\\":\\"hi\\"}"}}]',
    '"tool\\u005fcalls":[{"id":"call_1","type":"function","function":{"name":"probe_tools__echo",'
    '"arguments":"{}"}}]',
    '"tool_calls":[{"id":"call_2","type":"function","function":{"name":"mine","arguments":"{}"}}]',
]
REASONS = ['"stop"', '"length"', '"stop"', "null", '"content_filter"', '"tool_calls"', "1"]
ODD_REPLIES = [
    b"",
    b"[]",
    b"{broken",
    b'{"error":{"message":"bad","code":"c"}}',
    b'{"choices":[]}',
    b'{"choices":7}',
    b'{"choices":[7]}',
    b'{"choices":[{"index":0,"message":null,"finish_reason":"stop"}]}',
    b'{"choices":[{"index":0,"delta":{"content":"x"},"message":{"content":"y"},"finish_reason":"stop"}]}',
    EVENT,
]


def reply(members: str, reason: str = '"stop"', more: str = "", index: int = 0) -> bytes:
    """Return a whole reply of one choice."""
    message = f'{{"role":"assistant",{members}}}'
    choice = f'{{"index":{index},"message":{message},"finish_reason":{reason}}}'
    head = HEADER.removeprefix(b"data: ").replace(b".chunk", b"")
    return head + choice.encode() + b"]" + more.encode() + b"}"


MINE = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}


BLOCKS = [
    '{"type":"text","text":"Hello"}',
    '{"type":"text","text":" there, \\"friend\\" \\u00e9 Grüße"}',
    '{"type":"text","text":""}',
    '{"type":"text","text":"x","citations":null}',
]
ODD_BLOCKS = [
    '{"type":"thinking","thinking":"hm","signature":"s"}',
    '{"type":"text","text":7}',
    '{"type":"text"}',
    '{"type":"te\\u0078t","text":"b"}',
    '{"type":"text","text":"about tool_use"}',
    '{"type":"text","text":"a","citations":[{"type":"web_search_result_location","url":"https://a.example",'
    '"title":"A","cited_text":"a","encrypted_index":"e"}]}',
    '{"type":"tool_use","id":"toolu_1","name":"probe_tools__echo","input":{"text":"hi"}}',
    '{"type":"tool_use","id":"toolu_2","name":"mine","input":{}}',
    "7",
]
STOPS = ['"end_turn"', '"max_tokens"', '"stop_sequence"', '"tool_use"', '"refusal"', "null", '"odd"']


def message(blocks: str, reason: str = '"end_turn"', more: str = "") -> bytes:
    """Return a whole reply of Messages."""
    usage = '{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":4}'
    return (
        f'{{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{blocks}],'
        f'"stop_reason":{reason},"stop_sequence":null,"usage":{usage}{more}}}'
    ).encode()


@dataclass(frozen=True)
class Script:
    """One answer of the upstream: its pieces, whether it breaks off, and what the client asks."""

    pieces: tuple[bytes, ...]
    cut: bool = False
    ask: dict[str, Any] = field(default_factory=dict)
    head: bytes = HEAD
    path: str = CHAT.path

    @classmethod
    def of_reply(cls, body: bytes, *, cut: bool = False) -> "Script":
        """Return the script of an answer that is one object."""
        return cls((body,) if body else (), cut, {"stream": False}, WHOLE)

    @classmethod
    def of_message(cls, body: bytes, *, cut: bool = False) -> "Script":
        """Return the script of an answer that is one object of Messages."""
        return cls((body,), cut, {"stream": False, "max_tokens": 9}, WHOLE, "/v1/messages")


@dataclass
class Upstream:
    """An upstream that answers the first request with a script and all others with one word."""

    script: Script | None = None
    bodies: list[Any] = field(default_factory=list)
    port: int = 0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                opening = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(opening.partition(b"content-length:")[2].partition(b"\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                streams = self.bodies[-1].get("stream")
                usual = Script((EVENT, END)) if streams else Script.of_reply(reply(PLAIN_MEMBERS[0]))
                if b"/messages" in opening:
                    usual = Script.of_message(message(BLOCKS[0]))
                script, self.script = self.script or usual, None
                writer.write(script.head)
                for piece in script.pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    for _ in range(4):  # So that most pieces are read one by one.
                        await asyncio.sleep(0)
                await self.goes_on.wait()
                if script.cut:
                    break
                writer.write(b"0\r\n\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def behind_it(content: str = "all") -> AsyncIterator[tuple[Proxy, Upstream]]:
    """Run a proxy that keeps all content, or less, before such an upstream."""
    upstream = Upstream()
    upstream.goes_on.set()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    config = make_config(
        {"base_url": address, "wires": ("chat", "anthropic")},
        allow=("probe_tools__echo",),
        modules=(str(probe_tools.__file__),),
        store={"content": content, "wire_bytes": False},
    )
    async with server, running(config) as proxy:
        yield proxy, upstream


async def record_of(proxy: Proxy, run_id: str | None) -> str:
    """Return what the record has of a run, without its ids and times; empty if there was no run."""
    if run_id is None:
        return ""

    async def ended() -> bool:  # The client has the end a moment before the record.
        detail = await proxy.services.store.get_run(run_id)
        return detail is not None and detail.run.status != "running"

    await until(ended)
    detail = await proxy.services.store.get_run(run_id)
    assert detail is not None
    run = structs.asdict(detail.run) | dict.fromkeys(("id", "request_id", "started_at", "ended_at"))
    turns = [
        structs.replace(one, run_id="", started_at=0.0, ended_at=0.0, first_at=one.first_at and 1.0)
        for one in detail.turns
    ]
    messages = [structs.replace(one, run_id="") for one in detail.messages]
    calls = [(one.tool, one.status, one.call_id, one.arguments_redacted) for one in detail.invocations]
    return repr((run, turns, messages, calls))


_CHANCE = re.compile(r"127\.0\.0\.1:\d+|(?:run|req)_[0-9a-f]{32}|(call|toolu)_[0-9a-zA-Z]{20,}")
_COUNTED = re.compile(rb"^(toolrelay_\w+?_total|gen_ai\w+?_(?:count|sum))(\{.*\})? (\S+)$", re.MULTILINE)


async def counters(proxy: Proxy) -> dict[bytes, float]:
    """Return the metrics that only depend on what was asked and answered."""
    text = (await proxy.get("/metrics")).body
    found = {name + labels: float(value) for name, labels, value in _COUNTED.findall(text)}
    return {name: value for name, value in found.items() if b"duration" not in name and b"time" not in name}


async def observed(proxy: Proxy, upstream: Upstream, script: Script) -> list[str]:
    """Return everything that a request and the client's next one leave behind."""
    upstream.script, upstream.bodies = script, []
    before = await counters(proxy)
    ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **script.ask}
    answer = await proxy.ask(ask, path=script.path)
    seen: list[Any] = [answer.status, answer.clean, answer.body, [*upstream.bodies]]
    seen.append(sorted(set(answer.names())))
    seen.append(await record_of(proxy, answer.header("x-toolrelay-run")))
    said = {"role": "assistant", "content": _text(answer.body) or "nothing"}
    history = [*ask["messages"], said, {"role": "user", "content": "and?"}]
    upstream.bodies = []
    again = await proxy.ask({**ask, "messages": history}, path=script.path)
    seen += [again.body, [*upstream.bodies], again.header("x-toolrelay-restored")]
    seen.append(await record_of(proxy, again.header("x-toolrelay-run")))
    after = await counters(proxy)
    seen.append({name: value - before.get(name, 0) for name, value in after.items()})
    return [_CHANCE.sub("", repr(part)) for part in seen]


def _text(body: bytes) -> str:
    """Return the text of a stream, or of a reply, as a client would put it together."""
    said = []
    for line in body.splitlines():
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            payload = json.loads(line.removeprefix(b"data: "))
            if "choices" in payload:
                choice = payload["choices"][0]
                said.append((choice.get("delta") or choice.get("message")).get("content"))
            said += [block["text"] for block in payload.get("content", ()) if block.get("type") == "text"]
    return "".join(one for one in said if isinstance(one, str))


def without(*_: Any, **__: Any) -> None:
    """Let each turn be read by frames."""


async def both(scripts: Sequence[Script], monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare each script read by frames with the same read plainly; return how many were plain."""
    plain = 0
    noted, take_reply = ChatTurnReader.note_plain, PlainTurn.take_reply

    def note_plain(reader: ChatTurnReader, turn: Any) -> None:
        nonlocal plain
        plain += 1
        noted(reader, turn)

    def taken(turn: PlainTurn, body: bytes) -> bool:
        nonlocal plain
        is_plain = take_reply(turn, body)
        plain += is_plain
        return is_plain

    async with behind_it() as (proxy, upstream):
        with monkeypatch.context() as patch:
            patch.setattr(ChatWire, "plain_turn", without)
            patch.setattr(AnthropicWire, "plain_turn", without)
            expected = [await observed(proxy, upstream, script) for script in scripts]
    async with behind_it() as (proxy, upstream):
        monkeypatch.setattr(ChatTurnReader, "note_plain", note_plain)
        monkeypatch.setattr(PlainTurn, "take_reply", taken)
        found = [await observed(proxy, upstream, script) for script in scripts]
    for script, one, other in zip(scripts, expected, found, strict=True):
        for part, (left, right) in enumerate(zip(one, other, strict=True)):
            assert left == right, (part, script)
    return plain


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw an answer: mostly plain events, now and then an odd one, cut anywhere."""
    events = draw(st.lists(st.sampled_from(PLAIN * 3 + ODD), max_size=12))
    ends = draw(st.sampled_from([b"", END, END, b"data: [DONE]\n\n"]))
    pieces = [*events, ends]
    if draw(st.booleans()):
        whole = b"".join(pieces)
        at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        pieces = [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]
    ask: dict[str, Any] = {}
    if draw(st.booleans()):
        ask["tools"] = [MINE]
    if draw(st.booleans()):
        ask["stream_options"] = {"include_usage": True}
    return Script(tuple(filter(None, pieces)), draw(st.integers(0, 4)) == 0, ask)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(scripts(), min_size=6, max_size=10))
def test_any_stream_is_answered_alike(drawn: list[Script]) -> None:
    """Client, upstream, record, metrics and the next request are the same, read plainly or by frames."""
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(both(drawn, patch))


@st.composite
def replies(draw: st.DrawFn) -> Script:
    """Draw a reply: mostly a plain one, now and then one with an odd member, an odd end or broken off."""
    members = draw(st.lists(st.sampled_from(PLAIN_MEMBERS * 3 + ODD_MEMBERS), min_size=1, max_size=3))
    more = draw(st.sampled_from(["", f',"usage":{USAGE}', ',"usage":null', ',"service_tier":"default"']))
    body = reply(",".join(members), draw(st.sampled_from(REASONS)), more, draw(st.sampled_from([0, 0, 0, 1])))
    if draw(st.integers(0, 5)) == 0:
        body = draw(st.sampled_from([*ODD_REPLIES, body.replace(b",", b",\r\n"), body + b" ", body[:-1]]))
    script = Script.of_reply(body, cut=draw(st.integers(0, 9)) == 0)
    if draw(st.booleans()):
        script.ask["tools"] = [MINE]
    return script


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(replies(), min_size=6, max_size=10))
def test_any_reply_is_answered_alike(drawn: list[Script]) -> None:
    """So it is for answers without a stream."""
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(both(drawn, patch))


@st.composite
def messages(draw: st.DrawFn) -> Script:
    """Draw a reply of Messages in the same way."""
    blocks = draw(st.lists(st.sampled_from(BLOCKS * 4 + ODD_BLOCKS), max_size=3))
    more = draw(st.sampled_from(["", ',"container":null', ',"x":{"type":"tool_use","name":"mine"}']))
    body = message(",".join(blocks), draw(st.sampled_from(STOPS)), more)
    if draw(st.integers(0, 5)) == 0:
        body = draw(st.sampled_from([b"[]", b'{"type":"error"}', body.replace(b",", b",\r\n"), body[:-1]]))
    return Script.of_message(body, cut=draw(st.integers(0, 9)) == 0)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(messages(), min_size=6, max_size=10))
def test_any_message_is_answered_alike(drawn: list[Script]) -> None:
    """So it is for replies of Messages."""
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(both(drawn, patch))


async def test_usual_messages_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text alone is read without a reader, and so is the answer to the next request."""
    usual = [message(blocks) for blocks in (*BLOCKS, ",".join(BLOCKS))]
    assert await both([*map(Script.of_message, usual)], monkeypatch) == 2 * len(usual)


async def test_each_kind_of_reply_is_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plain member of a reply leaves it plain, and each odd one has it read by a reader."""
    usual = [reply(members, more=f',"usage":{USAGE}') for members in PLAIN_MEMBERS]
    odd = [*map(reply, ODD_MEMBERS), *ODD_REPLIES]
    plain = await both([*map(Script.of_reply, usual)], monkeypatch)
    assert plain == 2 * len(usual)  # Each, and each answer to the next request.
    monkeypatch.undo()
    follow_up = await both([*map(Script.of_reply, odd)], monkeypatch)
    # Only answers to the next requests are plain, and the answer after a call of a server tool is none.
    assert follow_up <= len(odd)


async def test_long_streams_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are streams of more events than a template keeps, and of more text than is kept."""
    words = [chunk(f'{{"content":"word {number} "}}') for number in range(700)]
    large = [chunk('{"content":"' + "long " * 3000 + f'{number}"}}') for number in range(30)]
    late = call("probe_tools__echo", '{"text":"hi"}', "call_1")
    calls_end = chunk("{}", '"tool_calls"') + b"data: [DONE]\n\n"
    found = await both(
        [
            Script((*words, END)),
            Script((*large, END)),
            Script((*words, late, calls_end)),
            Script((*large, late, calls_end)),
            Script((b"".join(words), END)),
            Script((*words[:9], late + words[9], calls_end)),
        ],
        monkeypatch,
    )
    assert found >= 1 + 6  # The first of them, and each answer to the next request.


async def test_usual_streams_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the usual upstreams send is read without frames."""
    role, word, stop = PLAIN[1], PLAIN[2], chunk("{}", '"stop"')
    usage, done = PLAIN[10], b"data: [DONE]\n\n"
    streams = [
        (role, word, word, stop, done),
        (role + word, word + word, stop + done),
        (role, word, stop, usage, done),
        (b"".join([role, word, stop, usage, done]),),
    ]
    assert await both([Script(pieces) for pieces in streams], monkeypatch) == 2 * len(streams)


async def test_a_plain_answer_needs_no_reader_and_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a run that read and write frames are made for an answer with a call, and for no other."""
    made: list[str] = []

    def reader(*given: Any) -> Any:
        made.append("reader")
        return ChatTurnReader(*given)

    write = ChatWire.writer

    def writer(*given: Any) -> Any:
        made.append("writer")
        return write(*given)

    monkeypatch.setattr(ChatWire, "reader", staticmethod(reader))
    monkeypatch.setattr(ChatWire, "writer", writer)
    ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with behind_it("tools") as (proxy, upstream):
        upstream.script = Script((PLAIN[1], PLAIN[2], chunk("{}", '"stop"'), b"data: [DONE]\n\n"))
        assert _text((await proxy.ask(ask)).body) == "Hello"
        assert _text((await proxy.ask({**ask, "stream": False})).body) == "Hello"
        assert made == []
        upstream.script = Script((PLAIN[1], PLAIN[2], call("mine", "{}", "call_1"), chunk("{}", '"stop"')))
        assert _text((await proxy.ask({**ask, "tools": [MINE]})).body) == "Hello"
        assert sorted(made) == ["reader", "writer"]


@pytest.mark.parametrize("wants_json", [False, True])
@pytest.mark.parametrize("wants_usage", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_turn_is_plain_where_the_writer_changes_nothing(
    wants_json: bool, wants_usage: bool, added: bool
) -> None:
    """A first turn is read plainly exactly where the client's writer passes all events on as they come."""
    body: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    body |= {"response_format": {"type": "json_object"}} if wants_json else {}
    body |= {"stream_options": {"include_usage": True}} if wants_usage else {}
    request = parse_chat_request(body)
    writer = ChatWire().writer(request, ClientView("m", lambda _: True, usage_was_added=added))
    assert isinstance(writer, ChatStreamWriter)
    plain = ChatWire().plain_turn(request, usage_was_added=added)
    assert (plain is not None) == (writer.transform() is identity)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_client_that_leaves_a_plain_stream_is_recorded(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has what the upstream had said by then."""
    if not plain:
        monkeypatch.setattr(ChatWire, "plain_turn", without)
    async with behind_it() as (proxy, upstream):
        upstream.goes_on.clear()
        upstream.script = Script((PLAIN[1], PLAIN[2], chunk("{}", '"stop"')))
        ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        async with proxy.sent(ask) as conversation:
            await conversation.reader.readuntil(b'"finish_reason":"stop"}')
            conversation.leave()
        detail = await proxy.run_reaches("cancelled")
        upstream.goes_on.set()
    (turn,) = detail.turns
    assert (turn.upstream_id, turn.finish_reason) == ("c1", "stop")
    assert [message.content for message in detail.messages if message.role == "assistant"] == ["Hello"]


async def test_events_after_the_end_mark_belong_to_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that follows the end mark is not part of the answer, although it looks like the text before."""
    words = [chunk(f'{{"content":"word {number} "}}') for number in range(4)]
    stop, done = chunk("{}", '"stop"'), b"data: [DONE]\n\n"
    streams = [(*words, stop, done, *words), (*words, done, *words), (*words, stop + done, words[0], done)]
    await both([Script(pieces) for pieces in streams], monkeypatch)


async def test_a_wait_for_the_end_is_limited_by_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without an end mark ends as it did, with the reason that was read plainly."""
    script = Script((PLAIN[1], PLAIN[2], chunk("{}", '"stop"')), cut=True)
    await both([script], monkeypatch)
