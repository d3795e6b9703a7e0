"""The server tools of an offer that run tools of the provider."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from proxy.base.caches import Memo
from proxy.base.errors import RequestError
from proxy.base.events import ToolDefinitions
from proxy.http.own_headers import TOOLS
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import URL_ARGUMENTS, ClientPrograms, HostedTool

NONE_BUT: Final = f"{TOOLS} is none, but the body {{}}. Leave one of the two out."
_MOST_BYTES: Final = 4 << 20
_POLICY_BYTES: Final = 8000


def serving_tools(
    request: ClientRequest, available: Mapping[str, ToolSpec], program: ToolSpec | None
) -> tuple[dict[str, ToolSpec], dict[str, HostedTool]]:
    """Return the server tools that run tools of the provider, and the declarations of the latter, both by the
    names that models use; ``program`` is the tool that runs programs, ``None`` if they are off."""
    if program is not None:
        available = {**available, program.name: program}
    specs: dict[str, ToolSpec] = {}
    tools: dict[str, HostedTool] = {}
    for tool, target in request.chosen.hosted:
        name = own_name(tool, target, request.declared)
        if target in available and name not in specs:
            specs[name], tools[name] = available[target], tool
    return specs, tools


def program_of(serving: Mapping[str, HostedTool]) -> tuple[str, ClientPrograms] | None:
    """Return the name by which the model runs programs if the client declared that tool, and what these may
    call of the client; ``None`` if it did not."""
    for name, tool in serving.items():
        if tool.programs is not None:
            return name, tool.programs
    return None


def names_in_programs(client: tuple[str, ClientPrograms] | None) -> frozenset[str]:
    """Return the names of what programs may call of the client; see :func:`program_of`.

    The model reads the client's declarations of them. So no server tool may have such a name: a call that the
    model makes itself would run that tool.
    """
    return frozenset() if client is None else client[1].names


def declared_tools(request: ClientRequest, shown: ShownTools) -> dict[str, HostedTool]:
    """Return how a request declares the tools of the provider that are ``shown``, by the same names."""
    tools: dict[str, HostedTool] = {}
    for tool, target in request.chosen.hosted:
        if (name := own_name(tool, target, request.declared)) in shown.hosted:
            tools.setdefault(name, tool)
    return tools


def own_name(tool: HostedTool, target: str, declared: Collection[str]) -> str:
    """Return the name by which models call a provider's tool that the server tool ``target`` runs.

    That is the provider's name for it, unless it is among the ``declared`` names of the client's functions.
    """
    return target if tool.kind in declared else tool.kind


def shown_with(shown: ToolDefinitions, hosted: Mapping[str, ToolSpec]) -> ToolDefinitions:
    """Add the server tools that run tools of the provider to the tools that a model is shown."""
    return shown.followed_by(spec.definition(name) for name, spec in hosted.items()) if hosted else shown


def contained_tools(names: Mapping[str, str], shown: ShownTools, catalog: Catalog) -> frozenset[str]:
    """Return the ids of the server tools whose calls can send nothing to a place that the model made up.

    A fetch gets an address only if it occurred in the conversation, and a search asks one engine, unless its
    server tool takes addresses. ``names`` maps the names that models use to ids.
    """
    if not shown.hosted:
        return frozenset()
    return frozenset(
        id_
        for name, tool in shown.hosted.items()
        if (spec := catalog.get(id_ := names.get(name, ""))) is not None
        and (tool.pages is not None or spec.parameters.get("properties", {}).keys().isdisjoint(URL_ARGUMENTS))
    )


class Containing:
    """Makes policies whose :attr:`~proxy.tools.access.policy.Policy.contained` has these tools, each once."""

    def __init__(self) -> None:
        self._known: Memo[tuple[Policy, frozenset[str]], Policy] = Memo(
            "containing_policies", _MOST_BYTES, lambda _, __: _POLICY_BYTES
        )

    def of(self, policy: Policy, contained: frozenset[str]) -> Policy:
        """Return the policy with these tools, the same object each time."""
        known = self._known.get((policy, contained))
        return known or self._known.put((policy, contained), replace(policy, contained=contained))


def refuse_hosted(request: ClientRequest) -> None:
    """Raise :class:`~proxy.base.errors.RequestError` if a request that wants no server tools declares a
    provider's tool that needs one."""
    for tool, _ in request.chosen.hosted:
        raise RequestError(400, NONE_BUT.format(f"declares {tool.kind}"), param=TOOLS)
