"""Server tools that a client chooses in ``tools`` of its request: valid elements, refusals, approvals."""

from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.base.events import ToolResult
from proxy.wires.chosen import (
    NOTHING_CHOSEN,
    NOTHING_SHOWN,
    ChosenTool,
    ServedTool,
    ShownServer,
    ShownTools,
    ToolFilter,
    read_chosen,
    usage_of_call,
)

FILES = {"type": "mcp", "server_label": "docs", "server_url": "toolrelay/files", "require_approval": "never"}


def fault(*tools: Any) -> RequestError:
    """Return the error with which the proxy refuses these tools."""
    with pytest.raises(RequestError) as caught:
        read_chosen(tools)
    assert caught.value.status == 400
    assert str(caught.value.param) in str(caught.value)
    return caught.value


def test_a_server_and_a_tool() -> None:
    """The proxy knows the position of each element that chooses server tools, so that it can remove it."""
    chosen = read_chosen([{"type": "function", "name": "mine"}, FILES, {"type": "toolrelay:core__time"}])
    (server,) = chosen.servers
    assert (server.label, server.name, server.url_at) == ("docs", "files", "tools[1].server_url")
    assert chosen.tools == (ChosenTool("tools[2]", "core__time"),)
    assert chosen.places == (("tools", frozenset({1, 2})),)
    assert chosen.labels == {"docs"}
    assert chosen


@pytest.mark.parametrize(
    "element",
    [
        {"type": "mcp", "server_label": "x", "server_url": "https://mcp.example.com/mcp"},
        {"type": "mcp", "server_label": "x", "connector_id": "connector_gmail"},
        {"type": "mcp", "server_label": "x", "server_url": "toolrelayed/files"},
        {"type": "mcp", "server_url": None},
        {"type": "web_search"},
        {"type": ["mcp"]},
        "toolrelay/files",
        None,
        {"type": "function", "name": "toolrelay:x"},
    ],
)
def test_what_is_not_ours_is_left_alone(element: Any) -> None:
    """The proxy ignores an element that does not name it: it belongs to the client or its vendor."""
    assert read_chosen([element]) is NOTHING_CHOSEN


@pytest.mark.parametrize(
    ("url", "name"),
    [("toolrelay", ""), ("toolrelay/", ""), ("toolrelay/files", "files"), ("toolrelay/a/", "a")],
)
def test_addresses(url: str, name: str) -> None:
    """An address without a server's name chooses all server tools, with the label ``toolrelay``."""
    (server,) = read_chosen([{"type": "mcp", "server_url": url}]).servers
    assert server.name == name
    assert server.label == (name or "toolrelay")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"server_label": ""}, "server_label"),
        ({"server_label": 7}, "server_label"),
        ({"server_label": "x" * 257}, "server_label"),
        ({"headers": {"authorization": "Bearer x"}}, "headers"),
        ({"authorization": "x"}, "authorization"),
        ({"allowed_tools": "read"}, "allowed_tools"),
        ({"allowed_tools": [""]}, "allowed_tools[0]"),
        ({"allowed_tools": ["x"] * 257}, "allowed_tools"),
        ({"allowed_tools": {"tool_names": "read"}}, "allowed_tools.tool_names"),
        ({"allowed_tools": {"read_only": 1}}, "allowed_tools.read_only"),
        ({"allowed_tools": {"read_only": False}}, "allowed_tools.read_only"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": True}, "require_approval"),
        ({"require_approval": {"maybe": {}}}, "require_approval"),
        ({"require_approval": {"never": {"tool_names": 1}}}, "require_approval.never.tool_names"),
    ],
)
def test_a_field_that_is_wrong_is_named(more: dict[str, Any], param: str) -> None:
    """Rule E1: the error names the invalid field together with the position of its element."""
    assert fault({**FILES, **more}).param == f"tools[0].{param}"


def test_a_secret_is_not_repeated() -> None:
    """The error for an element with credentials does not repeat their value."""
    assert "s3cret" not in str(fault({**FILES, "authorization": "s3cret"}))


def test_empty_credentials_are_none() -> None:
    """The proxy accepts empty credentials, because client libraries also send fields that nobody set."""
    assert read_chosen([{**FILES, "headers": None, "authorization": ""}])


def test_two_servers_of_one_label() -> None:
    """The proxy refuses two servers with one label, because a call could not be assigned to one of them."""
    assert fault(FILES, {**FILES, "server_url": "toolrelay/other"}).param == "tools[1]"


def test_many_elements_are_refused() -> None:
    """The proxy refuses a request with more than 64 elements that choose server tools."""
    assert fault(*({"type": f"toolrelay:core__{n}"} for n in range(65))).param == "tools"


def test_filters() -> None:
    """A filter selects tools by their names, only read-only tools, or read-only tools with these names."""
    assert ToolFilter().fits("a", False)
    assert ToolFilter(frozenset({"a"})).fits("a", False)
    assert not ToolFilter(frozenset({"a"})).fits("b", True)
    assert ToolFilter(read_only=True).fits("b", True)
    assert not ToolFilter(frozenset({"a"}), read_only=True).fits("a", False)


@pytest.mark.parametrize(
    ("said", "asks_a", "asks_b"),
    [
        (None, True, True),
        ("always", True, True),
        ("never", False, False),
        ({"never": {"tool_names": ["a"]}}, False, True),
        ({"never": {"read_only": True}}, False, True),
        ({"never": {}}, True, True),
        ({"always": {"tool_names": ["b"]}}, True, True),
        ({"always": {"tool_names": ["b"]}, "never": {"tool_names": ["a"]}}, False, True),
    ],
)
def test_approvals(said: Any, asks_a: bool, asks_b: bool) -> None:
    """Every call needs an approval unless ``never`` selects its tool; ``a`` is read-only, ``b`` is not."""
    (server,) = read_chosen([{**FILES, "require_approval": said}]).servers
    assert (server.approval.asks("a", True), server.approval.asks("b", False)) == (asks_a, asks_b)


def test_calls_of_a_server() -> None:
    """The proxy maps a tool's name for models to the server's label and its own name, and back."""
    tool = ServedTool("mcp__files__read", "read", "", {}, True)
    shown = ShownTools((ShownServer("docs", (tool,)),), reports_calls=True)
    assert shown.called("mcp__files__read") == ("docs", "read")
    assert shown.called("read") is None
    assert shown.id_of("docs", "read") == "mcp__files__read"
    assert shown.id_of("docs", "write") is None
    assert shown.id_of("other", "read") is None
    assert shown.renamed({"mcp__files__read": "mine"}).called("mine") == ("docs", "read")


@pytest.mark.parametrize(
    ("code", "counts"),
    [(None, True), ("execution_failed", True), ("timeout", True), ("policy_denied", False)],
)
def test_what_ran_is_counted(code: Any, counts: bool) -> None:
    """Usage counts calls that ran, not refused ones, and counts nothing if the client chose no tools."""
    result = ToolResult("c", code is None, "", code)
    told = usage_of_call(ShownTools(reports_calls=True), result)
    assert told == ({"server_tool_use_details": {"tool_calls_executed": 1}} if counts else {})
    assert usage_of_call(NOTHING_SHOWN, result) == {}
