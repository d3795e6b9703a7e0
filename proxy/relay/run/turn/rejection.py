"""What an upstream says where it gives no turn, and how long it wants to be left alone."""

from collections.abc import Mapping

from proxy.errors import RunFault
from proxy.http.headers import Headers
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.dialect import Errors

__all__ = ["MAX_ERROR_BYTES", "TurnRejected", "refusal_of", "rejection_of", "retry_wait"]

MAX_ERROR_BYTES = 1024 * 1024
"""Of an error's body that is read for its words."""

_MAX_WAIT_S = 5.0
_WAITS = ("retry-after", "retry-after-ms")
_BUSY = (408, 429)


class TurnRejected(RunFault):
    """A later turn was answered with something other than a turn.

    ``said`` are the upstream's own words, ``headers`` those of its answer that the client's own carries.
    """

    def __init__(
        self, status: int, message: str, code: str | None, said: str = "", headers: Headers = ()
    ) -> None:
        self.status = status
        self.message = message
        self.said = said
        self.headers = headers
        self.code = code or "upstream_error"
        super().__init__(message)


def retry_wait(response: UpstreamResponse, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; ``None`` where the upstream wants longer than we do."""
    for name, value in response.headers:
        lower = name.lower()
        if lower in _WAITS:
            try:
                wait = float(value) / (1000 if lower.endswith("ms") else 1)
            except ValueError:
                break
            return wait if 0 <= wait <= _MAX_WAIT_S else None
    return min(0.5 * 2.0**attempt, _MAX_WAIT_S)


async def rejection_of(response: UpstreamResponse, errors: Errors) -> TurnRejected:
    """The upstream's own words on why a later turn failed, without its markup."""
    body = await response.read(MAX_ERROR_BYTES)
    await response.aclose()
    message, code = errors.read(body)
    words = f": {message}" if message else ""
    # An SDK that is not told how long its provider wants it to wait asks again at once.
    waits = [pair for pair in response.headers if pair[0].lower() in _WAITS]
    said = f"The upstream answered {response.status}{words}"[:1000]
    return TurnRejected(response.status, said, code, message, waits)


async def refusal_of(response: UpstreamResponse, errors: Errors, types: Mapping[int, str]) -> TurnRejected:
    """Why an upstream of another dialect than the client's refused a request, in its own words.

    ``types`` are what the client's dialect calls it, by its status.
    """
    body = await response.read(MAX_ERROR_BYTES)
    message, code = errors.read(body)
    headers = [pair for pair in response.headers if pair[0].lower() in (*_WAITS, "x-should-retry")]
    said = message or f"The upstream answered {response.status}."
    refusal = TurnRejected(response.status, said[:4096], code, message, headers)
    if response.status in types:
        refusal.type = types[response.status]
    elif response.status < 500 and response.status not in _BUSY:
        refusal.type = "invalid_request_error"
    return refusal
