"""Upstreams that refuse a tool of the proxy, or one tool too many: the client's own request succeeds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from chat_script import content, finish, payloads_of, role, stream, text_of
from looping import ASK, ECHO, TIME, called, looping
from raw_upstream import RawRequest, Step, whole

SAID: Final = stream(role(), content("hi"), finish())
REPLY: Final = whole(
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)
STRICT: Final = """
from proxy.tools import Redaction, tool

@tool(effect="read_only", redaction=Redaction(), strict=True)
async def look(what: str) -> str:
    \"\"\"Look at something.\"\"\"
    return what
"""
ODD: Final = """
from proxy.tools import Redaction, tool

ONE = {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "null"}]}}}

@tool(description="odd", effect="read_only", redaction=Redaction(), parameters=ONE)
async def look(arguments: dict) -> str:
    return "x"
"""
BUY: Final = "probe_tools__buy"
WORDS: Final[dict[str, Callable[[str, int], str]]] = {
    "openai": lambda name, at: f"Invalid schema for function '{name}': array schema missing items.",
    "anthropic": lambda name, at: f"tools.{at}.custom.input_schema.properties: Property keys should match",
    "place": lambda name, at: f"Invalid value at tools[{at}].function.parameters",
    "google": lambda name, at: f"tools[0].function_declarations[{at}].parameters: missing field",
    "pydantic": lambda name, at: f"('body', 'tools', {at}, 'function', 'parameters'): invalid",
}


def refusal(message: str, status: str = "400 Bad Request") -> list[Step]:
    """A refusal in OpenAI's form."""
    return whole(json.dumps({"error": {"message": message}}).encode(), status=status)


def tools_of(request: RawRequest) -> list[str]:
    """The names of the tools in an upstream's request."""
    return [tool["function"]["name"] for tool in json.loads(request.body).get("tools", [])]


def without(*names: str, words: str = "openai") -> Callable[[RawRequest], list[Step]]:
    """A provider that refuses these tools, one after the other."""

    def answer(request: RawRequest) -> list[Step]:
        tools = tools_of(request)
        for name in names:
            if name in tools:
                return refusal(WORDS[words](name, tools.index(name)))
        return SAID if json.loads(request.body).get("stream") else REPLY

    return answer


def asking(count: int, **fields: Any) -> dict[str, Any]:
    """A request of a client with so many tools of its own."""
    function = {"description": "d", "parameters": {"type": "object", "properties": {}}}
    mine = [{"type": "function", "function": {"name": f"mine{at}", **function}} for at in range(count)]
    return {**ASK, "tools": mine, **fields}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
@pytest.mark.parametrize("words", WORDS)
async def test_the_named_tool_alone_is_withheld(words: str, stream: bool) -> None:
    """The proxy asks again without the named tool, remembers that for this model, and records it."""
    ask = {**ASK, "stream": stream}
    async with looping(without(ECHO, words=words)) as (proxy, upstream):
        assert (await proxy.ask(ask)).status == 200
        run = (await proxy.only_run()).run
        assert (await proxy.ask(ask)).status == 200
        assert (await proxy.ask({**ask, "model": "other"})).status == 200
    refused, accepted, later, first, second = map(tools_of, upstream.requests)
    assert refused == first
    assert accepted == later == second == [name for name in refused if name != ECHO]
    assert run.withheld[ECHO] == "the model was seen to refuse its definition"
    assert ECHO not in run.offered
    assert TIME in run.offered


async def test_several_are_withheld_one_after_the_other() -> None:
    """Providers name one tool at a time; what is learned stays known after the client's own request."""
    async with looping(without(ECHO, BUY)) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 200
        assert (await proxy.ask(ASK)).status == 200
    assert len(upstream.requests) == 4
    assert not {ECHO, BUY} & set(tools_of(upstream.requests[-1]))


async def test_after_several_refusals_all_are_withheld() -> None:
    """A provider that refuses one tool after the other gets the client's own tools in the end."""
    names = [TIME, ECHO, BUY, "probe_tools__fail", "probe_tools__slow"]

    def answer(request: RawRequest) -> list[Step]:
        tools = tools_of(request)
        return refusal(WORDS["openai"](tools[0], 0)) if tools else SAID

    async with looping(answer) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 200
        run = (await proxy.only_run()).run
    assert not run.offered
    assert len(upstream.requests) == len(names) + 1


async def test_a_refusal_of_the_clients_tool_is_the_clients() -> None:
    """An error about a tool of the client reaches it, and no tool of the proxy is withheld."""
    async with looping(without("mine0", words="anthropic")) as (proxy, upstream):
        answer = await proxy.ask(asking(1))
        assert answer.status == 400
        assert b"tools.0.custom" in answer.body
    assert len(upstream.requests) == 1


