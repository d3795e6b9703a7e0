"""A small MCP server that converts units, over standard input and output.

``toolrelay demo`` starts it; the command is ``python -m proxy.toolbox.demo.units_server``. To run, it needs
only the extra ``mcp``. It can be imported without that: the demo pins :data:`TOOL`.
"""

import asyncio
import json
from typing import Any, Final

_FACTORS: Final = {
    "length": {
        "mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0,
        "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344, "nmi": 1852.0,
    },
    "mass": {"g": 0.001, "kg": 1.0, "t": 1000.0, "oz": 0.028349523125, "lb": 0.45359237},
    "volume": {"ml": 0.001, "l": 1.0, "us_gal": 3.785411784, "imp_gal": 4.54609},
    "speed": {"m/s": 1.0, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600},
}  # fmt: skip
"""For each quantity, the size of each unit in the quantity's base unit."""

_TEMPERATURES: Final = {"celsius": (1.0, 273.15), "fahrenheit": (5 / 9, 459.67 * 5 / 9), "kelvin": (1.0, 0.0)}
"""For each scale, the size of a degree in kelvin, and the scale's zero in kelvin."""

_UNITS: Final = (*(unit for units in _FACTORS.values() for unit in units), *_TEMPERATURES)
_SCALES: Final = {
    **{
        unit: (quantity, factor, 0.0)
        for quantity, units in _FACTORS.items()
        for unit, factor in units.items()
    },
    **{unit: ("temperature", factor, zero) for unit, (factor, zero) in _TEMPERATURES.items()},
}

TOOL: Final[dict[str, Any]] = {
    "name": "convert",
    "title": "Convert units",
    "description": "Convert a length, mass, volume, speed or temperature from one unit to another",
    "inputSchema": {
        "type": "object",
        "properties": {
            "value": {"type": "number", "description": "The amount to convert"},
            "from": {"type": "string", "description": "The unit of the amount", "enum": list(_UNITS)},
            "to": {"type": "string", "description": "The unit to convert to", "enum": list(_UNITS)},
        },
        "required": ["value", "from", "to"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
"""The server's only tool, in the form in which the server lists it."""


def convert(value: float, source: str, target: str) -> float:
    """Convert an amount from one unit to another, to 12 digits.

    Raises ValueError for an unknown unit, and for two units of different quantities.
    """
    for unit in (source, target):
        if unit not in _SCALES:
            raise ValueError(f"there is no unit {unit!r}; the units are {', '.join(_UNITS)}")
    quantity, factor, zero = _SCALES[source]
    wanted, other_factor, other_zero = _SCALES[target]
    if quantity != wanted:
        raise ValueError(f"{source} is a unit of {quantity}, and {target} one of {wanted}")
    return float(f"{(value * factor + zero - other_zero) / other_factor:.12g}")


async def _serve() -> None:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(TOOL)])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        try:
            converted = convert(float(given["value"]), str(given["from"]), str(given["to"]))
        except (KeyError, TypeError, ValueError) as fault:
            return types.CallToolResult(content=[types.TextContent(text=str(fault))], is_error=True)
        content = {"value": converted, "unit": given["to"]}
        # Clients that read only text get the same as text.
        text = types.TextContent(text=json.dumps(content))
        return types.CallToolResult(content=[text], structured_content=content)

    server: Server[Any] = Server("units", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    """Serve until standard input ends."""
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
