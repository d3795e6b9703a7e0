"""What the parser could not make a request of, and how it is answered where there is none."""

from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage

from proxy.server.http_errors import error_response

__all__ = ["MAX_FIELD_BYTES", "MAX_HEADERS", "as_bytes", "fault_of", "own_headers", "refusal"]

MAX_FIELD_BYTES = 16 * 1024
MAX_HEADERS = 128


def fault_of(message: Any) -> BaseException | None:
    """Why what the parser gave is not served; ``None`` for what every reader takes for this request."""
    if not isinstance(message, RawRequestMessage):
        fault: BaseException = message.exc
        return fault
    if message.version == HttpVersion11:
        return None
    if message.version != HttpVersion10 or hdrs.TRANSFER_ENCODING in message.headers:
        return BadHttpMessage("a version that is not served, or chunks under HTTP/1.0")
    return None


def refusal(*, too_long: bool) -> web.Response:
    """What a client is told of what it sent, without a word of that."""
    if too_long:
        return error_response(
            431,
            f"The request line or a header is longer than {MAX_FIELD_BYTES} bytes.",
            code="headers_too_large",
        )
    return error_response(
        400, f"The request is not valid HTTP/1.1, or has over {MAX_HEADERS} headers.", code="invalid_http"
    )


def own_headers(request_id: str) -> dict[str, str]:
    """What every answer of ours has."""
    return {"x-request-id": request_id, "Server": "toolrelay"}


def as_bytes(response: web.Response) -> bytes:
    """A response of ours where there is no request that it could be written through."""
    body = bytes(response.body) if isinstance(response.body, bytes | bytearray) else b""
    fields = {**response.headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
