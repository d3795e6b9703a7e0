"""A function that pushes the whole body of an upstream response into a sink."""

from proxy.http.secrets import Sink
from proxy.upstreams.base import UpstreamResponse


async def pushed(response: UpstreamResponse, sink: Sink) -> None:
    """Give ``sink`` the whole body: the bytes that have arrived, and then all further ones."""
    if (rest := response.push(sink)) is not None:
        await rest
