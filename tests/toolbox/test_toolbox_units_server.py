"""The MCP server of the demo: its conversions, and its definition, which the demo has pinned."""

import sys

import pytest
from mcp_rig import hosted
from waiting import PATIENCE_S

from proxy.base.errors import ToolFailure
from proxy.toolbox.demo.units_server import TOOL, convert
from proxy.tools.mcp.definitions import read_listing
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server


@pytest.mark.parametrize(
    ("value", "source", "target", "found"),
    [
        (1, "mi", "km", 1.609344),
        (26.2, "mi", "km", 42.1648128),
        (12, "in", "ft", 1),
        (1, "lb", "kg", 0.45359237),
        (1, "us_gal", "l", 3.785411784),
        (100, "km/h", "m/s", 27.7777777778),
        (100, "celsius", "fahrenheit", 212),
        (-40, "fahrenheit", "celsius", -40),
        (0, "kelvin", "celsius", -273.15),
        (7, "kg", "kg", 7),
    ],
)
def test_conversions(value: float, source: str, target: str, found: float) -> None:
    """The server converts a value to about twelve correct digits."""
    assert convert(value, source, target) == pytest.approx(found, rel=1e-11)


@pytest.mark.parametrize(("source", "target"), [("kg", "km"), ("parsec", "km"), ("km", "Parsec")])
def test_what_cannot_be_converted(source: str, target: str) -> None:
    """A conversion between unlike or unknown units fails with a message that names a unit."""
    with pytest.raises(ValueError, match=f"{source}|{target}"):
        convert(1, source, target)


async def test_the_server_is_as_it_is_pinned() -> None:
    """The running server lists the tool with the pinned digest, and calls give results or clear failures."""
    server = Server("units", command=sys.executable, args=("-P", "-m", "proxy.toolbox.demo.units_server"))
    async with hosted(server) as host:
        found = await host.definitions("units")
        (pinned,) = read_listing("units", [TOOL]).definitions
        assert list(found) == ["convert"]
        assert found["convert"].digest == pinned.digest

        async def call(**arguments: object) -> object:
            return await host.client.call("units", "convert", pinned.digest, arguments, PATIENCE_S)

        result = read_result(await call(value=26.2, **{"from": "mi", "to": "km"}))
        assert result.text == '{"value": 42.1648128, "unit": "km"}'
        with pytest.raises(ToolFailure, match="kg is a unit of mass"):
            read_result(await call(value=1, **{"from": "kg", "to": "km"}))
