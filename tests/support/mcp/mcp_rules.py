"""What real MCP servers and authorization servers refuse, as data, for the doubles of both.

This module imports only the standard library: :mod:`mcp_script` puts its text before the text of its server.

The specifications are MCP 2025-11-25 with its ``schema.ts``, RFC 6749 (OAuth 2.0), RFC 7591 (registration),
RFC 7636 (PKCE), RFC 8707 (resources), RFC 7009 (revocation).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class MessageRule(NamedTuple):
    """A message of a client that servers answer with an error.

    ``broken`` gets a message whose method is ``method``, or any for an empty one.
    """

    name: str
    method: str
    broken: Callable[[Mapping[str, Any]], bool]
    code: int
    source: str


def _params(message: Mapping[str, Any]) -> Mapping[str, Any]:
    found = message.get("params", {})
    return found if isinstance(found, dict) else {}


def _lacks(name: str, *kinds: type) -> Callable[[Mapping[str, Any]], bool]:
    return lambda message: type(_params(message).get(name)) not in kinds


def _has_other(name: str, *kinds: type) -> Callable[[Mapping[str, Any]], bool]:
    return lambda message: name in _params(message) and type(_params(message)[name]) not in kinds


def _lacks_name_or_version(message: Mapping[str, Any]) -> bool:
    info = _params(message).get("clientInfo")
    return not isinstance(info, dict) or any(type(info.get(name)) is not str for name in ("name", "version"))


def _has_odd_token(message: Mapping[str, Any]) -> bool:
    meta = _params(message).get("_meta", {})
    return not isinstance(meta, dict) or type(meta.get("progressToken", 0)) not in (str, int)


_SCHEMA = "MCP 2025-11-25, schema.ts: "
_INITIALIZE, _CALL = _SCHEMA + "InitializeRequest", _SCHEMA + "CallToolRequest"
MESSAGE_RULES: Sequence[MessageRule] = (
    MessageRule("jsonrpc", "", lambda message: message.get("jsonrpc") != "2.0", -32600, "JSON-RPC 2.0, 4"),
    MessageRule("id", "", lambda message: type(message.get("id", 0)) not in (str, int), -32600,
                "MCP 2025-11-25, basic: the id of a request is a string or an integer, never null"),
    MessageRule("params", "", lambda message: not isinstance(message.get("params", {}), dict), -32600,
                "MCP 2025-11-25, basic: params is an object"),
    MessageRule("progress token", "", _has_odd_token, -32602, _SCHEMA + "ProgressToken"),
    MessageRule("version", "initialize", _lacks("protocolVersion", str), -32602, _INITIALIZE),
    MessageRule("capabilities", "initialize", _lacks("capabilities", dict), -32602, _INITIALIZE),
    MessageRule("client", "initialize", _lacks_name_or_version, -32602, _SCHEMA + "Implementation"),
    MessageRule("cursor", "tools/list", _has_other("cursor", str), -32602, _SCHEMA + "PaginatedRequest"),
    MessageRule("tool", "tools/call", _lacks("name", str), -32602, _CALL),
    MessageRule("arguments", "tools/call", _has_other("arguments", dict), -32602, _CALL),
    MessageRule("cancelled", "notifications/cancelled", _lacks("requestId", str, int), -32602,
                _SCHEMA + "CancelledNotification"),
)  # fmt: skip


def message_fault(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON-RPC error for a message with a method, or ``None`` if no rule refuses it."""
    for rule in MESSAGE_RULES:
        if rule.method in ("", message["method"]) and rule.broken(message):
            return {"code": rule.code, "message": f"refused by the rule {rule.name} ({rule.source})"}
    return None


class HttpRule(NamedTuple):
    """Headers of a POST with a message that servers over streamable HTTP refuse with ``status``.

    ``broken`` gets the headers, with names in lower case.
    """

    name: str
    broken: Callable[[Mapping[str, str]], bool]
    status: int
    source: str


_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
HTTP_RULES: Sequence[HttpRule] = (
    HttpRule("accept",
             lambda headers: not all(kind in headers.get("accept", "")
                                     for kind in ("application/json", "text/event-stream")),
             406, "MCP 2025-11-25, transports; StreamableHTTPServerTransport of both official SDKs"),
    HttpRule("content type",
             lambda headers: headers.get("content-type", "").partition(";")[0].strip() != "application/json",
             415, "StreamableHTTPServerTransport of the TypeScript SDK"),
    HttpRule("protocol version",
             lambda headers: headers.get("mcp-protocol-version", _VERSIONS[-1]) not in _VERSIONS,
             400, "MCP 2025-11-25, transports: an unsupported version is 400"),
)  # fmt: skip


