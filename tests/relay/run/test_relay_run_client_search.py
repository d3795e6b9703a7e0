"""Tool search that a client declares, in the official shapes, for models that know nothing of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from looping import ECHO
from messages_script import read_stream
from openai import AsyncOpenAI
from pair_kits import SPEAKERS, Call, Got, Speaker, Turn
from raw_upstream import RawRequest, RawUpstream, Step, whole
from responses_check import check_response_stream
from running_proxy import Answer, Proxy, make_config, running

SEARCH = "core__search_tools"
UPSTREAMS = list(SPEAKERS)
RATES = {"type": "object", "properties": {"from_currency": {"type": "string"}}}
STOCK = {"type": "object", "properties": {"symbol": {"type": "string"}}}
RATE = "Look up an exchange rate between two currencies."
FOUND = Call("call_s", SEARCH, {"query": "exchange rate"})
CALLED = Call("call_r", "get_rate", {"from_currency": "USD"})
QUESTION = "What is the rate?"


def function(name: str, description: str, parameters: Any) -> dict[str, Any]:
    """A deferred function of Responses."""
    told = {"name": name, "description": description, "parameters": parameters, "strict": False}
    return {"type": "function", **told, "defer_loading": True}


RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "tool_search"},
    function("get_rate", RATE, RATES),
    {
        "type": "namespace",
        "name": "stocks",
        "description": "Stock markets.",
        "tools": [function("look_up", "Look up a price.", STOCK)],
    },
    {"type": "function", "name": "mine", "parameters": STOCK, "strict": False},
]
MESSAGES_TOOLS: list[dict[str, Any]] = [
    {"name": "get_rate", "description": RATE, "input_schema": RATES, "defer_loading": True},
    {"name": "look_up", "description": "A stock's price.", "input_schema": STOCK, "defer_loading": True},
    {"name": "mine", "input_schema": STOCK},
]
WORDS = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
PATTERNS = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}


def responses(*items: Any, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A request of Responses with a search."""
    asked = [{"role": "user", "content": QUESTION}, *items]
    return {"model": "m", "stream": stream, "input": asked, "tools": RESPONSES_TOOLS, **fields}


