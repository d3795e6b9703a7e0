"""The provider of all MCP tools: its maximum number of tools, and their output schemas."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.errors import ToolFailure
from proxy.tools.contract.results import RichResult
from proxy.tools.mcp.definitions import Definition
from proxy.tools.mcp.pins import MOST_PINNED, GivenPins, Pin
from proxy.tools.mcp.provider import McpProvider, spec_of
from proxy.tools.mcp.servers import Server

TOY = Server("toy", command="toy")
OPEN = {"type": "object", "properties": {}}
NUMBER = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}


def pin(name: str, output: Mapping[str, Any] | None = None) -> Pin:
    """A pin of a tool."""
    return Pin(Definition("toy", name, "Does.", input_schema=OPEN, output_schema=output), TOY.identity, 1.0)


async def test_no_more_tools_than_may_be_are_offered() -> None:
    """The provider offers at most ``MOST_PINNED`` tools, the first by id; the log names the others once."""
    pins = [pin(f"t{number:04}") for number in range(MOST_PINNED + 20)]
    with capture_logs() as lines:
        provider = McpProvider({"toy": TOY}, GivenPins(pins[::-1]), None)
        await provider.begin()
        for _ in range(2):
            specs = await provider.list_tools()
    assert [spec.name for spec in specs] == [one.id for one in pins[:MOST_PINNED]]
    (told,) = [line for line in lines if line["event"] == "mcp_too_many_pins"]
    assert (told["left_out"], told["named"][0]) == (20, "mcp__toy__t1000")


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "array"},
        {"type": "object", "properties": 3},
        {"type": "object", "$ref": "https://example.com/schema"},
    ],
)
def test_an_output_schema_that_cannot_be_used_promises_nothing(schema: Mapping[str, Any] | None) -> None:
    """A tool with an unusable output schema is offered without validation of its output."""
    assert spec_of(pin("a", schema), TOY).validate_output is None


def test_structured_content_is_held_to_its_schema() -> None:
    """Structured content that does not fit its schema is a failure, whose message does not quote it."""
    check = spec_of(pin("a", NUMBER), TOY).validate_output
    assert check is not None
    for fine in (RichResult("x", data={"value": 3}), RichResult("only text")):
        assert check(fine) is fine
    for wrong in ({"value": "SECRET"}, {}, ["SECRET"], "SECRET"):
        with pytest.raises(ToolFailure) as raised:
            check(RichResult("x", data=wrong))
        assert "the tool ran, but its structured content does not fit" in raised.value.message
        assert "SECRET" not in raised.value.message
