"""Tools by upstream: only tools that both the policy and the answering upstream allow are offered or run."""

import json
from typing import Any

import pytest
from looping import ANSWER, ASK, ECHO, TIME, called
from raw_upstream import RawUpstream
from running_proxy import make_config, running

UTC = '{"timezone":"UTC"}'


def offered(body: bytes) -> list[str]:
    """Return the names of the tools that an upstream got."""
    return [tool["function"]["name"] for tool in json.loads(body).get("tools", [])]


async def test_each_upstream_is_offered_its_own() -> None:
    """Rule T2: a request gets the tools that both the policy and its upstream allow."""
    async with RawUpstream(ANSWER) as every, RawUpstream(ANSWER) as some, RawUpstream(ANSWER) as none:
        config = make_config(
            {"name": "every", "base_url": every.url, "models": ("e",)},
            {"name": "some", "base_url": some.url, "models": ("s",), "tools": ("core__get_c*", "web__*")},
            {"name": "none", "base_url": none.url, "models": ("n",), "tools": ()},
            allow=(TIME, ECHO),
            modules=("probe_tools",),
        )
        async with running(config) as proxy:
            for model in "esn":
                assert (await proxy.ask({**ASK, "model": model})).status == 200
    assert offered(every.requests[0].body) == sorted([TIME, ECHO])
    assert offered(some.requests[0].body) == [TIME]
    assert offered(none.requests[0].body) == []


async def test_what_an_upstream_is_not_offered_does_not_run_for_it() -> None:
    """Rule T2: a call of a tool that its upstream does not allow is refused, and the record says why."""
    async with RawUpstream(called(("call_1", ECHO, '{"text":"x"}')), ANSWER) as upstream:
        config = make_config(
            {"base_url": upstream.url, "tools": (TIME,)}, allow=(TIME, ECHO), modules=("probe_tools",)
        )
        async with running(config) as proxy:
            answer = await proxy.ask(ASK)
            detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    assert json.loads(json.loads(upstream.requests[1].body)["messages"][-1]["content"])["error_code"] == (
        "policy_denied"
    )
    assert detail is not None
    assert detail.invocations[0].decision == f'denied: upstreams.default.tools lacks "{ECHO}"'
    assert detail.run.withheld[ECHO] == f'upstreams.default.tools lacks "{ECHO}"'


@pytest.mark.parametrize("bound", [{"policy": {"max_argument_bytes": 100}}, {}])
async def test_an_upstreams_patterns_leave_every_other_bound_alone(bound: dict[str, Any]) -> None:
    """Tool patterns of an upstream do not change the size of arguments that the policy allows."""
    long = called(("call_1", ECHO, json.dumps({"text": "x" * 9000})))
    policy = bound or {"policy": {"max_argument_bytes": 20_000}}
    async with RawUpstream(long, ANSWER) as upstream:
        config = make_config(
            {"base_url": upstream.url, "tools": (ECHO,)}, allow=(ECHO,), modules=("probe_tools",), **policy
        )
        async with running(config) as proxy:
            await proxy.ask(ASK)
    assert ("error_code" in json.loads(upstream.requests[1].body)["messages"][-1]["content"]) is bool(bound)


async def test_a_name_that_the_upstream_does_not_allow_is_not_available() -> None:
    """Rule E1: x-toolrelay-tools with a tool that the upstream does not allow gets a 400."""
    async with RawUpstream(ANSWER) as upstream:
        config = make_config(
            {"base_url": upstream.url, "tools": (TIME,)}, allow=(TIME, ECHO), modules=("probe_tools",)
        )
        async with running(config) as proxy:
            refused = await proxy.ask(ASK, {"x-toolrelay-tools": ECHO})
    assert refused.status == 400
    assert upstream.requests == []
