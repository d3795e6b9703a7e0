"""``check`` and the start say which tools some model providers refuse, whatever their source."""

from pathlib import Path

from running_proxy import make_config

from proxy.app.app import create_services
from proxy.commands.doctor.schemas import schema_lines
from proxy.tools.access.policy import Policy

MODULE = """
from proxy.tools import Redaction, tool

ODD = {
    "type": "object",
    "properties": {"uids[]": {"type": "string"}, "kind": {"oneOf": [{"const": 1}, {"const": 2}]}},
    "patternProperties": {"^x": {"type": "string"}},
}

@tool(description="odd", effect="read_only", redaction=Redaction(), parameters=ODD)
async def odd(arguments: dict) -> str:
    return "x"

@tool(description="plain", effect="read_only", redaction=Redaction())
async def plain(name: str, count: int | None = None) -> str:
    return "x"
"""


async def test_who_refuses_what_is_said_for_every_tool(tmp_path: Path) -> None:
    """Each offered tool outside the portable part of JSON Schema has a line that names the providers."""
    module = tmp_path / "mine.py"
    module.write_text(MODULE)
    config = make_config("http://127.0.0.1:9/v1", modules=(str(module),), allow=("*",))
    services = await create_services(config)
    try:
        lines = schema_lines(services.catalog, services.policy)
        assert lines == [
            "mine__odd: some providers refuse its schema (Anthropic: a property name (parameters); Google: "
            "patternProperties (parameters), oneOf (parameters.properties.kind)). Models that refuse it are "
            "asked without this tool"
        ]
        assert schema_lines(services.catalog, Policy(allow=())) == []
    finally:
        await services.aclose()
