"""A body that is pushed, waited for to its end."""

from proxy.http.secrets import Sink
from proxy.upstreams.base import UpstreamResponse

__all__ = ["pushed"]


async def pushed(response: UpstreamResponse, sink: Sink) -> None:
    """Give the whole body to ``sink``, what is here and what is to come."""
    if (rest := response.push(sink)) is not None:
        await rest
