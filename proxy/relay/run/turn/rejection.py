"""Reads the upstream's error if it gives no turn, and how long it asks the proxy to wait."""

from collections.abc import AsyncIterator, Mapping

from proxy.base.errors import RunFault
from proxy.http.headers import Headers
from proxy.http.retry_after import wait_in_seconds
from proxy.relay.memory.steps import RecordedAnswer
from proxy.upstreams.base import PulledResponse, UpstreamResponse
from proxy.wires.dialect import Errors

MAX_ERROR_BYTES = 1024 * 1024
"""At most so many bytes of an error's body are read."""

_MAX_WAIT_S = 5.0
_WAITS = ("retry-after", "retry-after-ms")
_BUSY = (408, 429)


class TurnRejected(RunFault):
    """The upstream answered a turn with something other than a turn.

    ``refusal`` is what the upstream itself says (:attr:`~proxy.wires.dialect.ErrorText.refusal`), and
    ``headers`` are those of its response that the client also gets.
    """

    def __init__(
        self, status: int, message: str, code: str | None, refusal: str = "", headers: Headers = ()
    ) -> None:
        self.status = status
        self.message = message
        self.refusal = refusal
        self.headers = headers
        self.code = code or "upstream_error"
        super().__init__(message)


def retry_wait(response: UpstreamResponse, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt; ``None`` if the upstream asks for over 5 s."""
    for name, value in response.headers:
        lower = name.lower()
        if lower in _WAITS and (wait := wait_in_seconds(value)) is not None:
            wait /= 1000 if lower.endswith("ms") else 1
            return wait if wait <= _MAX_WAIT_S else None
    return min(0.5 * 2.0**attempt, _MAX_WAIT_S)


async def read_later_turn_error(response: UpstreamResponse, errors: Errors) -> TurnRejected:
    """Read the upstream's own message about why a later turn failed; close the response."""
    body = await response.read(MAX_ERROR_BYTES)
    await response.aclose()
    said = errors.read(body)
    words = f": {said.message}" if said.message else ""
    # Without the provider's waiting time an SDK would ask again at once.
    waits = [pair for pair in response.headers if pair[0].lower() in _WAITS]
    text = f"The upstream answered {response.status}{words}"[:1000]
    return TurnRejected(response.status, text, said.code, said.refusal, waits)


async def read_first_turn_error(
    response: UpstreamResponse, errors: Errors, types: Mapping[int, str]
) -> TurnRejected:
    """Read the message with which an upstream of another dialect than the client's refused a request.

    ``types`` maps a status to the error type that the client's dialect has for it.
    """
    body = await response.read(MAX_ERROR_BYTES)
    said = errors.read(body)
    headers = [pair for pair in response.headers if pair[0].lower() in (*_WAITS, "x-should-retry")]
    text = said.message or f"The upstream answered {response.status}."
    refusal = TurnRejected(response.status, text[:4096], said.code, headers=headers)
    if response.status in types:
        refusal.type = types[response.status]
    elif response.status < 500 and response.status not in _BUSY:
        refusal.type = "invalid_request_error"
    return refusal


class NotedResponse(PulledResponse):
    """A response whose first ``most`` bytes are noted while it is read; by default as much as of an error."""

    def __init__(self, response: UpstreamResponse, most: int = MAX_ERROR_BYTES) -> None:
        self._response = response
        self._most = most
        self._noted = bytearray()
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type

    @property
    def noted(self) -> bytes:
        """The first bytes of the body that were read."""
        return bytes(self._noted)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body, and note them."""
        async for piece in self._response.chunks():
            self._noted += piece[: self._most - len(self._noted)]
            yield piece

    async def read(self, limit: int) -> bytes:
        """Return the first ``limit`` bytes of the body."""
        body = await self._response.read(limit)
        self._noted += body[: self._most - len(self._noted)]
        return body

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()


class GivenAgain(PulledResponse):
    """A recorded answer of an upstream, in one piece."""

    def __init__(self, answer: RecordedAnswer) -> None:
        self._body = answer.body
        self.status = answer.status
        self.content_type = answer.content_type
        self.headers: Headers = answer.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self._body

    async def read(self, limit: int) -> bytes:
        """Return the first ``limit`` bytes of the body."""
        return self._body[:limit]

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


async def read_in_place_of_stream(response: UpstreamResponse, errors: Errors) -> TurnRejected:
    """Read a response with a status of success that is no stream although the request asked for one.

    Some upstreams answer with an error object under 200; the client gets its words.
    """
    said = errors.read(await response.read(MAX_ERROR_BYTES))
    if said.message:
        return TurnRejected(502, said.message, said.code)
    return TurnRejected(502, unexpected(response), "upstream_malformed")


def unexpected(response: UpstreamResponse) -> str:
    """Return the message for a response whose content type does not fit the request."""
    kind = response.content_type or "no content type"
    return f"The upstream answered with {kind[:100]}, which does not fit the request."
