"""The number of calls on the hot path has a bound; the tests count calls and never measure time.

A call is one of Python's own functions entered, or one built in C called, from the proxy's code or
from aiohttp's. The peers are plain sockets and wait for each other, so that every chunk is one read and
one write, and the count is the same on every machine.
"""

import json
import threading
from dataclasses import astuple
from pathlib import Path

import pytest
from call_count import CALLS_PER_CALLBACK_OF_A_BURST, Count, Spent
from running_proxy import Proxy
from stepping import CHAT, END, EVENT, RESPONSES, Steps, Talk, stepping

# The bounds: what was measured, and a tenth more for other versions of Python and aiohttp. A change that
# lowers a figure lowers its bound; a change that raises a figure says why in its commit.
# ``find`` is a call and ``in`` is none, but for bytes ``in`` takes 1,900 instructions more: it first tries to
# use them as a number, and formats the error.
CALLS_PER_CHUNK_PASSED = 11  # 10, seven of them built in: one keeps the piece, for the usage at the end
CALLS_PER_CHUNK_WITH_TOOLS = 24  # 22
CALLS_PER_CHUNK_KEPT = 37  # 34: each side notes time and bytes of a chunk, and both are checked at the end
CALLS_PER_CHUNK_WITH_TEXT_CALLS = 29  # 26, 27 on a busy machine: what may begin a call is searched
CALLS_PER_CHUNK_READ_FOR_TEXT_CALLS = 173  # 157: each chunk may begin a call, so each is parsed
CALLS_PER_CHUNK_OF_RESPONSES_WITH_TOOLS = 38  # 34.9
CALLS_PER_CHUNK_CROSSED = {"/v1/messages": 38, "/api/chat": 48}  # 35.1, 44: each line has its time
# Many events in one read take more calls than one regular expression, but each call is much cheaper.
CALLS_PER_EVENT_AT_ONCE_WITH_TOOLS = 13  # 12
# The figure depends on what ran before, such as an idle connection or a limit whose window has moved on.
CALLS_PER_REQUEST = 420  # 400: such heads came before; `limits` counts the request, and it gets a row
# 516: the parser reads the head, and everything that depends on it is computed
CALLS_PER_REQUEST_OF_A_NEW_HEAD = 530
# 1090: the request is planned for any dialect and recognised if it is repeated; its answer is noted under
# three keys, so that no hidden turn of another conversation with the same words is taken for its own.
CALLS_PER_REQUEST_WITH_TOOLS = 1200
# The client's body is split into its members here, which a request without a call does not need; and its
# stored content is sealed, which takes about a hundred calls.
# 1950: `limits` counts the request and the call. A plain stream, which is subtracted, takes 300 calls less
# than when this was 1628, since it is read without frames, and no reader and no writer are made for it.
CALLS_PER_TOOL_TURN = 2040
# 2340: the claim is committed before the call runs, and the outcome after it. Before each step a run looks
# whether the record keeps up. What is subtracted is less, as above.
CALLS_PER_TOOL_TURN_WITH_EFFECT = 2570

# What one stream spends with its record: frames and JSON texts with some more as above, rows and sealings
# exactly.
SPENT_ON_A_STREAM_PASSED = Spent(232, 2, 0, 0)  # 212 frames
SPENT_ON_A_STREAM_WITH_TOOLS = Spent(645, 14, 3, 1)  # 586 frames, 13 JSON texts
SPENT_ON_A_RUN_THAT_READS = Spent(1815, 62, 11, 9)  # 1666 frames, 58 JSON texts
SPENT_ON_A_RUN_THAT_ACTS = Spent(1995, 71, 19, 11)  # 1831 frames, 67 JSON texts

CALLED = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_1","type":"function","function":'
    b'{"name":"probe_tools__%s","arguments":"{\\"%s\\":\\"milk\\"}"}}]},"finish_reason":null}]}\n\n'
    b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
)


