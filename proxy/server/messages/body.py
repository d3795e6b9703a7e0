"""Read request bodies, whole or as streams, up to a size limit and a time limit."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiohttp import HttpVersion11, hdrs, web
from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.server.messages.heads.head import Head
from proxy.server.messages.request import EdgeRequest
from proxy.wires.registry.requests import FEWEST_COUNTED, LISTS


class BodyBounds(Struct, frozen=True):
    """Limits of a body: its size in bytes and JSON values, and the seconds that its client may take."""

    max_body_bytes: int
    max_json_values: int
    max_upload_bytes: int
    body_timeout_s: float


_NO_CODING = frozenset({"", "identity"})
_EXPECTED = frozenset({"", "100-continue"})


def check_counts(payload: Mapping[str, Any], size: int) -> None:
    """Raise :class:`RequestError` (400) if a list of a request is longer than any real one.

    ``size`` is the size of the body in bytes; each entry of a list takes at least two.
    """
    if size < 2 * FEWEST_COUNTED:
        return
    for field, most in LISTS.items():
        entries = payload.get(field)
        if isinstance(entries, list) and len(entries) > most:
            raise RequestError(
                400,
                f"{field} has {len(entries)} entries. Send at most {most}.",
                param=field,
                code="too_many_entries",
            )


def _check(request: EdgeRequest, limit: int) -> None:
    headers = request.headers
    if hdrs.CONTENT_ENCODING in headers and not _NO_CODING.issuperset(
        request.head.listed(hdrs.CONTENT_ENCODING)
    ):
        raise RequestError(
            415,
            "The proxy does not accept compressed request bodies. Send the body without Content-Encoding.",
            code="unsupported_content_encoding",
        )
    if hdrs.TRANSFER_ENCODING in headers and headers[hdrs.TRANSFER_ENCODING].strip().lower() != "chunked":
        raise RequestError(
            400,
            "Transfer-Encoding must be chunked, or absent.",
            code="invalid_http",
            headers={"Connection": "close"},
        )
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    if hdrs.EXPECT in headers and not _EXPECTED.issuperset(_expected(request)):
        raise RequestError(417, "Expect must be 100-continue, or absent.", code="expectation_failed")


def _is_plain(head: Head) -> bool:
    """Return whether the head allows no fault of the body except its size."""
    headers = head.headers
    coded = hdrs.CONTENT_ENCODING in headers or hdrs.TRANSFER_ENCODING in headers
    return headers.get(hdrs.CONTENT_TYPE) == "application/json" and not coded and hdrs.EXPECT not in headers


def _check_charset(kind: str) -> None:
    """Refuse a charset in which other readers might decode the body: JSON is always UTF-8 (RFC 8259, 8.1)."""
    for parameter in kind.lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().startswith("charset") and value.strip(" \t\"'") not in ("utf-8", "utf8"):
            raise RequestError(
                415,
                "JSON must be UTF-8: leave charset out of Content-Type.",
                param="Content-Type",
                code="content_type_not_allowed",
            )


def _expected(request: EdgeRequest) -> Sequence[str]:
    """Return what the client expects before it sends its body; nothing with HTTP/1.0, which has no
    ``Expect``."""
    return request.head.listed(hdrs.EXPECT) if request.version >= HttpVersion11 else ()


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def received_body(request: EdgeRequest, limit: int) -> bytes | None:
    """Return the whole JSON body if it has arrived, or ``None`` if :func:`read_body` must wait for it.

    A body of a few kilobytes nearly always arrives with its head. Raises :class:`RequestError` (413, 415)
    without reading a body that is not allowed.
    """
    if not request.head[_is_plain]:
        _check(request, limit)
        _check_charset(request.headers.get(hdrs.CONTENT_TYPE, ""))
    content = request.content
    if not content.is_eof():
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        return None
    whole = content.read_nowait()
    if len(whole) > limit:
        raise _too_large(limit)
    request.body_is_read()
    return whole


async def read_body(request: EdgeRequest, limit: int, timeout_s: float) -> bytes:
    """Return the whole body. Raises as :func:`received_body` does.

    Also raises :class:`RequestError` with 408 if the client takes more than ``timeout_s`` seconds in all, and
    with 400 if the framing is malformed.
    """
    whole = received_body(request, limit)
    if whole is not None:
        return whole
    return b"".join([piece async for piece in _pieces(request, limit, timeout_s, earned_s=0.0)])


def stream_body(
    request: EdgeRequest, limit: int, timeout_s: float, bytes_per_timeout: int
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises :class:`RequestError` at once for a body that is not allowed.

    If only reading shows that a limit is exceeded, the upload is broken off. The client has ``timeout_s``
    seconds, and as many again for each ``bytes_per_timeout`` bytes that it sends. The time does not run
    while the upstream is slow.
    """
    _check(request, limit)
    return _pieces(request, limit, timeout_s, earned_s=timeout_s / bytes_per_timeout)


async def _pieces(
    request: EdgeRequest, limit: int, timeout_s: float, *, earned_s: float
) -> AsyncIterator[bytes]:
    """Yield the body's pieces. Each byte extends the time limit by ``earned_s`` seconds."""
    if any(_expected(request)):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Otherwise it would count as the start of the response.
        request.writer.output_size = 0
    content, loop = request.content, asyncio.get_running_loop()
    left, size = timeout_s, 0
    while not content.at_eof():
        began = loop.time()
        try:
            if content.is_eof():
                piece = await content.readany()
            else:
                async with asyncio.timeout(left):
                    piece = await content.readany()
        except TimeoutError:
            raise RequestError(
                408,
                f"The request body did not arrive within {timeout_s:g} s.",
                code="request_timeout",
                headers={"Connection": "close"},
            ) from None
        except web.RequestPayloadError:
            raise RequestError(
                400,
                "The request body is not framed as HTTP/1.1 requires.",
                code="invalid_http",
                headers={"Connection": "close"},
            ) from None
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        left += len(piece) * earned_s - (loop.time() - began)
        if piece:
            yield piece
        if not content.at_eof():
            # The next piece may be there already, and tiny chunks are slow to parse: others get their turn.
            await asyncio.sleep(0)
    request.body_is_read()