def messages(search: Any, *said: Any, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A request of Messages with a search."""
    body = {"model": "m", "max_tokens": 99, "stream": stream, "tools": [search, *MESSAGES_TOOLS]}
    return {**body, "messages": [{"role": "user", "content": QUESTION}, *said], **fields}


@asynccontextmanager
async def between(upstream: Speaker, *turns: Turn, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy before an upstream whose model takes these turns."""
    left = list(turns)

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        return upstream.script(left.pop(0), stream=body.get("stream", upstream.name == "ollama"))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": (upstream.name,), "native": ()}
        config = {"allow": ("core__calculate",), **config}
        async with running(make_config(table, modules=("probe_tools",), **config)) as proxy:
            yield proxy, raw


def got(upstream: Speaker, raw: RawUpstream) -> list[Got]:
    """The requests of an upstream."""
    return [upstream.got(json.loads(request.body)) for request in raw.requests]


def items_of(answer: Answer, *, stream: bool) -> list[dict[str, Any]]:
    """The output of a response."""
    assert answer.status == 200, answer.body
    output = check_response_stream(answer.body).response["output"] if stream else answer.json["output"]
    return list(output)


def blocks_of(answer: Answer, *, stream: bool) -> list[dict[str, Any]]:
    """The content of a message."""
    assert answer.status == 200, answer.body
    return list(read_stream(answer.body).blocks if stream else answer.json["content"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_search_of_responses(upstream: str, stream: bool) -> None:
    """The client sees the search, what it found, and the call; its next request goes on from there."""
    answers = SPEAKERS[upstream]
    turns = Turn("", (FOUND,)), Turn("", (CALLED,)), Turn("0.92")
    async with between(answers, *turns) as (proxy, raw):
        answer = await proxy.ask(responses(stream=stream), path="/v1/responses")
        search, output, call = items_of(answer, stream=stream)
        official = {"call_id": None, "execution": "server", "status": "completed"}
        assert search == {
            "id": search["id"],
            "type": "tool_search_call",
            "arguments": {"paths": ["get_rate"]},
            **official,
        }
        assert search["id"].startswith("tsc_")
        tools = [RESPONSES_TOOLS[1]]
        assert output == {"id": output["id"], "type": "tool_search_output", "tools": tools, **official}
        assert call["type"] == "function_call"
        assert (call["name"], call["namespace"]) == ("get_rate", "get_rate")
        again = [search, output, call, {"type": "function_call_output", "call_id": call["call_id"]}]
        again[-1]["output"] = "1 USD = 0.92 EUR"
        last = items_of(
            await proxy.ask(responses(*again, stream=stream), path="/v1/responses"), stream=stream
        )
        assert [item["type"] for item in last] == ["message"]
        first, second, third = got(answers, raw)
        assert list(first.tools) == ["mine", "core__calculate", SEARCH]
        assert list(second.tools) == ["mine", "core__calculate", SEARCH, "get_rate"]
        assert list(third.tools) == list(second.tools)
        assert b"tool_search" not in raw.requests[2].body.replace(b"core__search_tools", b"")
        assert third.results[call["call_id"]] == "1 USD = 0.92 EUR"
        assert "get_rate" in third.results["call_s"]


async def test_the_events_of_a_search_have_their_official_order() -> None:
    """Each item opens empty and in progress and then ends, as in recordings of OpenAI's API."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("", (FOUND,)), Turn("hi")) as (proxy, _):
        answer = await proxy.ask(responses(), path="/v1/responses")
        events = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
        found = [
            event for event in events if str(event.get("item", {}).get("type")).startswith("tool_search")
        ]
        assert [(event["type"].rpartition(".")[2], event["item"]["status"]) for event in found] == [
            ("added", "in_progress"),
            ("done", "completed"),
        ] * 2
        assert found[0]["item"]["arguments"] == {}
        assert [event["output_index"] for event in found] == [0, 0, 1, 1]
        echoed = events[-1]["response"]["tools"]
        assert echoed[0] == {"type": "tool_search"}
        assert [tool.get("name") for tool in echoed[1:]] == ["get_rate", "stocks", "mine"]


async def test_a_namespace_is_found() -> None:
    """A function of a namespace is shown with its namespace, and called by both names."""
    chat = SPEAKERS["chat"]
    query = Call("call_s", SEARCH, {"query": "stock price"})
    called = Call("call_r", "stocks__look_up", {"symbol": "X"})
    async with between(chat, Turn("", (query,)), Turn("", (called,))) as (proxy, raw):
        answer = await proxy.ask(responses(), path="/v1/responses")
        search, output, call = items_of(answer, stream=True)
        assert search["arguments"] == {"paths": ["stocks"]}
        assert output["tools"] == [RESPONSES_TOOLS[2]]
        assert (call["name"], call["namespace"]) == ("look_up", "stocks")
        assert "stocks__look_up" in got(chat, raw)[1].tools


async def test_a_response_that_searched_is_continued_by_its_id() -> None:
    """A request that names the response by its id has the search from the record, and the tools it found."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("", (FOUND,)), Turn("", (CALLED,)), Turn("0.92")) as (proxy, raw):
        answer = await proxy.ask(responses(stream=False), path="/v1/responses")
        result = {"type": "function_call_output", "call_id": "call_r", "output": "1 USD = 0.92 EUR"}
        body = {**responses(), "input": [result], "previous_response_id": answer.json["id"]}
        last = await proxy.ask(body, path="/v1/responses")
        assert [item["type"] for item in items_of(last, stream=True)] == ["message"]
        _, second, third = got(chat, raw)
        assert list(third.tools) == list(second.tools)
        assert "get_rate" in third.results["call_s"]


@pytest.mark.parametrize("wire", ["responses", "anthropic"])
async def test_what_an_answer_found_is_offered_after_it(wire: str) -> None:
    """After an answer the next request has the same tools in the same order, server tools among them."""
    chat, search = SPEAKERS["chat"], {"search": "on", "search_finds": 1}
    finds = Call("call_1", SEARCH, {"query": "echo a text"})
    again = Call("call_2", SEARCH, {"query": "exchange rate"})
    turns = Turn("", (finds,)), Turn("", (again,)), Turn("Found."), Turn("Still here.")
    async with between(chat, *turns, allow=("probe_tools__*",), tools=search) as (proxy, raw):
        more = {"role": "user", "content": "And now?"}
        if wire == "responses":
            seen = items_of(await proxy.ask(responses(), path="/v1/responses"), stream=True)
            last = await proxy.ask(responses(*seen, more), path="/v1/responses")
        else:
            seen = blocks_of(await proxy.ask(messages(WORDS), path="/v1/messages"), stream=True)
            said = {"role": "assistant", "content": seen}
            last = await proxy.ask(messages(WORDS, said, more), path="/v1/messages")
        assert last.status == 200, last.body
        *_, third, fourth = got(chat, raw)
        assert list(third.tools) == ["mine", SEARCH, ECHO, "get_rate"]
        assert list(fourth.tools) == list(third.tools)
        assert set(fourth.results) == {"call_1", "call_2"}


@pytest.mark.parametrize("odd", [1, None, "x", [1], {"a": 1}, [{"name": 5}], [[]]])
@pytest.mark.parametrize("field", ["tools", "id", "call_id", "arguments", "status"])
async def test_odd_items_of_searches(field: str, odd: Any) -> None:
    """Whatever a client writes into the items of a search, the request is served or refused with a 400."""
    chat = SPEAKERS["chat"]
    kinds = ("tool_search_call", "tool_search_output")
    items = [{"type": kind, "execution": "server", field: odd} for kind in kinds]
    async with between(chat, Turn("hi")) as (proxy, _):
        answer = await proxy.ask(responses(*items), path="/v1/responses")
        assert answer.status in (200, 400), answer.body


@pytest.mark.parametrize("odd", [1, None, "x", [1], {"a": 1}, [{"tool_name": 5}], [[]]])
@pytest.mark.parametrize("field", ["content", "id", "tool_use_id", "input", "name"])
async def test_odd_blocks_of_searches(field: str, odd: Any) -> None:
    """The same holds for the blocks of a search."""
    chat = SPEAKERS["chat"]
    use = {"type": "server_tool_use", "name": "tool_search_tool_bm25"}
    blocks = [{**use, field: odd}, {"type": "tool_search_tool_result", field: odd}]
    said = [{"role": "assistant", "content": [*blocks, {"type": "text", "text": "x"}]}]
    async with between(chat, Turn("hi")) as (proxy, _):
        answer = await proxy.ask(
            messages(WORDS, *said, {"role": "user", "content": "y"}), path="/v1/messages"
        )
        assert answer.status in (200, 400), answer.body


async def test_as_many_tools_as_a_request_may_have_can_be_searched() -> None:
    """Among 1,900 tools the search finds the right one, and the list of their names stays short."""
    chat = SPEAKERS["chat"]
    many = [{**MESSAGES_TOOLS[1], "name": f"look_up_{at}"} for at in range(1900)]
    async with between(chat, Turn("", (FOUND,)), Turn("hi")) as (proxy, raw):
        body = {**messages(WORDS), "tools": [WORDS, MESSAGES_TOOLS[0], *many]}
        answer = await proxy.ask(body, path="/v1/messages")
        assert answer.status == 200, answer.body
        assert list(got(chat, raw)[1].tools) == ["core__calculate", SEARCH, "get_rate"]
        assert len(raw.requests[0].body) < 20_000


async def test_items_alone_say_what_was_found() -> None:
    """Without the record, found and called tools are offered by the items that the client sends."""
    chat = SPEAKERS["chat"]
    call = {"type": "function_call", "call_id": "c1", "name": "get_rate", "namespace": "get_rate"}
    history = [
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "call_id": "tsc_1",
            "execution": "server",
            "arguments": {},
            "status": "completed",
        },
        {**call, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "0.92"},
    ]
    async with between(chat, Turn("hi")) as (proxy, raw):
        answer = await proxy.ask(responses(*history), path="/v1/responses")
        assert answer.status == 200, answer.body
        (request,) = got(chat, raw)
        assert "get_rate" in request.tools
        assert "stocks__look_up" not in request.tools
        assert request.results == {"c1": "0.92"}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"tool_choice": {"type": "function", "name": "get_rate"}}, True),
        ({"tool_choice": "none"}, True),
        ({"tool_choice": {"type": "tool_search"}}, False),
    ],
)
async def test_what_the_choice_names_is_shown(fields: dict[str, Any], shown: bool) -> None:
    """A deferred tool is shown if the choice names it, or nothing can be searched."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("hi"), Turn("hi")) as (proxy, raw):
        answer = await proxy.ask(responses(**fields), path="/v1/responses")
        assert answer.status == 200, answer.body
        assert ("get_rate" in got(chat, raw)[0].tools) is shown
        if not shown:
            assert json.loads(raw.requests[0].body)["tool_choice"]["function"] == {"name": SEARCH}


async def test_search_off_refuses_as_before() -> None:
    """With ``tools.search = "off"`` an upstream of another dialect cannot serve the request."""
    async with between(SPEAKERS["chat"], tools={"search": "off"}) as (proxy, raw):
        answer = await proxy.ask(responses(), path="/v1/responses")
        assert answer.status == 400
        assert answer.error["param"] == "tools[0]"
        assert raw.requests == []


async def test_server_tools_of_a_chosen_server_are_deferred() -> None:
    """``defer_loading`` on a server of the proxy hides its tools until a search; they run at the proxy."""
    chat = SPEAKERS["chat"]
    entry = {"type": "mcp", "server_label": "probe", "server_url": "toolrelay/probe_tools"}
    tools = [{"type": "tool_search"}, {**entry, "require_approval": "never", "defer_loading": True}]
    query = Call("call_s", SEARCH, {"query": "echo a text"})
    turns = Turn("", (query,)), Turn("", (Call("call_e", ECHO, {"text": "x"}),)), Turn("x")
    async with between(chat, *turns, allow=("probe_tools__*",)) as (proxy, raw):
        answer = await proxy.ask({**responses(), "tools": tools}, path="/v1/responses")
        kinds = [item["type"] for item in items_of(answer, stream=True)]
        assert kinds == ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
        first, second, _ = got(chat, raw)
        assert list(first.tools) == [SEARCH]
        assert ECHO in second.tools


TOOLSETS: dict[str, Any] = {
    "all": {"default_config": {"defer_loading": True}},
    "one": {"configs": {"echo": {"defer_loading": True}}},
    "in an element": None,
}


@pytest.mark.parametrize("case", TOOLSETS)
async def test_server_tools_of_a_toolset_are_deferred(case: str) -> None:
    """``defer_loading`` in a toolset of Messages, for all of its tools or one, hides them until a search."""
    server = {"type": "url", "name": "probe", "url": "toolrelay/probe_tools"}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "probe", **(TOOLSETS[case] or {})}
    if TOOLSETS[case] is None:
        toolset = {
            "type": "mcp", "server_label": "probe", "server_url": server["url"], "require_approval": "never",
            "defer_loading": True,
        }  # fmt: skip
    body = {**messages(WORDS), "tools": [WORDS, toolset]}
    body |= {} if TOOLSETS[case] is None else {"mcp_servers": [server]}
    query = Call("call_s", SEARCH, {"query": "echo a text"})
    turns = Turn("", (query,)), Turn("", (Call("call_e", ECHO, {"text": "x"}),)), Turn("x")
    chat = SPEAKERS["chat"]
    async with between(chat, *turns, allow=("probe_tools__*",)) as (proxy, raw):
        answer = await proxy.ask(body, path="/v1/messages")
        assert blocks_of(answer, stream=True)[-1]["text"] == "x"
        first, second, _ = got(chat, raw)
        assert list(first.tools) == [SEARCH]
        assert ECHO in second.tools


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_found_tool_that_the_upstream_refuses(upstream: str) -> None:
    """The client gets the refusal of its own tool, which it has to correct; the server tools stay."""
    speaker = SPEAKERS[upstream]
    said = "Invalid schema for function 'get_rate': In context=(), object schema missing properties."
    refusal = whole(json.dumps(speaker.refusal(said)).encode(), status="400 Bad Request")

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        if "get_rate" in speaker.got(body).tools:
            return refusal
        return speaker.script(Turn("", (FOUND,)), stream=body.get("stream", upstream == "ollama"))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": (upstream,), "native": ()}
        async with running(make_config(table, allow=("core__calculate",))) as proxy:
            answer = await proxy.ask(messages(WORDS, stream=False), path="/v1/messages")
        assert len(raw.requests) == 2
    assert (answer.status, said in answer.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("client", ["anthropic", "responses"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_deferred_tool_with_a_long_name(upstream: str, client: str) -> None:
    """No upstream gets a longer name than it takes; the client's call has its own name."""
    long = "mcp__plugin_" + "x" * 90
    speaker, most = (
        SPEAKERS[upstream],
        64 if upstream in ("chat", "responses") and upstream != client else 128,
    )

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        tools = speaker.got(body).tools
        assert all(len(name) <= most for name in tools)
        (name,) = [name for name in tools if name.startswith("mcp__")] or [SEARCH]
        call = Call("call_1", name, {"query": "weather"} if name == SEARCH else {})
        return speaker.script(Turn("", (call,)), stream=body.get("stream", upstream == "ollama"))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": (upstream,), "native": ()}
        async with running(make_config(table, allow=())) as proxy:
            if client == "anthropic":
                tool = {"name": long, "description": "The weather.", "input_schema": STOCK}
                body = {**messages(WORDS, stream=False), "tools": [WORDS, {**tool, "defer_loading": True}]}
                call = blocks_of(await proxy.ask(body, path="/v1/messages"), stream=False)[-1]
            else:
                tools = [{"type": "tool_search"}, function(long, "The weather.", STOCK)]
                body = {**responses(stream=False), "tools": tools}
                call = items_of(await proxy.ask(body, path="/v1/responses"), stream=False)[-1]
    assert call["name"] == long