async def test_what_did_not_help_is_not_remembered() -> None:
    """An error may quote the client: the same request fails without the tool, which stays for others."""
    echo = refusal(f"Invalid function '{ECHO}' in the user's words")
    async with looping(echo, echo, SAID) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 400
        assert (await proxy.ask(ASK)).status == 200
    assert ECHO in tools_of(upstream.requests[-1])


async def test_a_call_that_a_model_wrote_badly_withholds_nothing() -> None:
    """Some servers answer a bad call with an error that names the tool; its definition is fine."""
    words = f"Tool call validation failed: parameters for tool {ECHO} did not match schema"
    async with looping(refusal(words), SAID) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 400
    assert len(upstream.requests) == 1


async def test_a_later_turn_goes_on_without_the_tool() -> None:
    """A provider may refuse a tool first in a later turn; the run goes on with the others."""
    time = called(("call_1", TIME, '{"timezone":"UTC"}'))
    async with looping(time, refusal(WORDS["openai"](ECHO, 0)), SAID) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert text_of(payloads_of(answer.body)) == "hi"
    before, refused, after = upstream.requests
    assert tools_of(before) == tools_of(refused)
    assert tools_of(after) == [name for name in tools_of(before) if name != ECHO]
    assert json.loads(after.body)["messages"] == json.loads(refused.body)["messages"]


@pytest.mark.parametrize("most", [126, 127, 128, 130])
async def test_too_many_tools_leave_the_clients(most: int) -> None:
    """Tools of the proxy for which there is no room are withheld, and the limit is remembered."""

    def answer(request: RawRequest) -> list[Step]:
        count = len(tools_of(request))
        if count <= most:
            return SAID
        return refusal(
            f"Invalid 'tools': array too long. Expected an array with maximum length {most}, but got "
            f"an array with length {count} instead."
        )

    async with looping(answer) as (proxy, upstream):
        answered = await proxy.ask(asking(127))
        assert (answered.status == 200) is (most >= 127)
        if most < 127:
            return
        run = (await proxy.only_run()).run
        assert len(run.offered) == most - 127
        assert (await proxy.ask(asking(127))).status == 200
        assert (await proxy.ask(ASK)).status == 200
    first, second, third, few = map(tools_of, upstream.requests)
    assert len(second) == len(third) == most
    assert second[:127] == first[:127]
    assert second[127:] == sorted(first[127:])[: most - 127]
    assert len(few) == len(first) - 127
    withheld = [rule for rule in run.withheld.values() if f"at most {most} tools" in rule]
    assert len(withheld) == len(first) - most


async def test_a_limit_that_is_not_about_tools_withholds_nothing() -> None:
    """A number in another error is no limit of tools."""
    words = "Invalid 'messages': array too long. Expected an array with maximum length 2048."
    async with looping(refusal(words), SAID) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 400
    assert len(upstream.requests) == 1


async def test_a_model_without_strict_gets_the_tools_without(tmp_path: Path) -> None:
    """A model that takes no strict tools gets the same tools without ``strict``; that is remembered."""

    def answer(request: RawRequest) -> list[Step]:
        strict = b'"strict"' in request.body
        return refusal("'m' does not support strict tools.") if strict else SAID

    module = tmp_path / "firm.py"
    module.write_text(STRICT)
    tools = {"modules": (str(module),)}
    async with looping(answer, tools=tools, allow=("*",)) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 200
        run = (await proxy.only_run()).run
        assert (await proxy.ask(ASK)).status == 200
    first, *later = map(tools_of, upstream.requests)
    assert later == [first, first]
    assert "firm__look" in first
    assert "firm__look" in run.offered


async def test_an_error_that_names_no_tool_is_about_the_odd_ones(tmp_path: Path) -> None:
    """Moonshot names no tool: those whose schema some provider refuses are withheld, if there are any."""
    words = "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'x'>"

    def answer(request: RawRequest) -> list[Step]:
        return refusal(words) if b'"oneOf"' in request.body else SAID

    module = tmp_path / "odd.py"
    module.write_text(ODD)
    async with looping(answer, tools={"modules": (str(module),)}, allow=("*",)) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 200
        assert (await proxy.ask(ASK)).status == 200
    first, *later = map(tools_of, upstream.requests)
    assert later == [[name for name in first if name != "odd__look"]] * 2
    async with looping(refusal(words), SAID) as (proxy, upstream):
        assert (await proxy.ask(ASK)).status == 400
    assert len(upstream.requests) == 1


async def test_a_limit_in_the_configuration_needs_no_refusal() -> None:
    """The limit that a profile names holds from the first request on, in the client's own dialect too."""
    async with looping(SAID, served={"profile": {"max_tools": 3}}) as (proxy, upstream):
        assert (await proxy.ask(asking(2))).status == 200
        run = (await proxy.only_run()).run
    (names,) = map(tools_of, upstream.requests)
    assert names[:2] == ["mine0", "mine1"]
    assert len(names) == 3
    assert any("at most 3 tools" in rule for rule in run.withheld.values())
