"""OpenAI's programmatic tool calling on a Chat model, read with OpenAI's client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Models
from openai import BadRequestError
from openai.types.responses import Response
from probe_tools import WATCH, Watch
from programmatic_rig import (
    KIND,
    ONE_BY_ONE,
    QUESTION,
    TOOLS,
    answer,
    client_of,
    conversation,
    function,
    outputs,
    sent_back,
    served,
    units,
    writes,
)

from proxy.config.secret import Secret

ECHO, BUY = "probe_tools__echo", "probe_tools__buy"

both = pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])


def kinds(response: Response) -> list[str]:
    """The types of the items of an answer, without the encrypted turn that a client may get to carry."""
    return [item.type for item in response.output if item.type != "reasoning"]


@both
async def test_a_program_calls_functions_of_its_client_one_after_the_other(stream: bool) -> None:
    """Each answer has the calls that the program waits for, the last one its output and the model's message.

    An answer for which no model was asked costs no tokens.
    """
    models = Models({"m": writes(ONE_BY_ONE)})
    async with served(models) as proxy, client_of(proxy) as client:
        items, answers = await conversation(client, stream=stream)
        again = [*items, {"role": "user", "content": "And again?"}]
        last = await answer(client, again, stream=stream)
    assert [kinds(one) for one in answers] == [
        ["program", "function_call"],
        ["function_call"],
        ["program_output", "message"],
    ]
    program: Any = answers[0].output[0]
    calls: list[Any] = [answers[0].output[1], answers[1].output[0]]
    output: Any = answers[2].output[0]
    assert program.code == ONE_BY_ONE
    assert program.fingerprint
    assert [call.name for call in calls] == ["get_inventory", "get_demand"]
    assert {call.caller.caller_id for call in calls} == {program.call_id} == {output.call_id}
    assert {call.status for call in calls} == {"in_progress"}
    assert output.result == '{"inventory":{"units":42},"demand":{"units":31}}'
    assert output.status == "completed"
    assert answers[2].output_text == f"Read: {output.result}"
    assert answers[1].usage is not None
    assert answers[1].usage.total_tokens == 0
    assert models.count == 3
    assert last.output_text == f"Read: {output.result}"
    asked = models.asked["m"]
    assert asked[-1].results == [output.result]
    assert "get_demand" in asked[0].tools
    assert "get_inventory" not in asked[0].tools
    assert KIND in asked[0].tools
    assert "caller" not in asked[-1].text
    assert units("get_demand", {"sku": "sku_123"}) == {"units": 31}
    assert QUESTION in items


async def test_calls_side_by_side_and_server_tools_run_in_one_program(watch: Watch) -> None:
    """A program calls a server tool, and two functions of the client at once, which come in one answer."""
    code = f"""
    const said = await tools.{ECHO}({{text: "sku_123"}});
    const asked = ["get_inventory", "get_demand"].map(name => tools[name]({{sku: said.echo}}));
    const found = await Promise.all(asked);
    for (const one of found) text(one.units);
    """
    async with served(Models({"m": writes(code)})) as proxy, client_of(proxy) as client:
        _, answers = await conversation(client, stream=True)
    assert [kinds(one) for one in answers] == [
        ["program", "function_call", "function_call"],
        ["program_output", "message"],
    ]
    assert answers[-1].output_text == "Read: 42\n31"
    assert watch.started == ["echo"]


@both
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("throw new Error('no stock')", "no stock"),
        ("await tools.probe_tools__buy({what: 'tea'})", "is not a function"),
        ("await tools.get_secret({})", "is not a function"),
        ("await new Promise(() => {})", "waits for something that never comes"),
        ("for (;;);", "computed for too long"),
    ],
)
async def test_a_program_that_fails_is_incomplete(code: str, said: str, stream: bool, watch: Watch) -> None:
    """Its output says what went wrong, and the model reads the same."""
    config: dict[str, Any] = {"allow": (ECHO,), "tools": {"programs_compute_s": 0.5}}
    async with served(Models({"m": writes(code)}), **config) as proxy, client_of(proxy) as client:
        response = await answer(client, [QUESTION], stream=stream)
    assert kinds(response) == ["program", "program_output", "message"]
    output: Any = response.output[1]
    assert output.status == "incomplete"
    assert said in output.result
    assert said in response.output_text
    assert watch.started == []


async def test_a_failed_function_throws_in_the_program() -> None:
    """A text that is no JSON arrives as it is, also in a list of parts."""
    code = "text(await tools.get_demand({sku: 'sku_123'}))"
    async with served(Models({"m": writes(code)})) as proxy, client_of(proxy) as client:
        first = await answer(client, [QUESTION], stream=False)
        (made,) = outputs(first, units)
        made["output"] = [{"type": "input_text", "text": "access denied"}]
        last = await answer(client, [QUESTION, *sent_back(first), made], stream=False)
    assert last.output_text == "Read: access denied"


def _changed(items: list[Any], kind: str, **changes: Any) -> list[Any]:
    return [{**item, **changes} if item.get("type") == kind else item for item in items]


CHANGES: list[tuple[Callable[[list[Any]], list[Any]], str]] = [
    (lambda items: _changed(items, "program", fingerprint="0" * 64), "fingerprint"),
    (lambda items: _changed(items, "program", code="text(1)"), "fingerprint"),
    (lambda items: [item for item in items if item.get("type") != "program"], "fingerprint"),
    (lambda items: [*items, {"role": "user", "content": "Hurry!"}], "nothing after them"),
    (lambda items: items[:-1], "no output for the calls"),
    (lambda items: [*items, items[-1]], "another output already"),
    (
        lambda items: _changed(
            items, "function_call_output", caller={"type": "program", "caller_id": "call_other"}
        ),
        "copy it from the function_call",
    ),
    (lambda items: [{"role": "user", "content": "Something else."}, *items[1:]], "no program of yours waits"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
async def test_what_does_not_belong_to_the_program_is_refused(
    change: Callable[[list[Any]], list[Any]], why: str
) -> None:
    """A 400 says what is wrong, no model is asked, and the program goes on with the right request."""
    models = Models({"m": writes("text(await tools.get_demand({sku: 'sku_123'}))")})
    async with served(models) as proxy, client_of(proxy) as client:
        first = await answer(client, [QUESTION], stream=False)
        items = [QUESTION, *sent_back(first), *outputs(first, units)]
        with pytest.raises(BadRequestError) as refused:
            await answer(client, change(items), stream=False)
        assert why in str(refused.value)
        assert models.count == 1
        assert (await answer(client, items, stream=False)).output_text == 'Read: {"units":31}'


async def test_another_caller_cannot_go_on_with_a_program() -> None:
    """The fingerprint is its caller's, and so is the program."""
    keys = {name: {"secret": Secret(name, f"sk-{name}-0123456789abcdef")} for name in ("ann", "bob")}
    models = Models({"m": writes("text(await tools.get_demand({sku: 'sku_123'}))")})
    async with served(models, keys=keys) as proxy, client_of(proxy, "sk-ann-0123456789abcdef") as ann:
        first = await answer(ann, [QUESTION], stream=False)
        items = [QUESTION, *sent_back(first), *outputs(first, units)]
        async with client_of(proxy, "sk-bob-0123456789abcdef") as bob:
            with pytest.raises(BadRequestError) as refused:
                await answer(bob, items, stream=False)
        assert "fingerprint" in str(refused.value)
        assert (await answer(ann, items, stream=False)).output_text == 'Read: {"units":31}'