def http_fault(headers: Mapping[str, str]) -> HttpRule | None:
    """Return the rule that refuses the headers of a POST, or ``None``."""
    small = {name.lower(): value for name, value in headers.items()}
    return next((rule for rule in HTTP_RULES if rule.broken(small)), None)


class OAuthRule(NamedTuple):
    """A request to an endpoint of an authorization server that it refuses with ``error``.

    ``broken`` gets the parameters, or the JSON of a registration. ``when`` is the ``grant_type`` that it
    is about, or empty.
    """

    name: str
    endpoint: str
    broken: Callable[[Mapping[str, Any]], bool]
    error: str
    source: str
    when: str = ""


def _no(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda asked: not all(asked.get(name) for name in names)


def _odd_verifier(name: str) -> Callable[[Mapping[str, Any]], bool]:
    allowed = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
    return lambda asked: not (43 <= len(asked.get(name, "")) <= 128 and set(asked[name]) <= allowed)


def _odd_resource(asked: Mapping[str, Any]) -> bool:
    found = asked.get("resource", "http://a")
    return "://" not in found or "#" in found


def _odd_redirects(asked: Mapping[str, Any]) -> bool:
    found = asked.get("redirect_uris")
    return not isinstance(found, list) or not found or any("#" in one or "://" not in one for one in found)


def _grants_without_types(asked: Mapping[str, Any]) -> bool:
    return "code" in asked.get("response_types", ["code"]) and "authorization_code" not in asked.get(
        "grant_types", ["authorization_code"]
    )


_METHODS = ("none", "client_secret_basic")
_INVALID = "invalid_request"
OAUTH_RULES: Sequence[OAuthRule] = (
    OAuthRule("code", "authorize", lambda asked: asked.get("response_type") != "code",
              "unsupported_response_type", "RFC 6749, 4.1.1"),
    OAuthRule("client", "authorize", _no("client_id"), _INVALID, "RFC 6749, 4.1.1"),
    OAuthRule("challenge", "authorize", _odd_verifier("code_challenge"), _INVALID, "RFC 7636, 4.2"),
    OAuthRule("S256", "authorize", lambda asked: asked.get("code_challenge_method") != "S256", _INVALID,
              "MCP 2025-11-25, authorization: PKCE with S256"),
    OAuthRule("state", "authorize", _no("state"), _INVALID, "RFC 9700, 2.1: a client that prevents CSRF"),
    OAuthRule("resource", "authorize", _odd_resource, "invalid_target", "RFC 8707, 2"),
    OAuthRule("grant", "token", _no("grant_type"), _INVALID, "RFC 6749, 4.1.3"),
    OAuthRule("client", "token", _no("client_id"), "invalid_client", "RFC 6749, 3.2.1"),
    OAuthRule("resource", "token", _odd_resource, "invalid_target", "RFC 8707, 2"),
    OAuthRule("code", "token", _no("code", "redirect_uri"), _INVALID, "RFC 6749, 4.1.3",
              "authorization_code"),
    OAuthRule("verifier", "token", _odd_verifier("code_verifier"), "invalid_grant", "RFC 7636, 4.1",
              "authorization_code"),
    OAuthRule("refresh token", "token", _no("refresh_token"), _INVALID, "RFC 6749, 6", "refresh_token"),
    OAuthRule("secret", "token", _no("client_secret"), "invalid_client",
              "RFC 6749, 4.4: only confidential clients", "client_credentials"),
    OAuthRule("redirects", "register", _odd_redirects, "invalid_redirect_uri", "RFC 7591, 2"),
    OAuthRule("method", "register", lambda asked: asked.get("token_endpoint_auth_method") not in _METHODS,
              "invalid_client_metadata", "RFC 7591, 2: one that the server supports"),
    OAuthRule("grants", "register", _grants_without_types, "invalid_client_metadata", "RFC 7591, 2.1"),
    OAuthRule("token", "revoke", _no("token"), _INVALID, "RFC 7009, 2.1"),
)  # fmt: skip


def oauth_fault(endpoint: str, asked: Mapping[str, Any]) -> OAuthRule | None:
    """Return the rule that refuses a request, or ``None``."""
    grant = asked.get("grant_type", "")
    rules = (one for one in OAUTH_RULES if one.endpoint == endpoint and one.when in ("", grant))
    return next((one for one in rules if one.broken(asked)), None)
