"""Copy the bytes of a response to the client, for a request in which no server tool takes part.

Bytes are sent unchanged and without delay. On an event stream the proxy tracks two things, without reading
the events. It tracks where the last event ended, so that a broken stream ends on a whole event. And it
tracks whether the end mark came (rule W1). A defective stream may be repaired on the way
(:mod:`proxy.relay.passing.repairing`).
"""

# Without this, the types of nested functions would be evaluated again for each stream.
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from proxy.base.errors import ServerStopping, UpstreamError, UpstreamTimeout
from proxy.http.headers import is_encoded
from proxy.http.secrets import SecretFilterSink, Secrets, Sink
from proxy.relay.base import ClientStream, OnBroken, ignore_broken
from proxy.relay.headers import returned
from proxy.relay.passing.repairing import StreamRepair
from proxy.relay.passing.sniffing import SniffedResponse
from proxy.relay.passing.stopping import stopped
from proxy.relay.routing.deadlines import Deadlines
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.dialect import Boundary, Dialect
from proxy.wires.stream.sse import CONTENT_TYPE
from proxy.wires.stream.usage_tap import UsageTail, UsageTap

AFTER_END_S = 2.0
"""Seconds for which a stream may stay open after its end mark: some upstreams never close it."""

NO_TIME_LIMIT = Deadlines()
"""The deadlines of a response that may continue without a time limit."""


async def pump(
    response: UpstreamResponse,
    client: ClientStream,
    *,
    dialect: Dialect | None,
    tap: UsageTap | None = None,
    tail: UsageTail | None = None,
    repair: StreamRepair | None = None,
    total: Deadlines = NO_TIME_LIMIT,
    broken: OnBroken = ignore_broken,
    secrets: Secrets | None = None,
    upstream: str = "",
) -> None:
    """Relay a response whose head has arrived; call ``broken`` if it does not reach its end.

    ``dialect`` makes the error event of the stream; if it is given, an event stream on this path must end
    with its end mark. ``tap`` reads the usage from the response; ``tail`` keeps the response's two ends, from
    which the usage is read later. ``repair`` gets the parts of an event stream that it asks for. A response
    that takes longer than ``total`` after its head is broken off. The client's stream blanks out ``secrets``
    that are whole in one piece. In a body that is no event stream, secrets that the network has cut are
    blanked out too.
    """
    kind = CONTENT_TYPE if dialect is None else dialect.framing.content_type
    streaming = response.content_type == kind and response.status < 300
    countable = tap is not None and response.status < 300 and not is_encoded(response.headers)
    if countable and dialect is not None and not streaming:
        # Some servers do not label their streams, and usage is in another place of a stream.
        response = SniffedResponse(response, upstream)
        try:
            streaming = await response.is_stream(dialect.framing)
        except UpstreamError as error:
            broken(error)
            raise
    marked = streaming and dialect is not None and not is_encoded(response.headers)
    theirs = returned(response.headers, keep_length=not marked)
    client.start(response.status, theirs)
    try:
        if marked and dialect is not None:
            await _pump_events(response, client, _EventStream(dialect, tap, repair, tail), total, broken)
        else:
            kept = tap if countable else None
            if tail is not None and (response.status >= 300 or is_encoded(response.headers)):
                tail = None
            await _pump_bytes(response, client, kept, total, secrets, tail, streaming=streaming)
    except (UpstreamError, TimeoutError) as error:
        broken(error if isinstance(error, UpstreamError) else _too_long(total.seconds))
        # Too late for an error status, but an unfinished response must not look complete.
        client.abort()
        return
    except asyncio.CancelledError:
        if not client.stopped_by_server:
            raise
        stopped()
        client.abort()
        return
    if (wait := client.before_finish()) is not None:
        await wait
    client.finish()


async def _wait(rest: Awaitable[None], patience: asyncio.Timeout, total: Deadlines) -> None:
    """Wait for the rest of a response, up to its total time limit."""
    total.begin(patience)
    try:
        await rest
    finally:
        total.end(patience)


async def _pump_bytes(
    response: UpstreamResponse,
    client: ClientStream,
    kept: UsageTap | None,
    total: Deadlines,
    secrets: Secrets | None,
    tail: UsageTail | None,
    *,
    streaming: bool,
) -> None:
    """Relay a body that ends with its message; ``kept`` reads the usage, or ``tail`` keeps its ends."""
    secret_filter = None if secrets is None or streaming else SecretFilterSink(secrets, client.push)
    push: Sink = secret_filter or client.push
    if kept is not None:
        push = _showing(push, kept.feed if streaming else kept.keep)
    elif tail is not None:
        push = _showing(push, tail.keep)
    rest = response.push(push)
    if rest is not None:
        client.flush()
        async with asyncio.timeout(None) as patience:
            await _wait(rest, patience, total)
    if secret_filter is not None and (wait := secret_filter.finish()) is not None:
        await wait
    if kept is not None:
        kept.close() if streaming else kept.read_reply()


