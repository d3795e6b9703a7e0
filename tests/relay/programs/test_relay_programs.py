"""Programs: one call of a model runs code that calls tools, each through the runner."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents_rig import Asked, Models, Turn
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running

from proxy.base.events import RUN_PROGRAM
from proxy.records.rows import RunRecord
from proxy.store.base import RunDetail, RunFilter

ECHO, BUY = "probe_tools__echo", "probe_tools__buy"
QUESTION: Any = {"role": "user", "content": "Find it out."}


def writes(code: str) -> Any:
    """A model that runs one program and repeats its result."""

    def say(asked: Asked) -> Turn:
        return Turn(asked.results[0]) if asked.results else Turn(calls=[(RUN_PROGRAM, {"code": code})])

    return say


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy with programs before an upstream of these models."""
    tools = {"programs": "on", **config.pop("tools", {})}
    config = {"allow": ("probe_tools__*",), **config}
    async with (
        RawUpstream(models) as upstream,
        running(make_config(upstream.url, modules=("probe_tools",), tools=tools, **config)) as proxy,
    ):
        yield proxy


async def said(proxy: Proxy, **more: Any) -> str:
    """The text of the answer to the question."""
    answer = await proxy.ask({"model": "m", "messages": [QUESTION], **more})
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


async def runs_of(proxy: Proxy) -> tuple[RunDetail, list[RunDetail]]:
    """The client's run, and the programs' runs in order."""
    store = proxy.services.store
    found = [await store.get_run(run.id) for run in reversed(await store.list_runs(RunFilter()))]
    details = [one for one in found if one is not None]
    (root,) = [one for one in details if not one.run.parent_run]
    return root, [one for one in details if one.run.parent_run]


async def test_a_program_calls_tools_and_only_its_value_reaches_the_model(watch: Watch) -> None:
    """Several calls at once run for one call of the model, which reads one small result."""
    code = (
        "import asyncio\n"
        f"found = await asyncio.gather(*[{ECHO}(text=str(n)) for n in range(5)])\n"
        "sum(int(one['echo']) for one in found)"
    )
    models = Models({"m": writes(code)})
    async with served(models) as proxy:
        assert await said(proxy) == "10"
        root, (program,) = await runs_of(proxy)
    assert watch.started == ["echo"] * 5
    assert RUN_PROGRAM in models.asked["m"][0].tools
    assert ECHO not in models.asked["m"][0].tools
    assert "hidden-output" not in models.asked["m"][1].text
    (call,) = root.invocations
    assert (program.run.parent_run, program.run.parent_call) == (root.run.id, call.id)
    assert (program.run.agent, program.run.status, program.run.tool_calls) == (RUN_PROGRAM, "completed", 5)
    assert [row.tool for row in program.invocations] == [ECHO] * 5
    assert sorted(row.arguments_redacted["text"] for row in program.invocations) == list("01234")
    assert isinstance(program.run, RunRecord)


async def test_the_model_is_shown_typed_stubs() -> None:
    """The description of the argument declares each allowed tool, as Python."""
    models = Models({"m": writes("1")})
    async with served(models) as proxy:
        await said(proxy)
    (tool,) = [
        one["function"]
        for one in models.asked["m"][0].body["tools"]
        if one["function"]["name"] == RUN_PROGRAM
    ]
    shown = tool["parameters"]["properties"]["code"]["description"]
    assert f"async def {ECHO}(*, text: str) -> Any:\n    # Say the text again." in shown
    assert "async def probe_tools__unlock(*, pin: str) -> Any:" in shown
    assert len(tool["description"]) < 1024


async def test_what_is_printed_comes_before_the_value(watch: Watch) -> None:
    """The model reads what the program prints."""
    models = Models({"m": writes(f"print((await {BUY}(what='tea'))['what'])")})
    async with served(models) as proxy:
        assert json.loads(await said(proxy)) == {"printed": "tea\n", "value": None}
    assert watch.started == ["buy"]