async def test_a_program_goes_on_in_another_process(tmp_path: Path) -> None:
    """The record has its state, so it runs again up to where it waited, without a call twice."""
    code = f"""
    const bought = await tools.{BUY}({{what: "tea " + Math.random() + Date.now()}});
    const first = await tools.get_inventory({{sku: "sku_123"}});
    text(bought.what.slice(0, 3) + first.units + (await tools.get_demand({{sku: "sku_123"}})).units);
    """
    models = Models({"m": writes(code)})
    items, WATCH.started = [QUESTION], []
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    for step in range(3):
        async with served(models, store=store) as proxy, client_of(proxy) as client:
            response = await answer(client, items, stream=bool(step % 2), store=True)
        items += [*sent_back(response), *outputs(response, units)]
    assert response.output_text == "Read: tea4231"
    assert WATCH.started == ["buy"]


async def test_a_declaration_that_cannot_be_served_is_refused() -> None:
    """A 400 names the field."""
    wrong: list[tuple[Any, Any, str]] = [
        ([{"type": KIND}, {**function("f"), "allowed_callers": ["me"]}], "auto", "tools[1].allowed_callers"),
        (
            [{"type": KIND}, {"type": "custom", "name": "f", "allowed_callers": ["programmatic"]}],
            "auto",
            "tools[1]",
        ),
        (TOOLS, {"type": "function", "name": "get_inventory"}, "tool_choice"),
    ]
    async with served(Models({"m": writes("1")})) as proxy, client_of(proxy) as client:
        for tools, choice, why in wrong:
            with pytest.raises(BadRequestError) as refused:
                await answer(client, [QUESTION], stream=False, tools=tools, tool_choice=choice)
            assert why in str(refused.value), why
        chosen = await answer(client, [QUESTION], stream=False, tool_choice={"type": KIND})
        assert kinds(chosen) == ["program", "program_output", "message"]


async def test_the_model_sees_an_image_that_a_program_puts_out() -> None:
    """It comes beside the result, and the client reads the texts alone."""
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    models = Models({"m": writes(f"text('A chart.'); image('data:image/png;base64,{png}')")})
    async with served(models) as proxy, client_of(proxy) as client:
        response = await answer(client, [QUESTION], stream=False)
    output: Any = response.output[1]
    assert output.result == "A chart."
    assert png in models.asked["m"][-1].text


async def test_calls_of_functions_of_the_client_count() -> None:
    """A program makes no more of them than tools.max_calls leaves, and reads why."""
    code = """
    for (let n = 0; n < 9; n++) {
      try { await tools.get_demand({sku: "sku_123"}) } catch (error) { text(n + error.message); break }
    }
    """
    config: dict[str, Any] = {"tools": {"max_calls": 3}}
    async with served(Models({"m": writes(code)}), **config) as proxy, client_of(proxy) as client:
        first = await answer(client, [QUESTION], stream=False)
        made = "await Promise.all(Array.from({length: 9}, () => tools.get_demand({sku: 'sku_123'})))"
        assert kinds(first) == ["program", "function_call"]
    async with served(Models({"m": writes(made)}), **config) as proxy, client_of(proxy) as client:
        first = await answer(client, [QUESTION], stream=False)
        assert kinds(first) == ["program", "function_call", "function_call"]
        items = [QUESTION, *sent_back(first), *outputs(first, units)]
        assert "budget_exhausted" in (await answer(client, items, stream=False)).output_text
