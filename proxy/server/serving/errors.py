"""Errors as a client reads them: an HTTP status and OpenAI's envelope."""

import orjson
from aiohttp import web

from proxy.errors import RequestError, UpstreamError
from proxy.wires.dialects.openai import OPENAI

__all__ = [
    "ERROR_CODE",
    "error_response",
    "of_http_exception",
    "of_request_error",
    "of_upstream_error",
    "store_unavailable",
]

ERROR_CODE = web.ResponseKey("error_code", str)
"""Under this key a response of ours holds what the log says of why it is an error."""


def error_response(
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """A JSON error with all four fields of the envelope; ``Connection: close`` among ``headers`` is kept."""
    response = web.Response(
        status=status,
        body=orjson.dumps(OPENAI.errors.body(message, type=type, param=param, code=code)),
        content_type="application/json",
        headers=headers,
    )
    response[ERROR_CODE] = code or type
    if headers and headers.get("Connection") == "close":
        response.force_close()
    return response


def of_request_error(error: RequestError) -> web.Response:
    return error_response(
        error.status,
        error.message,
        type=error.type,
        param=error.param,
        code=error.code,
        headers=error.headers,
    )


def of_upstream_error(error: UpstreamError) -> web.Response:
    return error_response(error.status, error.message, type="upstream_error", code=error.code)


def store_unavailable() -> web.Response:
    """What the client is told where only the record knows, and it does not answer."""
    return error_response(
        503,
        "The record does not answer, and this request needs it. Try again in a moment.",
        type="server_error",
        code="store_unavailable",
        headers={"Retry-After": "1"},
    )


def of_http_exception(error: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses (a body that is too large, a bad header), in the same shape."""
    return error_response(error.status, error.reason or "The request cannot be served.")
