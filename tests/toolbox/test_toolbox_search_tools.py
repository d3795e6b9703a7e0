"""``core__search_tools``: what it returns, and that it reaches nothing but the run that calls it."""

from dataclasses import replace

import orjson
import pytest

from proxy.base.errors import ToolFailure
from proxy.base.events import SEARCH_TOOLS, ToolDefinition
from proxy.toolbox.search_tools import search_tools_tool
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.provider import CallContext
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.searching.listing import Searches

CONTEXT = CallContext("run_1", "inv_1", "me", "call_1")


async def test_it_searches_the_run_that_calls_it() -> None:
    """The result has names and short descriptions; outside of a run, and in another one, the call fails."""
    searches = Searches()
    provider = FunctionProvider("core", [search_tools_tool(searches)])
    (spec,) = await provider.list_tools()
    arguments = spec.validate({"query": "echo"})
    found = [ToolDefinition("a__echo", "Say it again. And again.", {})]
    with searches.during("run_1", lambda query: found if query == "echo" else []):
        assert await provider.call_tool(spec, arguments, CONTEXT) == {
            "tools": [{"name": "a__echo", "description": "Say it again"}]
        }
        nothing = await provider.call_tool(spec, spec.validate({"query": "x"}), CONTEXT)
        assert nothing["tools"] == []
        assert "Try other words" in nothing["message"]
        with pytest.raises(ToolFailure, match="within a model request"):
            await provider.call_tool(spec, arguments, CallContext("run_2", "inv_1", "me", "call_1"))
    with pytest.raises(ToolFailure, match="within a model request"):
        await provider.call_tool(spec, arguments, CONTEXT)


@pytest.mark.parametrize(("most", "tools"), [(4096, 5), (1100, 5), (256, 5), (120, 3), (1, 1)])
async def test_a_result_is_never_cut(most: int, tools: int) -> None:
    """Where results are small, descriptions and then tools are left out, so that the names can be read."""
    searches = Searches()
    provider = FunctionProvider("core", [search_tools_tool(searches)])
    (spec,) = await provider.list_tools()
    found = [ToolDefinition(f"probe_tools__some_tool_{at}", "ü" * 200, {}) for at in range(5)]
    with searches.during("run_1", lambda _: found):
        context = replace(CONTEXT, max_result_bytes=most)
        result = await provider.call_tool(spec, spec.validate({"query": "x"}), context)
    assert [tool["name"] for tool in result["tools"]] == [tool.name for tool in found[:tools]]
    assert len(orjson.dumps(result)) <= max(most, 80)


async def test_no_policy_has_to_allow_it_and_none_offers_it() -> None:
    """Rule T2: its permission comes from ``tools.search`` alone, and no selection of a policy has it."""
    provider = FunctionProvider("core", [search_tools_tool(Searches())])
    catalog = Catalog([(spec, provider) for spec in await provider.list_tools()])
    spec = catalog.get(SEARCH_TOOLS)
    assert spec is not None
    for policy in (Policy(), Policy(allow=("*",)), Policy(allow=("*",), approve=("*",))):
        decision = policy.intersect(Policy()).decide(spec, untrusted="x")
        assert (decision.outcome, decision.rule) == ("allowed", "tools.search")
        assert catalog.select(policy, asks=True).offered == ()
