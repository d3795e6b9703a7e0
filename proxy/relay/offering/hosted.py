"""The server tools of an offer that run tools of the provider."""

from collections.abc import Collection, Mapping

from proxy.base.events import ToolDefinitions
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import HostedTool


def serving_tools(
    request: ClientRequest, available: Mapping[str, ToolSpec]
) -> tuple[dict[str, ToolSpec], dict[str, HostedTool]]:
    """Return the server tools that run tools of the provider, and the declarations of the latter, both by the
    names that models use."""
    specs: dict[str, ToolSpec] = {}
    tools: dict[str, HostedTool] = {}
    for tool, target in request.chosen.hosted:
        name = own_name(tool, target, request.declared)
        if target in available and name not in specs:
            specs[name], tools[name] = available[target], tool
    return specs, tools


def own_name(tool: HostedTool, target: str, declared: Collection[str]) -> str:
    """Return the name by which models call a provider's tool that the server tool ``target`` runs.

    That is the provider's name for it, unless it is among the ``declared`` names of the client's functions.
    """
    return target if tool.kind in declared else tool.kind


def shown_with(shown: ToolDefinitions, hosted: Mapping[str, ToolSpec]) -> ToolDefinitions:
    """Add the server tools that run tools of the provider to the tools that a model is shown."""
    return shown.followed_by(spec.definition(name) for name, spec in hosted.items()) if hosted else shown
