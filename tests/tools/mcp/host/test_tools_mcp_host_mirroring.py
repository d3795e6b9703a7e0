"""Arguments in HTTP headers: which tools are left out, and which headers there are."""

from typing import Any

import pytest
from mcp_script import tool_definition

from proxy.tools.mcp.definitions import Definition
from proxy.tools.mcp.host.mirroring import TooLongForHeaders, mirrored_headers, read_tools
from proxy.tools.mcp.servers import Server

NEWEST, OLDER = "2026-07-28", "2025-11-25"
REMOTE = Server("far", url="https://example.com/mcp")
LOCAL = Server("near", command="x")
MARK = {"type": "string", "x-mcp-header": "Region"}


def with_fields(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "properties": fields, **more}


BROKEN: dict[str, dict[str, Any]] = {
    "not on a property": with_fields({}, **{"x-mcp-header": "A"}),
    "in a list": with_fields({"a": {"type": "array", "items": MARK}}),
    "no token": with_fields({"a": {"type": "string", "x-mcp-header": "a b\r\n"}}),
    "empty": with_fields({"a": {"type": "string", "x-mcp-header": ""}}),
    "no text": with_fields({"a": {"type": "string", "x-mcp-header": 3}}),
    "a number": with_fields({"a": {"type": "number", "x-mcp-header": "A"}}),
    "twice": with_fields({"a": MARK, "b": {"type": "string", "x-mcp-header": "REGION"}}),
}


@pytest.mark.parametrize("schema", BROKEN.values(), ids=BROKEN)
def test_a_tool_with_a_broken_annotation_is_left_out(schema: dict[str, Any]) -> None:
    """Over HTTP and the newest revision such a tool is left out with the reason; elsewhere it has no meaning.

    Source: MCP 2026-07-28, Transports, "Custom Headers": clients must exclude such tools.
    """
    tools = [
        tool_definition("bad", inputSchema=schema),
        tool_definition("good", inputSchema=with_fields({"a": MARK})),
    ]
    listing = read_tools(REMOTE, NEWEST, tools, 10)
    assert [one.name for one in listing.definitions] == ["good"]
    (left_out,) = listing.left_out
    assert left_out.name == "bad"
    assert "x-mcp-header" in left_out.reason
    assert left_out.reason.isprintable()
    for server, version in ((LOCAL, NEWEST), (REMOTE, OLDER)):
        assert len(read_tools(server, version, tools, 10).definitions) == 2


def test_only_given_scalars_become_headers() -> None:
    """Nested properties are mirrored; absent, null and composite values are not."""
    inner = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
    flag = {"type": "boolean", "x-mcp-header": "Flag"}
    one = Definition("far", "a", input_schema=with_fields({"r": MARK, "o": inner, "f": flag}))
    arguments = {"r": " edge ", "o": {"n": 7}, "f": None, "other": "x"}
    assert mirrored_headers(REMOTE, NEWEST, one, arguments) == {
        "Mcp-Param-Region": "=?base64?IGVkZ2Ug?=",
        "Mcp-Param-N": "7",
    }
    assert mirrored_headers(REMOTE, NEWEST, one, {"r": ["x"], "o": 3}) == {}
    assert mirrored_headers(REMOTE, OLDER, one, arguments) == {}
    assert mirrored_headers(LOCAL, NEWEST, one, arguments) == {}
    with pytest.raises(TooLongForHeaders):
        mirrored_headers(REMOTE, NEWEST, one, {"r": "x" * 9000})