@pytest.mark.parametrize("wire", ["anthropic", "responses"])
async def test_tokens_are_counted_with_the_search(wire: str) -> None:
    """The provider counts the tools that it gets with the question itself, those found before included."""
    speaker = SPEAKERS[wire]
    if wire == "anthropic":
        use = {"type": "tool_use", "id": "toolu_1", "name": "get_rate", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "0.92"}
        said = {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
        body, paths = messages(WORDS, *said, stream=False), ("/v1/messages", "/v1/messages/count_tokens")
    else:
        call = {"type": "function_call", "call_id": "call_1", "name": "get_rate", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "call_1", "output": "0.92"}
        body, paths = responses(call, output, stream=False), ("/v1/responses", "/v1/responses/input_tokens")
    async with between(speaker, Turn("Yes."), Turn("")) as (proxy, raw):
        for path in paths:
            await proxy.ask(body, path=path)
        asked, counted = (json.loads(request.body) for request in raw.requests)
    assert counted["tools"] == asked["tools"]
    assert {SEARCH, "get_rate", "mine", "core__calculate"} == set(speaker.got(asked).tools)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("search", [WORDS, PATTERNS], ids=["words", "patterns"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_search_of_messages(upstream: str, search: dict[str, Any], stream: bool) -> None:
    """The client sees the use and its references, then the call; its next request goes on from there."""
    answers = SPEAKERS[upstream]
    sought = "exchange rate" if search is WORDS else "(?i)exchange|currency"
    found = Call("call_s", SEARCH, {"query": sought})
    async with between(answers, Turn("", (found,)), Turn("", (CALLED,)), Turn("0.92")) as (proxy, raw):
        answer = await proxy.ask(messages(search, stream=stream), path="/v1/messages")
        use, result, call = blocks_of(answer, stream=stream)
        argument = "query" if search is WORDS else "pattern"
        assert (use["type"], use["name"]) == ("server_tool_use", search["name"])
        assert use["input"] == {argument: sought}
        assert use["id"].startswith("srvtoolu_")
        assert result == {
            "type": "tool_search_tool_result",
            "tool_use_id": use["id"],
            "content": {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "get_rate"}],
            },
        }
        assert (call["type"], call["name"]) == ("tool_use", "get_rate")
        done = {"type": "tool_result", "tool_use_id": call["id"], "content": "1 USD = 0.92 EUR"}
        said = (
            {"role": "assistant", "content": [use, result, call]},
            {"role": "user", "content": [done]},
        )
        last = blocks_of(
            await proxy.ask(messages(search, *said, stream=stream), path="/v1/messages"), stream=stream
        )
        assert [block["type"] for block in last] == ["text"]
        first, second, third = got(answers, raw)
        assert list(first.tools) == ["mine", "core__calculate", SEARCH]
        assert list(second.tools) == ["mine", "core__calculate", SEARCH, "get_rate"]
        assert list(third.tools) == list(second.tools)
        assert b"tool_search_tool" not in raw.requests[2].body
        assert "get_rate" in third.results["call_s"]


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("(", "invalid_tool_input"),
        ("(?=x)y", "invalid_tool_input"),
        ("a{50}", "invalid_tool_input"),
        ("a" * 201, "invalid_tool_input"),
    ],
)
async def test_a_pattern_that_cannot_be_used(pattern: str, code: str) -> None:
    """A bad pattern of a model is an error inside an answer with the status 200; the model reads why."""
    chat = SPEAKERS["chat"]
    found = Call("call_s", SEARCH, {"query": pattern})
    async with between(chat, Turn("", (found,)), Turn("no")) as (proxy, raw):
        answer = await proxy.ask(messages(PATTERNS), path="/v1/messages")
        _, result, text = blocks_of(answer, stream=True)
        assert result["content"]["type"] == "tool_search_tool_result_error"
        assert result["content"]["error_code"] == code
        assert text["text"] == "no"
        assert '"ok":false' in got(chat, raw)[1].results["call_s"]


