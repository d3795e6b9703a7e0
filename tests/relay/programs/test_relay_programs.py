"""Programs: one call of a model runs code that calls tools, each through the runner."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from probe_tools import Watch
from raw_upstream import RawUpstream
from rich.console import Console
from running_proxy import Proxy, make_config, running

from proxy.api.admin.json_output import detail_to_json
from proxy.base.errors import ConfigError
from proxy.base.events import RUN_PROGRAM
from proxy.commands.runs.text_output import render_detail
from proxy.records.rows import RunRecord
from proxy.store.base import RunDetail, RunFilter
from proxy.tools.programs.engine import Binding, ProgramCall, ProgramLimits, Step
from proxy.tools.programs.monty import MontyEngine, check_installed

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


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("[float('nan'), 1]", "[NaN, 1]"),
        ("{'most': 2**64 + 1}", '{"most": 18446744073709551617}'),
        ("def _finish(value):\n    return 'no JSON'", "no JSON"),
        ("a = 1\rb = 2\r\na + b", "3"),
    ],
)
async def test_a_value_that_json_does_not_hold_is_told_as_it_is(code: str, text: str) -> None:
    """Whatever a program hands out reaches the model unchanged, and is no fault of the proxy."""
    models = Models({"m": writes(code)})
    async with served(models) as proxy:
        assert await said(proxy) == text


async def test_one_caller_does_not_take_all_places() -> None:
    """Of many programs of one caller four run at the same time, so places are left for others."""
    calls = [(RUN_PROGRAM, {"code": json.dumps([[ECHO, str(number)]])}) for number in range(6)]
    models = Models({"m": lambda asked: Turn("Done.") if asked.results else Turn(calls=calls)})
    async with served(models) as proxy:
        runs: Any = proxy.services.links.programs
        engine = runs._run._engine = HeldEngine()
        asking = asyncio.create_task(said(proxy))
        begun = 0
        while begun < len(calls):
            found = await proxy.services.store.list_runs(RunFilter())
            begun = sum(bool(run.parent_run) for run in found)
            await asyncio.sleep(0.01)
        assert engine.opened == 4
        engine.go_on.set()
        assert await asking == "Done."
        assert engine.opened == 6


async def test_a_program_calls_only_what_its_request_offers(watch: Watch) -> None:
    """A tool that policy does not allow has no name in a program, also not below the names."""
    for code in (f"await {BUY}(what='tea')", f"await _call('{BUY}', '{{}}')"):
        models = Models({"m": writes(code)})
        async with served(models, allow=(ECHO,)) as proxy:
            answer = await said(proxy)
        assert "is not defined" in answer or "no tool of this name" in answer
    assert watch.started == []


async def test_calls_of_programs_use_the_budget_of_the_run(watch: Watch) -> None:
    """A program gets no more calls than ``tools.max_calls`` leaves, and reads why."""
    code = f"said = []\nfor n in range(9):\n    said.append((await {ECHO}(text=str(n)))['echo'])\nsaid"
    models = Models({"m": writes(code)})
    async with served(models, tools={"max_calls": 4}) as proxy:
        assert "budget_exhausted" in await said(proxy)
    assert watch.started == ["echo"] * 3


@pytest.mark.parametrize(("above", "offered"), [(3, True), (1000, False)])
async def test_auto_offers_programs_where_the_model_would_search(
    above: int, offered: bool, watch: Watch
) -> None:
    """With so many tools that a model would search, it writes programs, whatever its client declares."""
    models = Models({"m": lambda asked: Turn(f"{RUN_PROGRAM in asked.tools} {ECHO in asked.tools}")})
    async with served(models, tools={"programs": "auto", "search_above_tools": above}) as proxy:
        assert await said(proxy) == f"{offered} {not offered}"
    models = Models({"m": writes(f"(await {ECHO}(text='a'))['echo']")})
    async with served(models, tools={"programs": "auto", "search_above_tools": 3}) as proxy:
        assert await said(proxy) == "a"
    assert watch.started == ["echo"]


async def test_a_program_that_goes_on_with_refused_calls_is_stopped(watch: Watch) -> None:
    """Each refusal is a row of the record, so a loop of them ends soon, and not with the program's time."""
    code = f"while True:\n    try:\n        await {ECHO}(text='a')\n    except RuntimeError:\n        pass"
    async with served(Models({"m": writes(code)}), tools={"max_calls": 4}) as proxy:
        assert "went on with calls that were refused" in await said(proxy)
        _, (program,) = await runs_of(proxy)
    assert watch.started == ["echo"] * 3
    assert len(program.invocations) < 200


async def test_calls_of_programs_cost_their_price(watch: Watch) -> None:
    """They count in ``tools.max_cost``, in the program's run and in the caller's limits."""
    code = f"for n in range(9):\n    await {ECHO}(text=str(n))"
    models = Models({"m": writes(code)})
    priced: dict[str, Any] = {
        "tools": {"prices": {ECHO: 0.01}, "max_cost": 0.03},
        "limits": {"cost": ["0.02/hour"]},
        "prices": {"m": {"input": 0.0}},
    }
    async with served(models, **priced) as proxy:
        answer = await proxy.ask({"model": "m", "messages": [QUESTION]})
        _, (program,) = await runs_of(proxy)
        again = await proxy.ask({"model": "m", "messages": [QUESTION]})
    assert answer.status == 200
    assert watch.started == ["echo"] * 3
    assert program.invocations[-1].decision == "refused: tools.max_cost"
    assert program.run.cost == 30_000_000
    assert again.status == 429


