"""Build errors for clients: an HTTP status, and a body in the dialect of the client's request."""

from typing import Any

import orjson
from aiohttp import web

from proxy.base.error_codes import docs_path, help_link
from proxy.base.errors import RequestError, UpstreamError
from proxy.wires.dialect import Dialect
from proxy.wires.openai.dialect import OPENAI

ERROR_CODE = web.ResponseKey("error_code", str)
"""The key under which one of the proxy's own responses holds its error code, for the log."""

_ERROR_FIELDS = web.ResponseKey("error_said", dict[str, Any])
"""The key under which it holds the fields of its error, so that another dialect can format them."""


def error_response(
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
    dialect: Dialect = OPENAI,
) -> web.Response:
    """Build a JSON error in the format of a dialect, with a ``Link`` to the page about it.

    If ``headers`` contains ``Connection: close``, the connection closes after the response.
    """
    said: dict[str, Any] = {"message": message, "type": type, "param": param, "code": code}
    response = web.Response(
        status=status,
        body=orjson.dumps(dialect.errors.body(**said)),
        content_type="application/json",
        headers=headers,
    )
    if page := docs_path(code, status):
        name, link = help_link(page)
        response.headers[name] = link
    response[_ERROR_FIELDS] = said
    response[ERROR_CODE] = code or type
    if headers and headers.get("Connection") == "close":
        response.force_close()
    return response


def complete_error(dialect: Dialect, response: web.StreamResponse, request_id: str, origin: str) -> None:
    """Complete one of the proxy's own errors in a dialect: add the request's id and the URL of the page about
    it.

    ``origin`` is the server's own origin, as the client called it; empty if unknown.
    """
    said = response.get(_ERROR_FIELDS)
    if said is None or not isinstance(response, web.Response):
        return
    page = docs_path(said["code"], response.status)
    doc_url = origin + page if origin and page else ""
    response.body = orjson.dumps(dialect.errors.body(**said, request_id=request_id, doc_url=doc_url))
    response.headers[dialect.errors.id_header] = request_id
    if doc_url:
        name, link = help_link(doc_url)
        response.headers[name] = link


def of_request_error(error: RequestError, dialect: Dialect = OPENAI) -> web.Response:
    return error_response(
        error.status,
        error.message,
        type=error.type,
        param=error.param,
        code=error.code,
        headers=error.headers,
        dialect=dialect,
    )


def of_upstream_error(error: UpstreamError, dialect: Dialect = OPENAI) -> web.Response:
    return error_response(
        error.status, error.message, type="upstream_error", code=error.code, dialect=dialect
    )


def store_unavailable(dialect: Dialect = OPENAI) -> web.Response:
    """Build the error for a request that needs the record while the record does not respond."""
    return error_response(
        503,
        "The proxy's store does not answer, and this request needs it. Try again in a moment.",
        type="server_error",
        code="store_unavailable",
        headers={"Retry-After": "1"},
        dialect=dialect,
    )


def of_http_exception(error: web.HTTPException, dialect: Dialect = OPENAI) -> web.Response:
    """Build the error for a request that aiohttp refused (a body that is too large, a bad header)."""
    return error_response(error.status, error.reason or "The request cannot be handled.", dialect=dialect)
