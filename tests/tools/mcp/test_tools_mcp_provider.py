"""The provider of all MCP tools: its maximum number of tools, and their output schemas."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from waiting import until

from proxy.base.errors import ToolFailure
from proxy.net.keep_running import keep_running
from proxy.tools.contract.results.results import RichResult
from proxy.tools.mcp import pinned as pinned_module
from proxy.tools.mcp.definitions import Definition, check_input
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.pinned import spec_of
from proxy.tools.mcp.pins import MOST_PINNED, GivenPins, Pin
from proxy.tools.mcp.provider import McpProvider
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


UNUSABLE: list[dict[str, Any]] = [
    {"pattern": "a\\Z"},
    {"pattern": "[^]"},
    {"$id": "::::%zz"},
    {"$dynamicRef": "#nowhere"},
    {"$schema": "https://example.com/own"},
    {"$ref": "https://example.com/x"},
]


def pin_with(name: str, field: Mapping[str, Any]) -> Pin:
    """A pin of a tool with one argument."""
    schema = {"type": "object", "properties": {"x": field}}
    return Pin(Definition("toy", name, input_schema=schema, output_schema=schema), TOY.identity, 1.0)


@pytest.mark.parametrize("field", UNUSABLE)
async def test_a_pin_that_cannot_be_used_leaves_out_its_tool(field: Mapping[str, Any]) -> None:
    """An unusable schema in the record leaves out its tool; the log says why once; the others are listed."""
    with capture_logs() as lines:
        provider = McpProvider({"toy": TOY}, GivenPins([pin_with("bad", field), pin("good")]), None)
        await provider.begin()
        for _ in range(2):
            assert [spec.name for spec in await provider.list_tools()] == ["mcp__toy__good"]
    (told,) = [line for line in lines if line["event"] == "mcp_pin_unusable"]
    assert told["tool"] == "mcp__toy__bad"
    assert "its inputSchema cannot be used" in told["reason"]


@pytest.mark.parametrize("field", UNUSABLE)
def test_an_output_schema_that_cannot_be_compiled_promises_nothing(field: Mapping[str, Any]) -> None:
    """An output schema with a pattern or reference that cannot be used stops no tool."""
    schema = {"type": "object", "properties": {"x": field}}
    assert spec_of(pin("a", schema), TOY).validate_output is None


async def test_a_surprise_in_one_definition_takes_no_other_tool_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the check of one definition raises, the other tools are listed."""

    def check(schema: Any) -> dict[str, Any]:
        if "x" in schema["properties"]:
            raise ZeroDivisionError
        return check_input(schema)

    monkeypatch.setattr(pinned_module, "check_input", check)
    with capture_logs() as lines:
        provider = McpProvider({"toy": TOY}, GivenPins([pin_with("bad", {}), pin("good")]), None)
        await provider.begin()
        assert [spec.name for spec in await provider.list_tools()] == ["mcp__toy__good"]
    assert [line["event"] for line in lines] == ["mcp_pin_unusable"]


async def test_unchanged_pins_keep_their_contracts() -> None:
    """The contract of a pin that has not changed is not made again; a changed pin gets a new one."""
    source = [pin("a"), pin("b")]
    provider = McpProvider({"toy": TOY}, GivenPins(source), None)
    await provider.begin()
    first = await provider.list_tools()
    source[1] = pin("b", NUMBER)
    second = await provider.list_tools()
    assert second[0] is first[0]
    assert second[1] is not first[1]


class BrokenPins(GivenPins):
    """Pins whose first readings fail in a way that nobody foresaw."""

    failures = 0

    async def pins(self) -> Sequence[Pin]:
        """Return the pins, or fail."""
        if self.failures:
            self.failures -= 1
            raise KeyError("no such column")
        return await super().pins()


async def test_a_failure_does_not_end_the_following_of_pins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After an unexpected failure the provider says so, goes on, and notices the next denial."""
    monkeypatch.setattr(pinned_module, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(pinned_module, "keep_running", partial(keep_running, after_failure_s=0.0))
    listed = [pin("a"), pin("b")]
    source = BrokenPins(listed)
    provider = McpProvider({"toy": TOY}, source, HostClient(tmp_path / "none"))
    await provider.begin()
    await provider.list_tools()
    refreshed: list[list[str]] = []

    async def refresh() -> None:
        refreshed.append([spec.name for spec in await provider.list_tools()])

    with capture_logs() as lines:
        provider.follow(refresh)
        try:
            source.failures = 3
            await until(lambda: source.failures == 0)
            del listed[0]
            await until(lambda: bool(refreshed))
        finally:
            await provider.aclose()
    assert refreshed == [["mcp__toy__b"]]
    assert "background_work_failed" in [line["event"] for line in lines]


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
