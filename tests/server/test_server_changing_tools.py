"""Tools that change while the proxy runs: who sees which tools, and that old ones are freed."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from changing_tools import ChangingProvider, changing_tool
from chat_script import reply
from client_keys import ALICE, BOB, bearer, declared
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running
from waiting import until

from proxy.app.app import Overrides
from proxy.base.errors import ConfigError
from proxy.tools.contract.spec import ToolEffect, ToolSpec

OLD, NEW, BOTH, ACTS, LINKED = "toy__old", "toy__new", "toy__both", "toy__acts", "toy__linked"
EVERY_TOY = ("toy__*",)


def model(request: RawRequest) -> list[Step]:
    """A model that calls the tools that the user names, one in each turn, and repeats what they said."""
    messages = json.loads(request.body)["messages"]
    (user,) = [message["content"] for message in messages if message["role"] == "user"]
    said = [message["content"] for message in messages if message["role"] == "tool"]
    called = user.split()
    if len(said) == len(called):
        return reply(" / ".join(said))
    return reply(None, (f"call_{len(said)}", called[len(said)], "{}"))


def ask(*tools: str, **more: Any) -> dict[str, Any]:
    """A request whose model calls these tools."""
    return {"model": "m", "messages": [{"role": "user", "content": " ".join(tools)}], **more}


def offered(request: RawRequest) -> list[str]:
    """The tools that a model was shown."""
    return [tool["function"]["name"] for tool in json.loads(request.body).get("tools", ())]


def said(answer: Any) -> str:
    """What the model said at last."""
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


@asynccontextmanager
async def changing(**sections: Any) -> AsyncIterator[tuple[Proxy, ChangingProvider, RawUpstream]]:
    """A proxy whose only tools besides its own are those of a provider that changes them."""
    provider = ChangingProvider("toy", changing_tool(OLD, arguments=("place",)), changing_tool(BOTH))
    sections.setdefault("allow", EVERY_TOY)
    overrides = Overrides(wrap_provider=lambda given: provider if given.name == "probe_tools" else given)
    async with (
        RawUpstream(model) as upstream,
        running(make_config(upstream.url, modules=("probe_tools",), **sections), overrides) as proxy,
    ):
        yield proxy, provider, upstream
    assert provider.closed == 1


async def change(proxy: Proxy, provider: ChangingProvider, *specs: Any) -> None:
    """Give the provider other tools, and let the proxy read them again."""
    provider.specs = specs
    await proxy.services.registry.refresh()


async def test_a_run_keeps_its_tools_and_the_next_request_has_the_new_ones() -> None:
    """A run keeps its tools after they are removed; the next request gets only the new tools."""
    async with changing() as (proxy, provider, upstream):
        provider.go_on.clear()
        run = asyncio.create_task(proxy.ask(ask(OLD, OLD, BOTH)))
        await until(lambda: provider.called == [OLD])
        await change(proxy, provider, changing_tool(NEW), changing_tool(BOTH))
        later = asyncio.create_task(proxy.ask(ask(NEW, OLD)))
        await until(lambda: provider.called == [OLD, NEW])
        provider.go_on.set()
        assert said(await run) == f"this was {OLD} / this was {OLD} / this was {BOTH}"
        new, unknown = said(await later).split(" / ")
        assert new == f"this was {NEW}"
        assert json.loads(unknown)["error_code"] == "unknown_tool"
        shown = [
            (json.loads(request.body)["messages"][0]["content"], offered(request))
            for request in upstream.requests
        ]
        assert [tools for user, tools in shown if user == f"{OLD} {OLD} {BOTH}"] == [[BOTH, OLD]] * 4
        assert [tools for user, tools in shown if user == f"{NEW} {OLD}"] == [[BOTH, NEW]] * 3


async def test_a_client_cannot_choose_what_is_gone() -> None:
    """A client that names a removed tool in a header gets a 400; it can name the new tool."""
    async with changing(tools={"inject": False}) as (proxy, provider, upstream):
        assert said(await proxy.ask(ask(OLD), {"x-toolrelay-tools": OLD})) == f"this was {OLD}"
        await change(proxy, provider, changing_tool(NEW))
        gone = await proxy.ask(ask(OLD), {"x-toolrelay-tools": OLD})
        assert (gone.status, gone.error["param"]) == (400, "x-toolrelay-tools")
        assert OLD in gone.error["message"]
        assert said(await proxy.ask(ask(NEW), {"x-toolrelay-tools": NEW})) == f"this was {NEW}"
        assert offered(upstream.requests[-1]) == [NEW]


async def test_administrators_and_metrics_see_the_new_tools() -> None:
    """/admin/tools lists the current tools; /metrics counts calls by tool, also of a removed tool."""
    keys = {"alice": declared(ALICE, admin=True)}
    async with changing(keys=keys) as (proxy, provider, _):

        async def listed() -> dict[str, Any]:
            rows = (await proxy.get("/admin/tools", bearer(ALICE))).json["data"]
            return {row["id"]: row["withheld"] for row in rows if row["id"].startswith("toy__")}

        assert await listed() == {OLD: None, BOTH: None}
        provider.go_on.clear()
        run = asyncio.create_task(proxy.ask(ask(OLD, OLD), bearer(ALICE)))
        await until(lambda: provider.called == [OLD])
        await change(proxy, provider, changing_tool(NEW), changing_tool(LINKED, connection="acme"))
        assert await listed() == {NEW: None, LINKED: "credentials.acme is missing"}
        provider.go_on.set()
        await run
        await proxy.ask(ask(NEW, "toy__never"), bearer(ALICE))
        text = (await proxy.get("/metrics", bearer(ALICE))).body.decode()
        counted = {
            line.partition('tool="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("toolrelay_tool_calls_total{")
        }
        assert counted == {OLD: 2, NEW: 1, "other": 1}


async def test_policies_hold_for_what_comes() -> None:
    """Rule T2: the operator's policy and a key's own list also decide on a tool that appears later."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB, tools=("*__both",))}
    policy = {"approve_effects": ("external_side_effect",)}
    async with changing(keys=keys, policy=policy, allow=(OLD, NEW, BOTH, ACTS, "*__linked")) as (
        proxy,
        provider,
        upstream,
    ):
        for key in (ALICE, BOB):
            await proxy.ask(ask(), bearer(key))
        await change(
            proxy,
            provider,
            *(changing_tool(name) for name in (NEW, BOTH, "toy__unlisted")),
            changing_tool(ACTS, ToolEffect.EXTERNAL_SIDE_EFFECT),
            changing_tool(LINKED, connection="acme"),
        )
        words = said(await proxy.ask(ask(ACTS, "toy__unlisted", LINKED, NEW), bearer(ALICE))).split(" / ")
        assert offered(upstream.requests[-1]) == [BOTH, NEW]
        codes = [json.loads(each)["error_code"] for each in words[:3]]
        assert codes == ["approval_required", "policy_denied", "policy_denied"]
        denied = said(await proxy.ask(ask(NEW, BOTH), bearer(BOB))).split(" / ")
        assert offered(upstream.requests[-1]) == [BOTH]
        assert json.loads(denied[0])["error_code"] == "policy_denied"
        assert denied[1] == f"this was {BOTH}"
        assert provider.called == [NEW, BOTH]


