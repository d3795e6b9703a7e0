"""Sends one small request to an upstream and reads everything from its response."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field

from proxy.base.conversation import Conversation, FunctionTool
from proxy.base.errors import UpstreamError, WireError
from proxy.base.events import ReasoningDelta, TextDelta, ToolCall, ToolCallFinished, TurnEvent, TurnFinished
from proxy.base.plain_text import plain_text
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.profile import Profile
from proxy.wires.wire import Wire

TIMEOUT_S = 120.0
_MAX_BYTES = 4 * 1024 * 1024
_MAX_ARGUMENT_BYTES = 64 * 1024


class Reply(Struct):
    """The response to one request.

    ``status`` is 0 if there was none; ``problem`` then says why. ``error`` is the upstream's own message.
    ``payloads`` are the JSON objects of a stream, or the single one of another response; ``events`` are their
    meaning. ``first_ms`` is the time to the first byte, ``gap_ms`` the longest time between two chunks, both
    in milliseconds.
    """

    status: int = 0
    streamed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    payloads: list[dict[str, Any]] = field(default_factory=list)
    events: list[TurnEvent] = field(default_factory=list)
    error: str = ""
    problem: str = ""
    end_mark: bool = False
    comments: int = 0
    first_ms: float = 0.0
    gap_ms: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the response is a successful answer."""
        return 200 <= self.status < 300 and not self.problem

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))

    @property
    def calls(self) -> list[ToolCall]:
        return [event.call for event in self.events if isinstance(event, ToolCallFinished)]

    @property
    def reason(self) -> str | None:
        return next((e.reason for e in reversed(self.events) if isinstance(e, TurnFinished)), None)

    @property
    def refusal(self) -> str:
        """The reason why there is no answer, in one line."""
        if self.problem:
            return self.problem
        return f"status {self.status}" + (f": {plain_text(self.error, 160)}" if self.error else "")


async def exchange(
    upstream: Upstream,
    wire: Wire,
    asked: Conversation,
    more: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
) -> Reply:
    """Send a conversation in a dialect; ``more`` are additional members of the body.

    It is written for a model with this ``profile``; without one, for what is known of the model.

    Never raises for failures of the upstream.
    """
    reply = Reply()
    body = orjson.loads(wire.codec.write(asked, profile).body)
    headers = (("Content-Type", "application/json"), *wire.dialect.headers)
    request = UpstreamRequest(
        "POST",
        wire.dialect.path,
        headers=headers,
        body=orjson.dumps({**body, **(more or {})}),
        expect_stream=True,
        rooted=wire.dialect.rooted,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            begun = time.perf_counter()
            response = await upstream.open(request)
            try:
                names = [tool.name for tool in asked.tools if isinstance(tool, FunctionTool)]
                await _read(response, wire, names, reply, begun)
            finally:
                await response.aclose()
    except TimeoutError:
        reply.problem = f"no complete response within {TIMEOUT_S:.0f} s"
    except UpstreamError as error:
        reply.problem = error.message
    except WireError as error:
        reply.problem = f"the response cannot be parsed: {error}"
    return reply


async def _read(
    response: UpstreamResponse, wire: Wire, declared: Sequence[str], reply: Reply, begun: float
) -> None:
    reply.status = response.status
    reply.headers = {name.lower(): value for name, value in response.headers}
    framing = wire.dialect.framing
    reply.streamed = response.content_type == framing.content_type
    pieces: list[bytes] = []
    last, size = begun, 0
    async for piece in response.chunks():
        now = time.perf_counter()
        if not pieces:
            reply.first_ms = (now - begun) * 1000
        else:
            reply.gap_ms = max(reply.gap_ms, (now - last) * 1000)
        last = now
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_BYTES:
            reply.problem = f"the response is larger than {_MAX_BYTES} bytes"
            return
    data = b"".join(pieces)
    if response.status >= 300:
        reply.error = wire.dialect.errors.read(data).refusal
        return
    reader = wire.reader(declared, lambda name: False, _MAX_ARGUMENT_BYTES)
    if not reply.streamed:
        frame = reader.read_reply(data)
        reply.events = list(frame.events)
        reply.payloads = [frame.payload or {}]
        return
    for frame in (*reader.feed(data), *reader.close()):
        reply.events += frame.events
        if frame.payload is not None:
            reply.payloads.append(frame.payload)
    parser = framing.parser()
    for event in parser.feed(data):
        reply.end_mark = reply.end_mark or event.is_end_mark
        reply.comments += not event.data and event.raw.lstrip()[:1] == b":"
