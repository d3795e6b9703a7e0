"""Bodies of Messages with programs that are odd: other types, other orders, names that are taken twice."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from code_execution_rig import (
    BUY,
    CODE_TOOL,
    HEADERS,
    MESSAGES,
    QUERY,
    QUESTION,
    TWO_STEPS,
    ask,
    body,
    paused,
    results_of,
    said,
    served,
    sold,
    writes,
)
from probe_tools import Watch

from proxy.base.events import ToolDefinition
from proxy.tools.programs.stubs import bindings_of, type_of


@pytest.mark.parametrize("odd", ["text", 1, None, []])
async def test_a_block_that_is_no_object_is_no_fault_of_the_server(odd: Any) -> None:
    """An answer that the client has changed is refused, whatever stands beside its blocks."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        first, talk = await paused(proxy)
        talk[1] = {"role": "assistant", "content": [odd, *first["content"], {"type": "text", "text": "New."}]}
        error = (await ask(proxy, *talk, status=400, container=first["container"]["id"])).json["error"]
    assert error["type"] == "invalid_request_error"


async def test_a_message_behind_the_results_is_refused() -> None:
    """It is other content, as in the message of the results: the program would not go on."""
    models = Models({"m": writes(TWO_STEPS)})
    async with served(models) as proxy:
        first, talk = await paused(proxy)
        box = first["container"]["id"]
        error = (await ask(proxy, *talk, QUESTION, status=400, container=box)).json["error"]
        assert (await ask(proxy, *talk, container=box)).json["stop_reason"] == "tool_use"
    assert error["message"].startswith("messages[3]: while a program waits, send the results of its calls")
    assert len(models.asked["m"]) == 1


async def test_a_type_of_null_is_a_function() -> None:
    """The SDK's ``ToolParam.type`` may be ``None``, also for what programs call."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        first = (await ask(proxy, QUESTION, tools=[CODE_TOOL, {**QUERY, "type": None}])).json
    assert first["content"][1]["name"] == QUERY["name"]


@pytest.mark.parametrize("name", [[], {}, 5])
async def test_a_choice_that_is_no_name_is_refused(name: Any) -> None:
    """The error says which field is wrong."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        choice = {"type": "tool", "name": name}
        error = (await ask(proxy, QUESTION, status=400, tool_choice=choice)).json["error"]
    assert error["type"] == "invalid_request_error"
    assert "tool_choice" in error["message"]


async def test_a_server_tool_does_not_run_in_place_of_a_function_of_the_client(watch: Watch) -> None:
    """The model reads the client's declaration: a call of this name does not run the server's tool."""

    def say(asked: Asked) -> Turn:
        return Turn("Done.") if asked.results else Turn(calls=[(BUY, {"what": "tea"})])

    models = Models({"m": say})
    async with served(models) as proxy:
        await ask(proxy, QUESTION, tools=[CODE_TOOL, {**QUERY, "name": BUY}])
    assert watch.started == []
    assert '"ok":false' in models.asked["m"][1].results[0]


async def test_two_requests_at_once_make_the_effect_once(watch: Watch) -> None:
    """A client that sends the results twice before it has an answer buys once."""
    code = f"await query_sales(region='West')\nawait {BUY}(what='tea')\n'bought'"
    async with served(Models({"m": writes(code)})) as proxy:
        first = (await ask(proxy, QUESTION)).json
        asked = body(QUESTION, said(first), results_of(first, sold), container=first["container"]["id"])
        await asyncio.gather(*(proxy.ask(asked, HEADERS, path=MESSAGES) for _ in range(2)))
    assert watch.started == ["buy"]


async def test_a_second_declaration_is_refused() -> None:
    """Under another name as well: each would be read with all of the tools."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        tools = [CODE_TOOL, QUERY, {"type": "code_execution_20250825", "name": "other"}]
        error = (await ask(proxy, QUESTION, status=400, tools=tools)).json["error"]
    assert error["message"].startswith("tools[2]: tools[0] declares code_execution already.")


def calls_of(function: Callable[[], Any]) -> int:
    """How many frames a function takes."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_types_that_repeat_do_not_multiply() -> None:
    """A list of types that names one kind often, at each depth, is read once for each depth."""
    schema: dict[str, Any] = {}
    inner = schema
    for _ in range(5):
        inner["type"], inner["items"] = ["array"] * 12, {}
        inner = inner["items"]
    assert calls_of(lambda: type_of(schema)) < 50


def test_names_that_fall_together_are_told_apart_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python allows ``_`` alone of these signs, so that all have the same name; none is tried twice."""
    tried = 0

    class Name(str):
        """A name that counts how often it is made longer."""

        __slots__ = ()

        def __add__(self, other: str) -> "Name":
            nonlocal tried
            tried += 1
            return Name(str(self) + other)

    monkeypatch.setattr("proxy.tools.programs.stubs.identifier", lambda name: Name("f"))
    tools = [ToolDefinition(f"{place:03}", "", {}) for place in range(64)]
    names = bindings_of(tools)
    assert {name: bound.tool for name, bound in names.items()} == {
        f"f{'_' * place}": tool.name for place, tool in enumerate(tools)
    }
    assert tried < len(tools)