async def test_references_in_a_result_of_the_client() -> None:
    """A client's own tool may answer with references: their tools are shown, and text names them."""
    chat = SPEAKERS["chat"]
    use = {"type": "tool_use", "id": "toolu_1", "name": "mine", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "look_up"}
    said = (
        {"role": "assistant", "content": [use]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}],
        },
    )
    async with between(chat, Turn("hi")) as (proxy, raw):
        answer = await proxy.ask(messages(WORDS, *said), path="/v1/messages")
        assert answer.status == 200, answer.body
        (request,) = got(chat, raw)
        assert "look_up" in request.tools
        assert "look_up can be called" in request.results["toolu_1"]


@pytest.mark.parametrize(
    ("wire", "path", "body"),
    [
        ("responses", "/v1/responses", responses()),
        ("anthropic", "/v1/messages", messages(WORDS)),
    ],
)
async def test_a_native_search_passes_unchanged(wire: str, path: str, body: dict[str, Any]) -> None:
    """An upstream that searches itself gets the client's own bytes."""
    speaker = SPEAKERS[wire]

    def model(request: RawRequest) -> list[Step]:
        return speaker.script(Turn("hi"))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": (wire,), "native": ("*",)}
        async with running(make_config(table, allow=())) as proxy:
            answer = await proxy.ask(body, path=path)
            assert answer.status == 200, answer.body
            assert json.loads(raw.requests[0].body)["tools"] == body["tools"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_openai_for_python(stream: bool) -> None:
    """The official client reads a search and a call, and sends all items back in its second turn."""
    chat = SPEAKERS["chat"]
    asked: Any = [{"role": "user", "content": QUESTION}]
    tools: Any = RESPONSES_TOOLS
    async with (
        between(chat, Turn("", (FOUND,)), Turn("", (CALLED,)), Turn("0.92")) as (proxy, raw),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0) as client,
    ):
        if stream:
            async with client.responses.stream(model="m", input=asked, tools=tools) as events:
                async for _ in events:
                    pass
                first: Any = await events.get_final_response()
        else:
            first = await client.responses.create(model="m", input=asked, tools=tools)
        kinds = [item.type for item in first.output]
        assert kinds == ["tool_search_call", "tool_search_output", "function_call"]
        output = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "0.92"}
        items: Any = [*asked, *first.output, output]
        last = await client.responses.create(model="m", input=items, tools=tools)
        assert last.output_text == "0.92"
        assert "get_rate" in got(chat, raw)[2].tools


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_anthropic_for_python(stream: bool) -> None:
    """The official client reads a search and a call, and sends all blocks back in its second turn."""
    chat = SPEAKERS["chat"]
    asked: Any = [{"role": "user", "content": QUESTION}]
    more: dict[str, Any] = {"model": "m", "max_tokens": 99, "tools": [WORDS, *MESSAGES_TOOLS]}
    async with (
        between(chat, Turn("", (FOUND,)), Turn("", (CALLED,)), Turn("0.92")) as (proxy, raw),
        AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="x", max_retries=0) as client,
    ):
        if stream:
            async with client.messages.stream(messages=asked, **more) as events:
                first: Any = await events.get_final_message()
        else:
            first = await client.messages.create(messages=asked, **more)
        kinds = [block.type for block in first.content]
        assert kinds == ["server_tool_use", "tool_search_tool_result", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "0.92"}
        said: Any = [*asked, {"role": "assistant", "content": first.content}]
        said.append({"role": "user", "content": [result]})
        last = await client.messages.create(messages=said, **more)
        assert [block.type for block in last.content] == ["text"]
        assert "get_rate" in got(chat, raw)[2].tools
