"""The byte pump: a request that no server tool takes part in.

Bytes leave as they came and as soon as they came.  On an event stream two things are watched, both
without looking inside an event: where the last event ended, so that a stream that breaks ends on a
whole one, and whether the end mark came (rule W1).  A stream that is defective may be repaired on the way
(:mod:`proxy.relay.repairing`).
"""

# The types of a function inside of another are not made anew for each stream.
from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

from proxy.errors import ServerStopping, UpstreamError, UpstreamTimeout
from proxy.http.secrets import Secrets, Sink, WholeSecrets
from proxy.relay.base import ClientStream, OnBroken, ignore_broken
from proxy.relay.headers import is_encoded, returned
from proxy.relay.repairing import StreamRepair
from proxy.relay.routing.deadlines import Deadlines
from proxy.relay.sniffing import SniffedResponse
from proxy.relay.stopping import stopped
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.dialect import Boundary, Dialect
from proxy.wires.stream.sse import CONTENT_TYPE
from proxy.wires.stream.usage_tap import UsageTap

__all__ = ["AFTER_END_S", "flush_soon", "pump"]

AFTER_END_S = 2.0
"""How long a stream may stay open after its end mark: some upstreams never close it."""

ENDLESS = Deadlines()
"""What bounds a response that may go on for ever."""


async def pump(
    response: UpstreamResponse,
    client: ClientStream,
    *,
    dialect: Dialect | None,
    tap: UsageTap | None = None,
    repair: StreamRepair | None = None,
    total: Deadlines = ENDLESS,
    broken: OnBroken = ignore_broken,
    secrets: Secrets | None = None,
    upstream: str = "",
) -> None:
    """Relay a response whose head is here; ``broken`` is told if it does not come to its end.

    ``dialect`` makes its own error event and says by being there that an event stream on this path ends
    with its end mark.  ``tap`` reads what the response says of usage.  ``repair`` is given what of an event
    stream it asks for.  A response that still goes on when
    its ``total`` has run out after its head is broken off.  What ``secrets`` has is blanked out by the
    client's stream where it stands whole in a piece; of a body that is no event stream also where the
    network cut it.
    """
    kind = CONTENT_TYPE if dialect is None else dialect.framing.content_type
    streaming = response.content_type == kind and response.status < 300
    countable = tap is not None and response.status < 300 and not is_encoded(response.headers)
    if countable and dialect is not None and not streaming:
        # Not every server says that it streams, and of a stream another part says what was used.
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
            await _pump_events(response, client, _EventStream(dialect, tap, repair), total, broken)
        else:
            kept = tap if countable else None
            await _pump_bytes(response, client, kept, total, secrets, streaming=streaming)
    except (UpstreamError, TimeoutError) as error:
        broken(error if isinstance(error, UpstreamError) else _too_long(total.seconds))
        # Too late for a status: an unfinished response must not look like a finished one.
        client.abort()
        return
    except asyncio.CancelledError:
        if not client.cut_off:
            raise
        stopped()
        client.abort()
        return
    if (wait := client.before_finish()) is not None:
        await wait
    client.finish()


async def _wait(rest: Awaitable[None], patience: asyncio.Timeout, total: Deadlines) -> None:
    """Wait for the rest of a response, as long as its total time allows."""
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
    *,
    streaming: bool,
) -> None:
    """Relay a body whose end is that of its message; ``kept`` sees what was used."""
    uncut = None if secrets is None or streaming else WholeSecrets(secrets, client.push)
    push = uncut or client.push
    rest = response.push(push if kept is None else _keeping(push, kept, streaming))
    if rest is not None:
        client.flush()
        async with asyncio.timeout(None) as patience:
            await _wait(rest, patience, total)
    if uncut is not None and (wait := uncut.finish()) is not None:
        await wait
    if kept is not None:
        kept.close() if streaming else kept.read_reply()


def _keeping(push: Sink, tap: UsageTap, streaming: bool) -> Sink:
    """Relays pieces of a response as they are, and shows them to the tap."""
    show = tap.feed if streaming else tap.keep

    def relay(chunk: bytes) -> Awaitable[None] | None:
        show(chunk)
        return push(chunk)

    return relay


class _EventStream(NamedTuple):
    """What has a part in an event stream on its way to the client."""

    dialect: Dialect
    tap: UsageTap | None
    repair: StreamRepair | None

    def rest(self, boundary: Boundary) -> bytes:
        """What is left of a stream that ended properly, with an end mark if it had none."""
        tail = (boundary.feed(self.tap.close()) if self.tap is not None else b"") + boundary.close()
        if self.repair is None or not self.repair.reads:
            return tail
        # A mark that the upstream did not send must not be read as its word that the stream is whole.
        end_mark = self.dialect.framing.end_mark
        return self.repair.close(tail if boundary.done_seen else tail.removesuffix(end_mark))

    def told(self, error: UpstreamError | ServerStopping) -> bytes:
        """How a stream ends that cannot go on."""
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
    """Relay an event stream and see to its end."""
    dialect, tap, repair = event_stream
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
        plain = boundary.between and chunk[-size:] == end and (sign not in chunk or chunk.find(text) < 0)
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
        if boundary.overflowing or not client.cut_off:
            raise
        stop = stopped()
        if not boundary.done_seen:
            await client.write(event_stream.told(stop))
        return
    if failure is not None:
        if boundary.overflowing:
            raise failure
        broken(failure)
    tail = event_stream.rest(boundary) if failure is None else event_stream.told(failure)
    if tail:
        await client.write(tail)


def _end_soon(client: ClientStream, patience: asyncio.Timeout | None, total: Deadlines) -> None:
    """The end mark is here: what ends the response follows at once, or after a while, or never.

    Without ``patience`` nothing has been waited for so far, and nobody knows yet whether it will be.
    """
    if patience is None:
        return
    total.end(patience)
    loop = asyncio.get_running_loop()
    flush_soon(client, loop)
    # The total time may have run out in this very turn of the loop.
    if not patience.expired():
        patience.reschedule(loop.time() + AFTER_END_S)


def flush_soon(client: ClientStream, loop: asyncio.AbstractEventLoop) -> None:
    """Let go of what waits for the response's end, unless that comes within the read that brought it."""
    # What ends it within the same read is seen in the loop's next turn; this comes after that.
    loop.call_soon(loop.call_soon, client.flush)


def _too_long(total_s: float | None) -> UpstreamTimeout:
    return UpstreamTimeout(f"the upstream's response went on for over {total_s or 0:g} s")