async def one_stream(
    proxy: Proxy, steps: Steps, chunks: int, talk: Talk = CHAT, *, at_once: int = 1, trace: str = ""
) -> int:
    """Count the calls for a stream of so many chunks, each sent when the one before has arrived.

    A chunk is ``at_once`` events. With ``trace`` the request has a header with that value.
    """
    headers = {"traceparent": trace} if trace else {}
    ask = {"model": "m", "stream": True, **talk.ask}
    count = Count()
    async with proxy.connect() as conversation:
        with count.counting():
            conversation.writer.write(proxy.request(json.dumps(ask).encode(), headers, path=talk.path))
            arrived = b""
            for number in range(chunks):
                steps.queue.put_nowait(talk.event * at_once if number else talk.opening + talk.event)
                while arrived.count(b"word ") <= number * at_once:
                    arrived += await conversation.reader.read(65536)
            steps.queue.put_nowait(talk.end)
            steps.queue.put_nowait(None)
            while not arrived.endswith(b"0\r\n\r\n"):
                arrived += await conversation.reader.read(65536)
    assert arrived.count(b"word ") == 1 + (chunks - 1) * at_once
    return count.calls


async def usual(proxy: Proxy, steps: Steps, chunks: int, talk: Talk = CHAT, *, at_once: int = 1) -> int:
    """Count the calls for such a stream five times, and return the median.

    A timer that fires meanwhile adds some calls; work that was done before saves some.
    """
    return sorted([await one_stream(proxy, steps, chunks, talk, at_once=at_once) for _ in range(5)])[2]


async def warm_up(proxy: Proxy, steps: Steps, talk: Talk = CHAT) -> None:
    """Let everything happen that happens only once: sessions, caches, the first row, a head that is new."""
    for _ in range(4):
        await one_stream(proxy, steps, 3, talk)


async def counted(tools: bool, path: Path, content: str = "tools") -> tuple[float, float]:
    """The calls for each chunk, and for a request with its first chunk."""
    async with stepping(tools=tools, path=path, content=content) as (proxy, steps):
        await warm_up(proxy, steps)
        short = await usual(proxy, steps, 10)
        long = await usual(proxy, steps, 110)
    per_chunk = (long - short) / 100
    return per_chunk, short - 9 * per_chunk


