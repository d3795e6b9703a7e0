"""Tools with the names that the MCP conformance suite calls; their ids begin with this module's name."""

from typing import Any

from proxy.base.errors import ToolFailure
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

PNG = bytes.fromhex("89504e470d0a1a0a") + b"pixels" * 40

ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


@tool(effect="read_only", redaction=Redaction())
async def test_simple_text() -> str:
    """Say something."""
    return "This is a simple text response for testing."


@tool(effect="read_only", redaction=Redaction())
async def test_image_content() -> RichResult:
    """Draw something."""
    return RichResult(images=[Image(PNG, "image/png")])


@tool(effect="read_only", redaction=Redaction())
async def test_error_handling() -> None:
    """Fail."""
    raise ToolFailure("This tool intentionally returns an error for testing")


@tool(effect="read_only", redaction=Redaction(), parameters=SCHEMA)
async def json_schema_2020_12_tool(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take what its own schema says."""
    return arguments