async def test_private_arguments_are_in_no_row(watch: Watch) -> None:
    """Neither the row of the program nor those of its calls show a private argument; the sealed text does."""
    code = "(await probe_tools__unlock(pin='4711-secret'))['ok']"
    models = Models({"m": writes(code)})
    async with served(models) as proxy:
        assert await said(proxy) == "true"
        root, (program,) = await runs_of(proxy)
    assert "4711" not in str([*root.invocations, *program.invocations])


async def test_an_untrusted_result_makes_the_next_step_ask(watch: Watch) -> None:
    """Calls with effects after a stranger's words need an approval, which nobody can give here."""
    code = f"text = await probe_tools__page()\nawait {BUY}(what=text)"
    models = Models({"m": writes(code)})
    async with served(models, approvals={"enabled": False}) as proxy:
        assert "approval_required" in await said(proxy)
    assert watch.started == []


@pytest.mark.parametrize("code", ["await probe_tools__page()", "raise ValueError(await probe_tools__page())"])
async def test_what_a_program_says_is_as_untrusted_as_what_it_has_read(code: str, watch: Watch) -> None:
    """After a value or an error with a stranger's words, the model's own next call needs an approval."""

    def say(asked: Asked) -> Turn:
        if len(asked.results) > 1:
            return Turn(asked.results[1])
        return Turn(calls=[(BUY, {"what": "milk"}) if asked.results else (RUN_PROGRAM, {"code": code})])

    models = Models({"m": say})
    async with served(models, approvals={"enabled": False}) as proxy:
        assert "approval" in await said(proxy)
    assert watch.started == []


async def test_runs_show_has_the_calls_of_a_program_below_it(watch: Watch) -> None:
    """The time line of the run has the program's run, and below it each of its calls."""
    models = Models({"m": writes(f"await {ECHO}(text='a')\nawait {BUY}(what='b')")})
    async with served(models) as proxy:
        await said(proxy)
        root, (program,) = await runs_of(proxy)
    console = Console(width=200, record=True, quiet=False)
    render_detail(console, root)
    text = console.export_text()
    assert f"{program.run.id} (program)" in text
    assert text.index(RUN_PROGRAM) < text.index("      " + ECHO) < text.index("      " + BUY)
    shown_as_json = detail_to_json(root)
    assert [row["tool"] for row in shown_as_json["inner_calls"]] == [ECHO, BUY]
    assert shown_as_json["agent_runs"][0]["parent_call"] == root.invocations[0].id
    own = Console(width=200, record=True)
    render_detail(own, program, content=True)
    shown = own.export_text()
    assert "program" in shown
    assert f"await {BUY}" in shown


async def test_the_tutorial_runs() -> None:
    """The program of the documentation runs on tools that answer as the real ones do."""
    page = (Path(__file__).parents[3] / "docs" / "programs.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    session = MontyEngine(ProgramLimits()).session()
    try:
        step = await session.start(code, {"core__get_weather": Binding("core__get_weather", ("location",))})
        degrees = {"Berlin": 4, "Lisbon": 17, "Oslo": -2}
        cities = {call.id: json.loads(call.arguments)["location"] for call in step.calls}
        results = {
            id_: json.dumps({"ok": True, "value": {"location": city, "temperature_c": degrees[city]}})
            for id_, city in cities.items()
        }
        done = await session.resume(results)
    finally:
        await session.close()
    assert (done.printed, done.result) == ("Lisbon\n", "null")


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the fault names the setting, the library and the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as fault:
        check_installed()
    assert str(fault.value).startswith("tools.programs: needs pydantic-monty, which is not installed")
    assert "pip install '.[programs]'" in str(fault.value)


async def test_other_engines_fit_the_port(watch: Watch) -> None:
    """The steps of a program need nothing of an engine but its port: this one reads calls from JSON."""
    models = Models({"m": writes(json.dumps([[ECHO, "a"], [BUY, "b"]]))})
    async with served(models) as proxy:
        runs: Any = proxy.services.links.programs
        runs._run._engine = ListEngine()
        assert await said(proxy) == '["ran","ran"]'
        _, (program,) = await runs_of(proxy)
    assert watch.started == ["echo", "buy"]
    assert [row.turn for row in program.invocations] == [1, 2]


class ListEngine:
    """An engine whose programs are lists of calls, made one after the other."""

    def session(self) -> "ListSession":
        """Return a session."""
        return ListSession()


class ListSession:
    """A program that is a list."""

    def __init__(self) -> None:
        self._calls: list[list[str]] = []
        self._done = 0

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Begin with the first call, or go on from a state."""
        self._calls, self._done = json.loads(state or json.dumps([json.loads(code), 0]))
        return self._next()

    def _next(self) -> Step:
        if self._done == len(self._calls):
            return Step(result=json.dumps(["ran"] * self._done))
        tool, given = self._calls[self._done]
        name = "text" if tool == ECHO else "what"
        return Step([ProgramCall(self._done, tool, json.dumps({name: given}))])

    async def resume(self, results: Mapping[int, str]) -> Step:
        """Go on with the next call."""
        assert json.loads(results[self._done])["ok"]
        self._done += 1
        return self._next()

    async def dump(self) -> bytes:
        """Return the list, and how far it has come."""
        return json.dumps([self._calls, self._done]).encode()

    async def close(self) -> None:
        """Do nothing: there is no process."""


class HeldEngine(ListEngine):
    """An engine whose programs begin when the test lets them; it counts them."""

    def __init__(self) -> None:
        self.opened = 0
        self.go_on = asyncio.Event()

    def session(self) -> "ListSession":
        """Count a session and return it."""
        self.opened += 1
        return HeldSession(self.go_on)


class HeldSession(ListSession):
    """A program that waits for the test."""

    def __init__(self, go_on: asyncio.Event) -> None:
        super().__init__()
        self._go_on = go_on

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Wait, then begin."""
        await self._go_on.wait()
        return await super().start(code, tools, state)