@pytest.mark.parametrize(
    ("tools", "chunk_bound", "request_bound"),
    [
        (False, CALLS_PER_CHUNK_PASSED, CALLS_PER_REQUEST),
        (True, CALLS_PER_CHUNK_WITH_TOOLS, CALLS_PER_REQUEST_WITH_TOOLS),
    ],
    ids=["passed through", "tools offered"],
)
async def test_the_hot_path_stays_within_its_bound(
    tools: bool, chunk_bound: int, request_bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk and a request stay within their bounds, which are not far above the figures."""
    # The record's rows wait, so that no commit is part of a count.
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", 600.0)
    per_chunk, per_request = await counted(tools, tmp_path)
    assert per_chunk <= chunk_bound, f"{per_chunk:.1f} calls for each chunk"
    assert per_request <= request_bound, f"{per_request:.1f} calls for a request"
    # A bound far above the measured figure would detect nothing.
    assert per_chunk > 0.7 * chunk_bound, f"lower the bound: {per_chunk:.1f} calls for each chunk"
    assert per_request > 0.7 * request_bound, f"lower the bound: {per_request:.1f} calls for a request"


async def test_a_chunk_that_is_kept_costs_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all content on record, a chunk costs little more: its bytes are neither parsed nor copied."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", 600.0)
    per_chunk, _ = await counted(True, tmp_path, "all")
    assert per_chunk <= CALLS_PER_CHUNK_KEPT


@pytest.mark.parametrize(
    ("event", "bound"),
    [
        (EVENT, CALLS_PER_CHUNK_WITH_TEXT_CALLS),
        (EVENT.replace(b"word ", b"a <b>word "), CALLS_PER_CHUNK_READ_FOR_TEXT_CALLS),
    ],
    ids=["plain", "read"],
)
async def test_a_chunk_whose_text_may_hold_calls_stays_within_its_bound(
    event: bytes, bound: int, tmp_path: Path
) -> None:
    """With text calls enabled, a chunk stays within its bound, whether its text has to be read or not."""
    talk = Talk(CHAT.path, CHAT.ask, b"", event, END)
    async with stepping(tools=True, path=tmp_path, text_calls="hermes") as (proxy, steps):
        await warm_up(proxy, steps, talk)
        short = await usual(proxy, steps, 10, talk)
        long = await usual(proxy, steps, 110, talk)
    per_chunk = (long - short) / 100
    assert 0.7 * bound < per_chunk <= bound, f"{per_chunk:.1f} calls for each chunk"


@pytest.mark.parametrize("path", CALLS_PER_CHUNK_CROSSED)
async def test_a_chunk_that_crosses_stays_within_its_bound(path: str, tmp_path: Path) -> None:
    """A Chat chunk for a client of another dialect, with tools offered, stays within its bound."""
    bound = CALLS_PER_CHUNK_CROSSED[path]
    ask = {**CHAT.ask, "max_tokens": 9} if path == "/v1/messages" else CHAT.ask
    talk = Talk(path, ask, b"", EVENT, END)
    async with stepping(tools=True, path=tmp_path) as (proxy, steps):
        await warm_up(proxy, steps, talk)
        short = await usual(proxy, steps, 10, talk)
        long = await usual(proxy, steps, 110, talk)
    per_chunk = (long - short) / 100
    assert 0.7 * bound < per_chunk <= bound, f"{per_chunk:.1f} calls for each chunk"


async def test_a_new_head_stays_within_its_bound(tmp_path: Path) -> None:
    """A request whose head never came before stays within its bound."""
    async with stepping(tools=False, path=tmp_path) as (proxy, steps):
        for number in range(4):
            await one_stream(proxy, steps, 3, trace=f"warm-{number}")
        # Each count has a head of its own; the median of five leaves out what happens by chance.
        shorts = [await one_stream(proxy, steps, 10, trace=f"short-{number}") for number in range(5)]
        longs = [await one_stream(proxy, steps, 110, trace=f"long-{number}") for number in range(5)]
    short, long = sorted(shorts)[2], sorted(longs)[2]
    per_request = short - 9 * (long - short) / 100
    bound = CALLS_PER_REQUEST_OF_A_NEW_HEAD
    assert 0.7 * bound < per_request <= bound, f"{per_request:.1f} calls for a request"


async def test_a_chunk_of_responses_stays_within_its_bound(tmp_path: Path) -> None:
    """With tools offered, a chunk of the Responses dialect stays within its bound."""
    bound = CALLS_PER_CHUNK_OF_RESPONSES_WITH_TOOLS
    async with stepping(tools=True, path=tmp_path) as (proxy, steps):
        await warm_up(proxy, steps, RESPONSES)
        short = await usual(proxy, steps, 10, RESPONSES)
        long = await usual(proxy, steps, 110, RESPONSES)
    per_chunk = (long - short) / 100
    assert 0.7 * bound < per_chunk <= bound, f"{per_chunk:.1f} calls for each chunk"


@pytest.mark.parametrize("text_calls", ["off", "hermes"])
async def test_events_that_come_at_once_stay_within_their_bound(text_calls: str, tmp_path: Path) -> None:
    """With tools offered, each further event in one read stays within its bound, also if its text may hold
    calls."""
    bound = CALLS_PER_EVENT_AT_ONCE_WITH_TOOLS
    async with stepping(tools=True, path=tmp_path, text_calls=text_calls) as (proxy, steps):
        await warm_up(proxy, steps)
        short = await usual(proxy, steps, 11, at_once=10)
        long = await usual(proxy, steps, 11, at_once=60)
    per_event = (long - short) / 500
    assert 0.7 * bound < per_event <= bound, f"{per_event:.1f} calls for each event"


@pytest.mark.parametrize(
    "event",
    [
        EVENT.replace(b'"word "', b'"word ","x":%d'),
        b"data: {}\n\n",
        b"x\n\n",
        b"\n\n",
        b": x\n\n",
        EVENT[:99] + b"\n\n",
    ],
    ids=["text", "empty", "no data", "blank", "comments", "broken"],
)
async def test_a_burst_is_taken_in_parts(event: bytes, tmp_path: Path) -> None:
    """With tools offered, no callback makes more calls than its bound, whatever one read brings."""
    size = 250_000
    burst = b"".join(event % at if b"%d" in event else event for at in range(size // len(event)))
    count = Count()
    async with stepping(tools=True, path=tmp_path) as (proxy, steps):
        await one_stream(proxy, steps, 3)
        async with proxy.connect() as conversation:
            ask = {"model": "m", "stream": True, **CHAT.ask}
            conversation.writer.write(proxy.request(json.dumps(ask).encode()))
            steps.queue.put_nowait(EVENT)
            arrived = 0
            while arrived < len(EVENT):
                arrived += len(await conversation.reader.read(65536))
            with count.counting_callbacks():
                for piece in (burst, END, None):
                    steps.queue.put_nowait(piece)
                end = b""
                while not end.endswith(b"0\r\n\r\n"):
                    end = (end + await conversation.reader.read(1 << 20))[-100:]
    assert 0 < count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


async def one_run(proxy: Proxy, steps: Steps, store: Count, called: bytes) -> int:
    """Count the calls for a stream, with or without a tool call, including the record in the database.

    ``store`` counts in the store's thread, all the time.
    """
    before = store.calls
    ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    count = Count()
    async with proxy.connect() as conversation:
        with count.counting():
            conversation.writer.write(proxy.request(json.dumps(ask).encode()))
            for turn in (called, EVENT + END):
                if turn:
                    steps.queue.put_nowait(turn)
                    steps.queue.put_nowait(None)
            arrived = b""
            while not arrived.endswith(b"0\r\n\r\n"):
                arrived += await conversation.reader.read(65536)
            assert await proxy.services.store.wait_until_visible(20)
    assert arrived.count(b"word ") == 1
    return count.calls + store.calls - before


@pytest.mark.parametrize(
    ("called", "bound"),
    [
        (CALLED % (b"echo", b"text"), CALLS_PER_TOOL_TURN),
        (CALLED % (b"buy", b"what"), CALLS_PER_TOOL_TURN_WITH_EFFECT),
    ],
    ids=["reads", "acts"],
)
async def test_a_tool_turn_stays_within_its_bound(
    called: bytes, bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn with a call and its record in the database stays within its bound."""
    # Rows are written only when somebody waits for them, so that each run has the same number of commits.
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", 600.0)
    store = Count()
    threading.setprofile(store.see)
    async with stepping(tools=True, path=tmp_path) as (proxy, steps):
        threading.setprofile(None)
        for turn in (b"", called):
            await one_run(proxy, steps, store, turn)
        plain = await one_run(proxy, steps, store, b"")
        extra = await one_run(proxy, steps, store, called) - plain
    assert extra <= bound, f"{extra} calls for a tool turn"
    assert extra > 0.7 * bound, f"lower the bound: {extra} calls for a tool turn"


async def _spent_on_one(proxy: Proxy, steps: Steps, called: bytes) -> Spent:
    """Return what a stream spends, with or without a tool call, to the commit of its rows."""
    spent = Spent()
    ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with proxy.connect() as conversation:
        with spent.counting():
            conversation.writer.write(proxy.request(json.dumps(ask).encode()))
            for turn in (called, EVENT + END):
                if turn:
                    steps.queue.put_nowait(turn)
                    steps.queue.put_nowait(None)
            arrived = b""
            while not arrived.endswith(b"0\r\n\r\n"):
                arrived += await conversation.reader.read(65536)
            assert await proxy.services.store.wait_until_visible(20)
    assert arrived.count(b"word ") == 1
    return spent


@pytest.mark.parametrize(
    ("tools", "called", "bound"),
    [
        (False, b"", SPENT_ON_A_STREAM_PASSED),
        (True, b"", SPENT_ON_A_STREAM_WITH_TOOLS),
        (True, CALLED % (b"echo", b"text"), SPENT_ON_A_RUN_THAT_READS),
        (True, CALLED % (b"buy", b"what"), SPENT_ON_A_RUN_THAT_ACTS),
    ],
    ids=["passed", "offered", "reads", "acts"],
)
async def test_a_stream_spends_no_more_than_its_bounds(
    tools: bool, called: bytes, bound: Spent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames, JSON texts, rows and sealed values of one stream stay within their bounds."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", 600.0)
    async with stepping(tools=tools, path=tmp_path) as (proxy, steps):
        for _ in range(4):
            await _spent_on_one(proxy, steps, called)
        each = [await _spent_on_one(proxy, steps, called) for _ in range(5)]
    middle = Spent(*(sorted(values)[2] for values in zip(*map(astuple, each), strict=True)))
    assert middle.json <= bound.json
    assert middle.rows <= bound.rows
    assert middle.seals <= bound.seals
    assert 0.7 * bound.frames < middle.frames <= bound.frames, f"{middle.frames} frames"
