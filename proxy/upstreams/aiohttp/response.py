"""One HTTP response over aiohttp, whose body is watched as it arrives."""

import asyncio

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.http.rules import HeaderRules
from proxy.upstreams.filtered_response import FilteredResponse

__all__ = ["HttpResponse"]


class HttpResponse(FilteredResponse):
    """An :class:`~proxy.upstreams.base.UpstreamResponse` over one aiohttp response."""

    def __init__(
        self,
        upstream: str,
        response: aiohttp.ClientResponse,
        idle_timeout_s: float,
        rules: HeaderRules,
        secrets: tuple[bytes, ...],
        *,
        decode: bool,
    ) -> None:
        """``rules`` say which headers go on.

        ``secrets`` are taken out of them, and out of the body where the status is an error.
        """
        raw = response.raw_headers
        headers = rules.response_headers([name for name, _ in raw], [value for _, value in raw], secrets)
        super().__init__(upstream, response.status, headers, secrets, decode=decode)
        self._response = response
        self._idle_timeout_s = idle_timeout_s
        self._failure: UpstreamError | None = None

    def _close(self) -> None:
        self._response.close()

    async def _next(self) -> bytes:
        """What arrived next, ``b""`` at the end of the message.

        What came before a failure is given first, the failure raised on the next call.
        """
        if self._failure is not None:
            raise self._failure
        content = self._response.content
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await content.readany()
        except TimeoutError:
            self._response.close()
            self._failure = UpstreamTimeout(
                f"upstream {self._upstream!r} sent nothing for {self._idle_timeout_s:g} s"
            )
            raise self._failure from None
        # RuntimeError is aiohttp's word for reading on after the connection was closed.
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as exc:
            arrived = _left_over(content)
            self._response.close()
            self._failure = UpstreamBroken(f"upstream {self._upstream!r} broke off its response")
            if arrived:
                return arrived
            raise self._failure from exc


def _left_over(content: StreamReader) -> bytes:
    """What arrived before the failure and was not read yet.

    aiohttp refuses to hand it out once an exception is set, through every public method.
    """
    return content._read_nowait(-1) if getattr(content, "_buffer", None) else b""
