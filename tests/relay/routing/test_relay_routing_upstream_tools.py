"""Tools that an upstream may run itself: one answer for everything that would run a request again."""

from typing import Any

import pytest

from proxy.relay.routing.fallback import fallback_rules_of
from proxy.wires.registry.hosted_tools import acting_tool

OURS = {"type": "mcp", "server_label": "a", "server_url": "toolrelay/core"}


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ({"type": "function", "name": "mine"}, None),
        ({"name": "mine", "input_schema": {}}, None),
        ({"type": "computer_use_preview"}, None),
        ({"type": "web_search_preview_2025_03_11"}, None),
        (OURS, None),
        ({"type": "toolrelay:core__calculate"}, None),
        ("odd", None),
        ({"type": "mcp", "server_url": "https://mcp.example.com"}, "mcp"),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, "code_interpreter"),
        ({"type": "code_execution_20250825", "name": "code_execution"}, "code_execution_20250825"),
        ({"type": "shell"}, None),
        ({"type": "shell", "environment": {"type": "local", "skills": []}}, None),
        ({"type": "shell", "environment": {"type": "container_auto"}}, "shell"),
        ({"type": "shell", "environment": 7}, "shell"),
        ({"type": "namespace", "name": "n", "tools": []}, None),
        ({"type": "not known yet"}, "not known yet"),
        ({}, "None"),
    ],
)
def test_which_tools_act_at_the_provider(tool: Any, kind: str | None) -> None:
    """A request whose tools may act at the provider neither moves to another upstream nor runs again."""
    assert acting_tool({"tools": [OURS, tool]}) == kind
    assert acting_tool({"input": [{"type": "additional_tools", "tools": [tool]}]}) == kind
    assert fallback_rules_of({"tools": [OURS, tool]}).failed is (kind is None)


@pytest.mark.parametrize("tools", [None, "odd", [], {}])
def test_no_tools_act(tools: Any) -> None:
    """A body without a list of tools has none that act."""
    assert acting_tool({"tools": tools, "input": tools}) is None
