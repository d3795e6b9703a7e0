"""The byte pump: a request that no server tool takes part in.

Bytes leave as they came and as soon as they came.  On an event stream two things are watched, both
without looking inside an event: where the last event ended, so that a stream that breaks ends on a
whole one, and whether the end mark came (rule W1).
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from proxy.errors import UpstreamError
from proxy.relay.base import ClientStream
from proxy.relay.headers import returned
from proxy.upstreams.base import Headers, Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.sse import END_MARK, EventBoundary

__all__ = ["AFTER_END_S", "ErrorEvent", "passthrough", "pump"]

AFTER_END_S = 2.0
"""How long a stream may stay open after its end mark: some upstreams never close it."""

ErrorEvent = Callable[[UpstreamError], bytes]


async def passthrough(
    upstream: Upstream,
    request: UpstreamRequest,
    client: ClientStream,
    *,
    error_event: ErrorEvent | None,
    headers: Headers = (),
) -> int:
    """Send ``request`` on and its response back; the response's status.

    ``error_event`` makes the wire's own error event and says by being there that an event stream
    on this path ends with an end mark.  Raises :class:`UpstreamError` only while nothing has been
    sent to the client.
    """
    response = await upstream.open(request)
    try:
        await pump(response, client, error_event=error_event, headers=headers)
    finally:
        await response.aclose()
    return response.status


async def pump(
    response: UpstreamResponse,
    client: ClientStream,
    *,
    error_event: ErrorEvent | None,
    headers: Headers = (),
) -> None:
    """Relay a response whose head is here."""
    streaming = response.content_type == "text/event-stream" and response.status < 300
    encoded = any(name.lower() == "content-encoding" for name, _ in response.headers)
    marked = streaming and error_event is not None and not encoded
    await client.start(response.status, [*returned(response.headers, keep_length=not marked), *headers])
    try:
        if marked and error_event is not None:
            await _pump_events(response.chunks(), client, error_event)
        else:
            async for chunk in response.chunks():
                await client.write(chunk)
    except UpstreamError:
        # Too late for a status: an unfinished response must not look like a finished one.
        client.abort()
        return
    await client.finish()


async def _pump_events(chunks: AsyncIterator[bytes], client: ClientStream, error_event: ErrorEvent) -> None:
    """Relay an event stream and see to its end."""
    boundary = EventBoundary()
    try:
        async for chunk in chunks:
            if ready := boundary.feed(chunk):
                await client.write(ready)
            if boundary.done_seen:
                await _relay_rest(chunks, client, boundary)
                break
    except UpstreamError as error:
        if boundary.done_seen:
            return
        if boundary.overflowing:
            raise
        await client.write(error_event(error) + END_MARK)
        return
    if rest := boundary.close():
        await client.write(rest)


async def _relay_rest(chunks: AsyncIterator[bytes], client: ClientStream, boundary: EventBoundary) -> None:
    """What an upstream sends after its end mark, for as long as it is given."""
    try:
        async with asyncio.timeout(AFTER_END_S):
            async for chunk in chunks:
                if ready := boundary.feed(chunk):
                    await client.write(ready)
    except TimeoutError:
        return
