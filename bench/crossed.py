"""``python -m bench.crossed``: the cost of a chunk if client and upstream speak different dialects.

Each dialect has its own upstream, which writes one chunk every few milliseconds, so each chunk takes one read
and one write. In front of each upstream is a proxy with tools offered; clients ask it in every dialect. The
cost of a chunk is the difference of the proxy's CPU time for a long and a short stream, divided by the chunks
between them. All pairs take turns in each round, so that ratios come from one run.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import toolrelay
from bench.processes import Process
from bench.wire import KEY

STREAMS = 25
LONG, SHORT = 400, 40
PAUSE_S = 0.005
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
LAST = b"0\r\n\r\n"


@dataclass(frozen=True)
class Spoken:
    """How a dialect streams: its path, and the events of a turn.

    In ``says``, WORD stands for the words of a piece, and NUMBER for its number in the stream.
    """

    path: str
    body: Mapping[str, object]
    begins: tuple[str, ...]
    says: str
    ends: tuple[str, ...]
    content_type: str = EVENTS

    def events(self, count: int) -> Iterator[bytes]:
        """Yield a turn with ``count`` chunks of text."""
        numbers = itertools.count()
        if self.begins:
            yield "".join(said.replace("NUMBER", str(next(numbers))) for said in self.begins).encode()
        for at in range(count):
            said = self.says.replace("WORD", f"word {at} ").replace("NUMBER", str(next(numbers)))
            yield said.encode()
        yield "".join(said.replace("NUMBER", str(next(numbers))) for said in self.ends).encode()


def _chat(delta: str, reason: str = "null") -> str:
    head = '"id":"c1","object":"chat.completion.chunk","created":7,"model":"m"'
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{reason}}}'
    return f'data: {{{head},"choices":[{choice}]}}\n\n'


def _messages(kind: str, rest: str = "") -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}"{rest}}}\n\n'


def _responses(kind: str, rest: str = "") -> str:
    return f'event: response.{kind}\ndata: {{"type":"response.{kind}"{rest},"sequence_number":NUMBER}}\n\n'


def _response(status: str, output: str = "") -> str:
    said = f'"id":"resp_1","object":"response","created_at":7,"status":"{status}","model":"m"'
    return f',"response":{{{said},"output":[{output}],"tools":[]}}'


def _item(status: str, content: str = "") -> str:
    said = f'"id":"msg_1","type":"message","status":"{status}","role":"assistant"'
    return f'{{{said},"content":[{content}]}}'


def _line(message: str, rest: str = '"done":false') -> str:
    head = '"model":"m","created_at":"2026-11-21T10:00:00.123456789Z"'
    return f'{{{head},"message":{{"role":"assistant",{message}}},{rest}}}\n'


_PLACE = ',"item_id":"msg_1","output_index":0,"content_index":0'
_PART = '{"type":"output_text","text":"","annotations":[]}'
_USAGE = '"usage":{"input_tokens":9,"output_tokens":1}'
_MESSAGE = f'"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],{_USAGE}'
DIALECTS = {
    "chat": Spoken(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}]},
        (_chat('{"role":"assistant","content":""}'),),
        _chat('{"content":"WORD"}'),
        (_chat("{}", '"stop"'), "data: [DONE]\n\n"),
    ),
    "anthropic": Spoken(
        "/v1/messages",
        {"max_tokens": 9000, "messages": [{"role": "user", "content": "hi"}]},
        (
            _messages("message_start", f',"message":{{{_MESSAGE}}}'),
            _messages("content_block_start", ',"index":0,"content_block":{"type":"text","text":""}'),
        ),
        _messages("content_block_delta", ',"index":0,"delta":{"type":"text_delta","text":"WORD"}'),
        (
            _messages("content_block_stop", ',"index":0'),
            _messages("message_delta", f',"delta":{{"stop_reason":"end_turn"}},{_USAGE}'),
            _messages("message_stop"),
        ),
    ),
    "responses": Spoken(
        "/v1/responses",
        {"input": "hi"},
        (
            _responses("created", _response("in_progress")),
            _responses("in_progress", _response("in_progress")),
            _responses("output_item.added", f',"output_index":0,"item":{_item("in_progress")}'),
            _responses("content_part.added", f'{_PLACE},"part":{_PART}'),
        ),
        _responses("output_text.delta", f'{_PLACE},"delta":"WORD","logprobs":[]'),
        (
            _responses("output_text.done", f'{_PLACE},"text":""'),
            _responses("content_part.done", f'{_PLACE},"part":{_PART}'),
            _responses("output_item.done", f',"output_index":0,"item":{_item("completed", _PART)}'),
            _responses("completed", _response("completed", _item("completed", _PART))),
        ),
    ),
    "ollama": Spoken(
        "/api/chat",
        {"messages": [{"role": "user", "content": "hi"}]},
        (),
        _line('"content":"WORD"'),
        (_line('"content":""', '"done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":1'),),
        LINES,
    ),
}


async def answer(dialect: Spoken, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve as an upstream; the model's name contains the number of chunks to stream."""
    try:
        while True:
            opening = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(opening.partition(b"content-length:")[2].partition(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            writer.write(HEAD.format(dialect.content_type).encode())
            for event in dialect.events(int(str(asked["model"]).rpartition("-")[2])):
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await asyncio.sleep(PAUSE_S)
            writer.write(LAST)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def ask(port: int, dialect: Spoken, count: int) -> None:
    """Ask for one stream and read it to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": f"m-{count}", "stream": True, **dialect.body}).encode()
    head = f"POST {dialect.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    data = b""
    while piece := await reader.read(65536):
        data += piece
        if data.endswith(LAST):
            break
    writer.close()
    if not data.startswith(b"HTTP/1.1 200") or data.count(b"word ") < count:
        raise RuntimeError(f"not the expected answer: {data[:300]!r}")


async def cpu_s(proxy: Process, dialect: Spoken, count: int) -> float:
    """Return the proxy's CPU seconds for all streams of one length."""
    before = proxy.cpu_s()
    await asyncio.gather(*[ask(proxy.port, dialect, count) for _ in range(STREAMS)])
    return proxy.cpu_s() - before


async def measure(rounds: int, dialects: Sequence[str]) -> dict[tuple[str, str], list[float]]:
    """Measure the CPU microseconds of a chunk for each pair of client and upstream dialect, by round."""
    found: dict[tuple[str, str], list[float]] = {}
    # At the end the upstreams' connections are cancelled, and asyncio's server would report each.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proxies = {}
        for name in dialects:
            dialect = DIALECTS[name]

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spoken: Spoken = dialect
            ) -> None:
                await answer(spoken, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            proxies[name] = stack.enter_context(
                toolrelay(f"on {name}", folder, port, tools=True, core=None, wires=(name,))
            )
        pairs = [(client, upstream) for upstream in dialects for client in dialects]
        for number in range(rounds + 1):
            for client, upstream in pairs if number % 2 else reversed(pairs):
                proxy, dialect = proxies[upstream], DIALECTS[client]
                long, short = await cpu_s(proxy, dialect, LONG), await cpu_s(proxy, dialect, SHORT)
                if number:  # The first round warms up.
                    cost = (long - short) / STREAMS / (LONG - SHORT) * 1e6
                    found.setdefault((client, upstream), []).append(cost)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the cost of a chunk for each pair, and its ratio to a client of the upstream's own dialect."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.crossed", description="Measure chunks that cross dialects."
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every pair (5)")
    parser.add_argument(
        "--dialects", nargs="+", choices=DIALECTS, default=list(DIALECTS), help="the measured dialects (all)"
    )
    asked = parser.parse_args(arguments)
    found = asyncio.run(measure(asked.rounds, asked.dialects))
    for (client, upstream), costs in sorted(found.items(), key=lambda pair: (pair[0][1], pair[0][0])):
        ratios = [mine / own for mine, own in zip(costs, found[upstream, upstream], strict=True)]
        print(
            f"{client} client on {upstream}: {statistics.median(costs):.1f} µs a chunk, "
            f"{statistics.median(ratios):.2f} times the upstream's own client"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
