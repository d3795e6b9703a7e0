"""Answer what the parser could not read as a request."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import StreamReader

from proxy.server.messages.errors import error_response
from proxy.server.messages.heads.pending_heads import MAX_HEAD_BYTES

MAX_FIELD_BYTES = 16 * 1024
MAX_HEADERS = 128


def fault_of(message: Any) -> BaseException | None:
    """Return why a message is not served, or ``None`` if every reader reads it as the same request."""
    if not isinstance(message, RawRequestMessage):
        fault: BaseException = message.exc
        return fault
    if message.version == HttpVersion11:
        return None
    if message.version != HttpVersion10 or hdrs.TRANSFER_ENCODING in message.headers:
        return BadHttpMessage("an unsupported HTTP version, or a chunked body in HTTP/1.0")
    return None


class _TooLarge(NamedTuple):
    """Replaces a message whose head is too large."""

    exc: BaseException


def replace_too_large(made: Sequence[tuple[Any, StreamReader]]) -> list[tuple[Any, StreamReader]]:
    """Replace each message whose head is too large by a fault."""
    return [(_TooLarge(LineTooLong(b"", MAX_HEAD_BYTES)) if _is_large(m) else m, body) for m, body in made]


def _is_large(message: Any) -> bool:
    if not isinstance(message, RawRequestMessage):
        return False
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in message.raw_headers)
    return lines + len(message.path) > MAX_HEAD_BYTES


def too_many_connections() -> web.Response:
    """Return the answer if the process has no file descriptor left for a connection."""
    return error_response(
        503,
        "The server has as many connections as its system allows. Try again in a moment. Its operator "
        "can raise the limit of open files (ulimit -n, LimitNOFILE).",
        type="server_error",
        code="too_many_connections",
        headers={"Retry-After": "1"},
    )


def too_many_heads() -> web.Response:
    """Return the answer while too many heads are pending."""
    return error_response(
        503,
        "Too many clients have started a request and not sent its whole head. Try again in a moment.",
        type="server_error",
        code="too_many_pending_requests",
        headers={"Retry-After": "1"},
    )


def refusal(*, too_long: bool) -> web.Response:
    """Return the answer to a request that cannot be parsed. It contains none of the client's bytes."""
    if too_long:
        return error_response(
            431,
            f"The head of the request is too large. A line may have {MAX_FIELD_BYTES} bytes, and all lines "
            f"together {MAX_HEAD_BYTES}.",
            code="headers_too_large",
        )
    return error_response(
        400,
        f"The request is not valid HTTP/1.1, or has more than {MAX_HEADERS} headers.",
        code="invalid_http",
    )


def own_headers(request_id: str) -> dict[str, str]:
    """Return the headers of every answer that the proxy makes here."""
    return {"x-request-id": request_id, "Server": "toolrelay"}


def as_bytes(response: web.Response) -> bytes:
    """Encode a response for a connection without a request to write it through."""
    body = bytes(response.body) if isinstance(response.body, bytes | bytearray) else b""
    fields = {**response.headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