def _showing(push: Sink, show: Callable[[bytes], object]) -> Sink:
    """Return a sink that relays pieces unchanged and shows them to ``show``."""

    def relay(chunk: bytes) -> Awaitable[None] | None:
        show(chunk)
        return push(chunk)

    return relay


class _EventStream(NamedTuple):
    """The parts that handle an event stream on its way to the client."""

    dialect: Dialect
    tap: UsageTap | None
    repair: StreamRepair | None
    tail: UsageTail | None = None

    def rest(self, boundary: Boundary) -> bytes:
        """Return the rest of a stream that ended properly, with an end mark if it had none."""
        tail = (boundary.feed(self.tap.close()) if self.tap is not None else b"") + boundary.close()
        if self.repair is None or not self.repair.reads:
            return tail
        # The repair must not take an end mark of the proxy's as the upstream's sign that the stream is
        # complete.
        end_mark = self.dialect.framing.end_mark
        return self.repair.close(tail if boundary.done_seen else tail.removesuffix(end_mark))

    def told(self, error: UpstreamError | ServerStopping) -> bytes:
        """Return the end of a stream that broke."""
        if self.repair is not None and self.repair.composing:
            return self.repair.fail(error)
        said = self.dialect.errors.event(error.message, type=error.type, code=error.code)
        return said + self.dialect.framing.end_mark


async def _pump_events(
    response: UpstreamResponse,
    client: ClientStream,
    event_stream: _EventStream,
    total: Deadlines,
    broken: OnBroken,
) -> None:
    """Relay an event stream, and ensure that it ends correctly."""
    dialect, tap, repair, tail = event_stream
    framing, boundary = dialect.framing, dialect.framing.boundary()
    push, feed = client.push, boundary.feed
    end, sign, text, size = framing.event_end, framing.end_sign, framing.end_text, len(framing.event_end)
    patience: asyncio.Timeout | None = None
    failure: UpstreamError | None = None
    ended = False

    def relay(chunk: bytes) -> Awaitable[None] | None:
        nonlocal ended, repair
        if tap is not None:
            chunk = tap.feed(chunk)
        elif tail is not None:
            tail.note(chunk)
        plain = boundary.at_boundary and chunk[-size:] == end and (sign not in chunk or chunk.find(text) < 0)
        if plain and (repair is None or chunk.find(repair.suspect) < 0):
            return push(chunk)
        ready = feed(chunk)
        if repair is not None and ready:
            ready = repair.feed(ready)
            repair = None if repair.finished else repair
        if last := boundary.done_seen and not ended:
            ended = True
            _end_soon(client, patience, total)
        return push(ready, last=last) if ready else None

    try:
        if (rest := response.push(relay)) is not None:
            client.flush()
            async with asyncio.timeout(AFTER_END_S if ended else None) as patience:
                await _wait(rest, patience, total)
    except TimeoutError:
        if patience is None or not patience.expired():
            raise
        failure = None if ended else _too_long(total.seconds)
    except UpstreamError as error:
        if boundary.done_seen:
            return
        failure = error
    except asyncio.CancelledError:
        if boundary.overflowing or not client.stopped_by_server:
            raise
        stop = stopped()
        if not boundary.done_seen:
            await client.write(event_stream.told(stop))
        return
    if failure is not None:
        if boundary.overflowing:
            raise failure
        broken(failure)
    if ending := event_stream.rest(boundary) if failure is None else event_stream.told(failure):
        await client.write(ending)


def _end_soon(client: ClientStream, patience: asyncio.Timeout | None, total: Deadlines) -> None:
    """Limit the time for the end of the response, after the end mark has come.

    The end may follow at once, later, or never. Without ``patience`` the pump has not waited for the
    upstream yet, and may not have to.
    """
    if patience is None:
        return
    total.end(patience)
    loop = asyncio.get_running_loop()
    flush_soon(client, loop)
    # The total time may have run out in this iteration of the loop.
    if not patience.expired():
        patience.reschedule(loop.time() + AFTER_END_S)


def flush_soon(client: ClientStream, loop: asyncio.AbstractEventLoop) -> None:
    """Flush what is held for the response's end, unless the end comes in the same read."""
    # An end in the same read is processed in the loop's next iteration; the flush must come after that.
    loop.call_soon(loop.call_soon, client.flush)


def _too_long(total_s: float | None) -> UpstreamTimeout:
    return UpstreamTimeout(f"the upstream's response went on for over {total_s or 0:g} s")
