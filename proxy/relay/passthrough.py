"""The byte pump: a request that no server tool takes part in.

Bytes leave as they came and as soon as they came.  On an event stream two things are watched, both
without looking inside an event: where the last event ended, so that a stream that breaks ends on a
whole one, and whether the end mark came (rule W1).
"""

# The types of a function inside of another are not made anew for each stream.
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proxy.errors import ServerStopping, UpstreamError, UpstreamTimeout
from proxy.http.headers import Headers
from proxy.http.secrets import Secrets, Sink, WholeSecrets
from proxy.relay.base import ClientStream, OnBroken, ignore_broken
from proxy.relay.begun import Begun
from proxy.relay.headers import is_coded, returned
from proxy.relay.routing.deadlines import Deadlines
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.router import Route
from proxy.relay.stopping import stopped
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.wires.stream.sse import DONE, DONE_SIGN, END_MARK, EventBoundary
from proxy.wires.stream.usage_tap import UsageTap

__all__ = ["AFTER_END_S", "ErrorEvent", "flush_soon", "passthrough", "pump"]

AFTER_END_S = 2.0
"""How long a stream may stay open after its end mark: some upstreams never close it."""

ENDLESS = Deadlines()
"""What bounds a response that may go on for ever."""

ErrorEvent = Callable[[UpstreamError | ServerStopping], bytes]


async def passthrough(
    route: Route,
    request: UpstreamRequest,
    client: ClientStream,
    *,
    candidates: Candidates,
    error_event: ErrorEvent | None,
    headers: Headers = (),
    tap: UsageTap | None = None,
    total: Deadlines = ENDLESS,
    broken: OnBroken = ignore_broken,
) -> int:
    """Send ``request`` on and its response back; the response's status.

    ``error_event`` makes the wire's own error event and says by being there that an event stream
    on this path ends with an end mark.  ``tap`` reads what the response says of usage.  A response
    that still goes on when its ``total`` has run out after its head is broken off.  Raises
    :class:`UpstreamError`, and where another upstream may answer
    :class:`~proxy.relay.routing.fallback.NextUpstream`, only while nothing has been sent to the client.
    """
    client.keep_back(route.served.secrets)
    response = await candidates.ask(route, request)
    del request  # A conversation is larger than all else that an open stream keeps.
    try:
        await pump(
            response,
            client,
            error_event=error_event,
            headers=headers,
            tap=tap,
            total=total,
            broken=broken,
            secrets=route.served.secrets,
            upstream=route.served.upstream.name,
        )
    finally:
        await response.aclose()
    return response.status


async def pump(
    response: UpstreamResponse,
    client: ClientStream,
    *,
    error_event: ErrorEvent | None,
    headers: Headers = (),
    tap: UsageTap | None = None,
    total: Deadlines = ENDLESS,
    broken: OnBroken = ignore_broken,
    secrets: Secrets | None = None,
    upstream: str = "",
) -> None:
    """Relay a response whose head is here; ``broken`` is told if it does not come to its end.

    What ``secrets`` has is blanked out by the client's stream where it stands whole in a piece; of a body
    that is no event stream also where the network cut it.
    """
    streaming = response.content_type == "text/event-stream" and response.status < 300
    countable = tap is not None and response.status < 300 and not is_coded(response.headers)
    if countable and error_event is not None and not streaming:
        # Not every server says that it streams, and of a stream another part says what was used.
        response = Begun(response, upstream)
        try:
            streaming = await response.is_stream()
        except UpstreamError as error:
            broken(error)
            raise
    marked = streaming and error_event is not None and not is_coded(response.headers)
    theirs = returned(response.headers, keep_length=not marked)
    client.start(response.status, [*theirs, *headers] if headers else theirs)
    try:
        if marked and error_event is not None:
            await _pump_events(response, client, error_event, tap, total, broken)
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
    if (wait := client.settled()) is not None:
        await wait
    client.finish()


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
            total.begin(patience)
            try:
                await rest
            finally:
                total.end(patience)
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


async def _pump_events(
    response: UpstreamResponse,
    client: ClientStream,
    error_event: ErrorEvent,
    tap: UsageTap | None,
    total: Deadlines,
    broken: OnBroken,
) -> None:
    """Relay an event stream and see to its end."""
    boundary = EventBoundary()
    push, feed = client.push, boundary.feed
    patience: asyncio.Timeout | None = None
    failure: UpstreamError | None = None
    ended = False

    def relay(chunk: bytes) -> Awaitable[None] | None:
        nonlocal ended
        if tap is not None:
            chunk = tap.feed(chunk)
        if boundary.between and chunk[-2:] == b"\n\n" and (DONE_SIGN not in chunk or chunk.find(DONE) < 0):
            return push(chunk)
        ready = feed(chunk)
        if last := boundary.done_seen and not ended:
            ended = True
            _end_soon(client, patience, total)
        return push(ready, last=last) if ready else None

    try:
        if (rest := response.push(relay)) is not None:
            client.flush()
            async with asyncio.timeout(AFTER_END_S if ended else None) as patience:
                total.begin(patience)
                try:
                    await rest
                finally:
                    total.end(patience)
    except TimeoutError:
        if patience is None or not patience.expired():
            raise
        if not ended:
            failure = _too_long(total.seconds)
    except UpstreamError as error:
        if boundary.done_seen:
            return
        failure = error
    except asyncio.CancelledError:
        if boundary.overflowing or not client.cut_off:
            raise
        end = stopped()
        if not boundary.done_seen:
            await client.write(error_event(end) + END_MARK)
        return
    if failure is not None:
        if boundary.overflowing:
            raise failure
        broken(failure)
        await client.write(error_event(failure) + END_MARK)
        return
    if tail := (feed(tap.close()) if tap is not None else b"") + boundary.close():
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
