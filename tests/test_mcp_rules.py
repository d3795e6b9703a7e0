"""The table of what MCP servers and authorization servers refuse: each rule refuses what it says."""

from collections.abc import Mapping
from typing import Any

import pytest
from mcp_rules import HTTP_RULES, MESSAGE_RULES, OAUTH_RULES, http_fault, message_fault, oauth_fault

INFO = {"name": "toolrelay", "version": "1"}
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
RIGHT: Mapping[str, Mapping[str, Any]] = {
    "initialize": BEGIN,
    "notifications/initialized": {},
    "tools/list": {"cursor": ""},
    "tools/call": {"name": "f", "arguments": {}, "_meta": {"progressToken": 1}},
    "notifications/cancelled": {"requestId": 1, "reason": "gone"},
    "ping": {},
}
WRONG: Mapping[str, Mapping[str, Any]] = {
    "jsonrpc": {"method": "ping", "jsonrpc": "1.0"},
    "id": {"method": "ping", "id": None},
    "params": {"method": "ping", "params": []},
    "progress token": {"method": "tools/call", "params": {"name": "f", "_meta": {"progressToken": 1.5}}},
    "version": {"method": "initialize", "params": {**BEGIN, "protocolVersion": None}},
    "capabilities": {"method": "initialize", "params": {**BEGIN, "capabilities": []}},
    "client": {"method": "initialize", "params": {**BEGIN, "clientInfo": {"name": "toolrelay"}}},
    "cursor": {"method": "tools/list", "params": {"cursor": None}},
    "tool": {"method": "tools/call", "params": {"arguments": {}}},
    "arguments": {"method": "tools/call", "params": {"name": "f", "arguments": "{}"}},
    "cancelled": {"method": "notifications/cancelled", "params": {}},
}


def message(method: str, **members: Any) -> dict[str, Any]:
    """A request with this method."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, **members}


def test_right_messages_are_taken() -> None:
    """No rule refuses what the specification allows."""
    for method, params in RIGHT.items():
        assert message_fault(message(method, params=params)) is None
    assert message_fault(message("tools/list")) is None


@pytest.mark.parametrize("rule", MESSAGE_RULES, ids=lambda rule: rule.name)
def test_a_wrong_message_is_refused(rule: Any) -> None:
    """Each rule of messages refuses its example by its name."""
    fault = message_fault(message(**WRONG[rule.name]))
    assert fault is not None
    assert (fault["code"], rule.name in fault["message"]) == (rule.code, True)


HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json; charset=utf-8"}
WRONG_HEADERS = {
    "accept": {"Accept": "application/json"},
    "content type": {"Content-Type": "text/plain"},
    "protocol version": {"MCP-Protocol-Version": "1.0"},
}


@pytest.mark.parametrize("rule", HTTP_RULES, ids=lambda rule: rule.name)
def test_wrong_headers_are_refused(rule: Any) -> None:
    """Each rule of headers refuses its example, and no rule the right ones."""
    assert http_fault(HEADERS) is None
    assert http_fault({**HEADERS, "mcp-protocol-version": "2025-06-18"}) is None
    assert http_fault({**HEADERS, **WRONG_HEADERS[rule.name]}) is rule


V = "v" * 43
ASKED: Mapping[str, Mapping[str, Any]] = {
    "authorize": {
        "response_type": "code", "client_id": "c", "redirect_uri": "http://127.0.0.1/c", "state": "s",
        "code_challenge": V, "code_challenge_method": "S256", "resource": "https://a.test/mcp",
    },
    "token": {
        "grant_type": "authorization_code", "code": "x", "redirect_uri": "http://127.0.0.1/c",
        "client_id": "c", "code_verifier": V,
    },
    "register": {"redirect_uris": ["http://127.0.0.1/c"], "token_endpoint_auth_method": "none"},
    "revoke": {"token": "t"},
}  # fmt: skip
REFRESH = {"grant_type": "refresh_token", "client_id": "c", "refresh_token": "t"}
MACHINE = {"grant_type": "client_credentials", "client_id": "c", "client_secret": "s"}
WRONG_REQUESTS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("authorize", "code"): {"response_type": "token"},
    ("authorize", "client"): {"client_id": ""},
    ("authorize", "challenge"): {"code_challenge": "short"},
    ("authorize", "S256"): {"code_challenge_method": "plain"},
    ("authorize", "state"): {"state": ""},
    ("authorize", "resource"): {"resource": "https://a.test/mcp#x"},
    ("token", "grant"): {"grant_type": ""},
    ("token", "client"): {"client_id": ""},
    ("token", "resource"): {"resource": "mcp"},
    ("token", "code"): {"redirect_uri": ""},
    ("token", "verifier"): {"code_verifier": "v" * 129},
    ("token", "refresh token"): {**REFRESH, "refresh_token": ""},
    ("token", "secret"): {**MACHINE, "client_secret": ""},
    ("register", "redirects"): {"redirect_uris": []},
    ("register", "method"): {"token_endpoint_auth_method": "private_key_jwt"},
    ("register", "grants"): {"grant_types": ["refresh_token"], "response_types": ["code"]},
    ("revoke", "token"): {"token": ""},
}


@pytest.mark.parametrize("rule", OAUTH_RULES, ids=lambda rule: f"{rule.endpoint}-{rule.name}")
def test_a_wrong_request_is_refused(rule: Any) -> None:
    """Each rule of an authorization server refuses its example, and no rule the right requests."""
    for endpoint, asked in ASKED.items():
        assert oauth_fault(endpoint, asked) is None
    assert oauth_fault("token", REFRESH) is None
    assert oauth_fault("token", MACHINE) is None
    wrong = {**ASKED[rule.endpoint], **WRONG_REQUESTS[rule.endpoint, rule.name]}
    assert oauth_fault(rule.endpoint, wrong) is rule
