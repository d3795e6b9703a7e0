"""Send the event streams of background responses to clients."""

from collections.abc import AsyncIterator
from typing import Final

from proxy.http.headers import Headers
from proxy.relay.base import ClientStream
from proxy.wires.responses.dialect import RESPONSES
from proxy.wires.stream.sse import END_MARK, KEEP_ALIVE

_HEAD: Final[Headers] = (
    ("Content-Type", RESPONSES.framing.content_type),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)


async def send_events(client: ClientStream, events: AsyncIterator[bytes]) -> None:
    """Send each event as it arrives, and a keep-alive comment for each empty one. Raises
    ``ConnectionError``."""
    client.start(200, _HEAD)
    client.flush()
    async for event in events:
        await client.write(event or KEEP_ALIVE)
    await client.write(END_MARK)
    client.finish()