async def test_what_a_stranger_said_guards_what_comes() -> None:
    """Rule T2: after an untrusted result, a tool with effects is withheld even if it is new."""
    async with changing() as (proxy, provider, upstream):
        await proxy.ask(ask(OLD))
        await change(
            proxy,
            provider,
            changing_tool(NEW, untrusted_output=True),
            changing_tool(ACTS, ToolEffect.EXTERNAL_SIDE_EFFECT),
        )
        _, refused = said(await proxy.ask(ask(NEW, ACTS))).split(" / ")
        assert json.loads(refused)["error_code"] == "approval_required"
        assert [offered(request) for request in upstream.requests[-3:]] == [[ACTS, NEW], [NEW], [NEW]]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ((changing_tool(NEW), changing_tool(NEW)), f"tool {NEW}: two tools have this id"),
        ((changing_tool("core__calculate"),), 'its id does not begin with "toy__"'),
        ((changing_tool(NEW, redaction=None),), "redaction_missing"),
        ((changing_tool(NEW, schema={"type": "string"}),), 'parameters.type: must be "object"'),
        ((changing_tool(NEW, ToolEffect.STATE_CHANGE, cache_ttl_s=5.0),), "cache_ttl_s is for read_only"),
    ],
    ids=["twice", "foreign", "redaction", "schema", "cached"],
)
async def test_tools_that_would_stop_the_start_change_nothing(specs: tuple[Any, ...], words: str) -> None:
    """Rules T4, T5, T8: the proxy refuses invalid new tools by name and keeps serving the old ones."""
    policy = {"arguments": {OLD: {"place": {"max_length": 3}}}}
    async with changing(allow=(OLD, "toy__*"), policy=policy) as (proxy, provider, upstream):
        before = proxy.services.catalog
        with pytest.raises(ConfigError, match=words):
            await change(proxy, provider, *specs)
        assert proxy.services.catalog is before
        assert said(await proxy.ask(ask(OLD))) == f"this was {OLD}"
        assert offered(upstream.requests[-1]) == [BOTH, OLD]
        # An argument bound for a tool that is missing for a while is no error.
        await change(proxy, provider, changing_tool(NEW))
        assert said(await proxy.ask(ask(NEW))) == f"this was {NEW}"


@pytest.mark.parametrize(
    "changed",
    [changing_tool(OLD, connection="acme"), changing_tool(OLD, arguments=("other",))],
    ids=["connection", "bound"],
)
async def test_a_new_tool_that_does_not_fit_is_left_out(changed: ToolSpec) -> None:
    """A changed tool without its credentials or its bounded argument is withheld; the others change."""
    policy = {"arguments": {OLD: {"place": {"max_length": 3}}}}
    async with changing(allow=(OLD, "toy__*"), policy=policy) as (proxy, provider, upstream):
        await change(proxy, provider, changed, changing_tool(NEW))
        assert said(await proxy.ask(ask(NEW))) == f"this was {NEW}"
        assert offered(upstream.requests[-1]) == [NEW]


async def test_nothing_is_left_of_old_tools_when_their_last_run_has_ended() -> None:
    """Old tools stay in memory while a run uses them; then they are freed, and no cache keeps them."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB, tools=("toy__*",))}
    async with changing(keys=keys) as (proxy, provider, _):
        schemas = [weakref.ref(spec.parameters) for spec in provider.specs]
        catalog = weakref.ref(proxy.services.catalog)
        for key in (ALICE, BOB):  # Fill every cache that is computed from tools.
            await proxy.ask(ask(OLD), bearer(key))
        provider.go_on.clear()
        run = asyncio.create_task(proxy.ask(ask(OLD, BOTH), bearer(ALICE)))
        await until(lambda: len(provider.called) == 3)
        await change(proxy, provider, changing_tool(NEW))
        gc.collect()
        assert catalog() is not None
        assert all(schema() is not None for schema in schemas)
        provider.go_on.set()
        assert said(await run) == f"this was {OLD} / this was {BOTH}"

        def freed() -> bool:
            gc.collect()
            return catalog() is None and all(schema() is None for schema in schemas)

        await until(freed)
