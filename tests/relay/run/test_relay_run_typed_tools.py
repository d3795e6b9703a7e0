"""Tools of types that only Responses knows, on models of every dialect: calls, items, results and history."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import DONE, finish, payloads_of, role
from chat_script import call as call_chunk
from looping import ECHO
from pair_kits import SPEAKERS, Call, Turn
from recorded_answers import Asked, Given, Scripted
from responses_check import events_of
from responses_script import closing, encode, function_call, item_events, message, opening, resource
from running_proxy import Proxy, make_config, running
from websocket_client import connected

from proxy.app.app import Overrides

Item = dict[str, Any]

CITY: Item = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Item] = [
    {"type": "function", "name": "plain", "parameters": CITY, "strict": False},
    {
        "type": "namespace",
        "name": "weather",
        "description": "About the weather.",
        "tools": [
            {"type": "function", "name": "now", "description": "Now.", "parameters": CITY, "strict": False},
            {"type": "custom", "name": "query", "description": "Asks."},
        ],
    },
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": CITY},
    {"type": "custom", "name": "say"},
]
CALLS: Mapping[str, Item] = {
    "plain": {"city": "Oslo"},
    "weather__now": {"city": "Rome"},
    "weather__query": {"input": "wind in Rome"},
    "local_shell": {"command": ["ls", "-a"], "timeout_ms": 1000},
    "shell": {"commands": ["ls", "pwd"], "max_output_length": 99},
    "apply_patch": {"operation": {"type": "create_file", "path": "a.txt", "diff": "+a\n"}},
    "tool_search": {"city": "Bern"},
    "say": {"input": "hello"},
}
MEMBERS: Mapping[str, Item] = {
    "plain": {"type": "function_call", "name": "plain"},
    "weather__now": {"type": "function_call", "name": "now", "namespace": "weather"},
    "weather__query": {
        "type": "custom_tool_call", "name": "query", "namespace": "weather", "input": "wind in Rome"
    },
    "local_shell": {
        "type": "local_shell_call",
        "action": {"type": "exec", "command": ["ls", "-a"], "env": {}, "timeout_ms": 1000},
    },
    "shell": {
        "type": "shell_call",
        "action": {"commands": ["ls", "pwd"], "max_output_length": 99, "timeout_ms": None},
    },
    "apply_patch": {
        "type": "apply_patch_call",
        "operation": {"type": "create_file", "path": "a.txt", "diff": "+a\n"},
    },
    "tool_search": {"type": "tool_search_call", "arguments": {"city": "Bern"}, "execution": "client"},
    "say": {"type": "custom_tool_call", "name": "say", "input": "hello"},
}  # fmt: skip
LATER: Item = {"type": "function", "name": "later", "parameters": CITY, "strict": False}


def output_of(item: Item) -> Item:
    """Return the item with which a client answers a call."""
    kind, call_id = item["type"], item["call_id"]
    match kind:
        case "local_shell_call":
            return {"type": f"{kind}_output", "id": call_id, "output": '{"output":"listed"}'}
        case "shell_call":
            ran = {"stdout": "ran", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            return {"type": f"{kind}_output", "call_id": call_id, "output": [ran]}
        case "apply_patch_call":
            return {"type": f"{kind}_output", "call_id": call_id, "status": "failed", "output": "no file"}
        case "tool_search_call":
            return {"type": "tool_search_output", "call_id": call_id, "tools": [LATER], "execution": "client"}
    return {"type": f"{kind}_output", "call_id": call_id, "output": f"done {item['name']}"}


class Model(Scripted):
    """A model of one dialect that makes the calls that it is offered, and answers once it has results."""

    def __init__(self, wire: str, calls: Sequence[str], made: Mapping[str, Item]) -> None:
        super().__init__(self._say)
        self.speaker, self._calls, self._made = SPEAKERS[wire], calls, made

    def _say(self, asked: Asked) -> Given:
        got = self.speaker.got(asked.payload)
        calls = [name for name in self._calls if name in got.tools]
        if ECHO in got.tools and not got.results:
            calls.append(ECHO)
        arguments = {**CALLS, **self._made, ECHO: {"text": "echoed"}}
        made = tuple(Call(f"call_{at}", name, arguments[name]) for at, name in enumerate(calls))
        turn = Turn("", made) if made and not got.results else Turn("Done.")
        if asked.payload.get("stream"):
            return Given(content_type=self.speaker.content_type, pieces=self.speaker.events(turn))
        return Given(json.dumps(self.speaker.reply(turn)).encode())

    async def aclose(self) -> None:
        """There is nothing to close."""

    @property
    def got(self) -> Any:
        """The last request."""
        return self.speaker.got(self.asked[-1].payload)


@asynccontextmanager
async def serving(
    wire: str,
    *,
    calls: Sequence[str] = tuple(CALLS),
    made: Mapping[str, Item] | None = None,
    ours: bool = False,
    **upstream: Any,
) -> AsyncIterator[tuple[Proxy, Model]]:
    """Run a proxy before a model that makes these calls, with the arguments ``made`` in place of the usual
    ones; ``ours`` offers a server tool beside them."""
    model = Model(wire, calls, made or {})
    table = {"base_url": "http://127.0.0.1:9/v1", "wires": (wire,), **upstream}
    config = make_config(table, modules=("probe_tools",), allow=("probe_tools__echo",) if ours else ())
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        yield proxy, model


def asking(*items: Item, stream: bool = True, **more: Any) -> Item:
    """Return a request with all tools."""
    said = [{"role": "user", "content": "Hi"}, *items]
    return {"model": "m", "stream": stream, "store": False, "tools": TOOLS, "input": said, **more}


async def output(proxy: Proxy, body: Item) -> list[Item]:
    """Return the output of the answer; a stream must agree with its last event."""
    answer = await proxy.ask(body, path="/v1/responses")
    assert answer.status == 200, answer.body
    if not body["stream"]:
        return list(answer.json["output"])
    events = events_of(answer.body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.added"}
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    assert list(added) == list(done) == list(range(len(added)))
    for place, item in done.items():
        assert all(added[place].get(name) == item.get(name) for name in ("id", "call_id", "type", "name"))
        assert item["type"] == "reasoning" or added[place].keys() == item.keys()
    final = events[-1]["response"]
    assert final["output"] == list(done.values())
    assert [tool["type"] for tool in final["tools"]] == [tool["type"] for tool in TOOLS]
    return list(done.values())


every_wire = pytest.mark.parametrize("wire", SPEAKERS)


@every_wire
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ours", [False, True])
async def test_every_type_makes_the_whole_way(wire: str, stream: bool, ours: bool) -> None:
    """Declaration, call, item, history and result: a model that knows functions alone uses every type."""
    async with serving(wire, ours=ours) as (proxy, model):
        items = await output(proxy, asking(stream=stream))
        # With a server tool the client also carries the encrypted turn.
        made = [item for item in items if item["type"] != "reasoning"]
        assert len(items) - len(made) == ours
        for name, item in zip(CALLS, made, strict=True):
            assert MEMBERS[name].items() <= item.items()
            assert item["status"] == "completed"
            assert "arguments" not in item or item["type"] in ("function_call", "tool_search_call")
        later = [*items, *map(output_of, made)]
        (message,) = await output(proxy, asking(*later, stream=stream))
    assert message["content"][0]["text"] == "Done."
    assert {call.name: call.arguments for call in model.got.calls if call.name != ECHO} == CALLS
    results = {call.name: model.got.results[call.id] for call in model.got.calls}
    assert results["plain"] == "done plain"
    assert results["weather__now"] == "done now"
    assert results["weather__query"] == "done query"
    assert results["local_shell"] == '{"output":"listed"}'
    assert json.loads(results["shell"])[0]["stdout"] == "ran"
    assert json.loads(results["apply_patch"]) == {"status": "failed", "output": "no file"}
    assert json.loads(results["tool_search"]) == {"tools": ["later"]}
    assert "later" in model.got.tools
    assert (ECHO in results) == ours


ODD: Sequence[tuple[str, Item]] = [
    ("shell", {"command": "ls"}),
    ("shell", {"commands": ["ls"], "timeout_ms": None}),
    ("local_shell", {"command": "ls", "why": "to look"}),
    ("apply_patch", {"type": "delete_file", "path": "a", "diff": "-a"}),
    ("weather__query", {"input": 5}),
    ("tool_search", {"a": 1.50}),
]
"""Arguments that the item for the client cannot express as the model wrote them."""


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize(("name", "arguments"), ODD, ids=str)
async def test_odd_arguments_keep_the_turn(wire: str, name: str, arguments: Item) -> None:
    """The result of a server tool comes back to a model that called a client's tool in its own way."""
    for store in (True, False):
        async with serving(wire, calls=(name,), made={name: arguments}, ours=True) as (proxy, model):
            items = await output(proxy, asking(store=store))
            made = [item for item in items if item["type"] != "reasoning"]
            await output(proxy, asking(*items, *map(output_of, made), store=store))
        results = {call.name: model.got.results[call.id] for call in model.got.calls}
        assert "echoed" in results[ECHO]
        assert name in results


@every_wire
async def test_a_stored_response_has_the_items_that_the_client_got(wire: str) -> None:
    """A response that was stored is the client's, also if its upstream speaks the client's dialect."""
    async with serving(wire) as (proxy, _):
        made = (await proxy.ask(asking(stream=False, store=True), path="/v1/responses")).json
        stored = json.loads((await proxy.get(f"/v1/responses/{made['id']}")).body)
    assert stored["output"] == made["output"]
    assert [tool["type"] for tool in stored["tools"]] == [tool["type"] for tool in TOOLS]


async def test_a_warm_up_declares_the_tools() -> None:
    """The response to a message that only prepares repeats the tools, and the next message can use them."""
    async with serving("chat", calls=("shell",)) as (proxy, _), connected(proxy) as client:
        warm = await client.ask(input="Hi", tools=TOOLS, generate=False, store=False)
        assert [tool["type"] for tool in warm.response["tools"]] == [tool["type"] for tool in TOOLS]
        again = {"previous_response_id": warm.response["id"], "tools": TOOLS, "store": False}
        answer = await client.ask(input="Go on", **again)
    assert [item["type"] for item in answer.response["output"]] == ["shell_call"]


DEEP = '{"a":' * 400 + "1" + "}" * 400


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_arguments_that_cannot_be_written(wire: str) -> None:
    """Arguments that are nested too deeply are none: the answer does not break."""
    nested: Any = json.loads(DEEP)
    for stream in (True, False):
        async with serving(wire, calls=("tool_search",), made={"tool_search": nested}) as (proxy, _):
            (item,) = await output(proxy, asking(stream=stream))
        assert (item["type"], item["arguments"]) == ("tool_search_call", {})


class Fixed(Scripted):
    """An upstream that always sends these bytes."""

    def __init__(self, body: bytes, content_type: str = "application/json") -> None:
        super().__init__(lambda asked: Given(content_type=content_type, pieces=[body]))

    async def aclose(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("more", [{"x": float("nan")}, {"metadata": {"half": "\ud83d"}}], ids=["nan", "half"])
async def test_a_reply_that_is_not_quite_json(more: Item) -> None:
    """A reply that the proxy reads although it is not quite JSON has the client's items."""
    call = function_call("call_1", "shell", '{"commands":["ls"]}')
    model = Fixed(json.dumps(resource([message("Hi"), call], **more)).encode())
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": ("responses",)})
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        answer = await proxy.ask(asking(stream=False), path="/v1/responses")
    assert answer.status == 200
    assert [item["type"] for item in answer.json["output"]] == ["message", "shell_call"]


async def test_an_error_counts_as_the_client_declared() -> None:
    """What planning refuses after namespaces became functions is named by its place in the client's list."""
    async with serving("chat") as (proxy, _):
        for stream in (True, False):
            body = asking({"type": "additional_tools", "tools": []}, {"role": "robot"}, stream=stream)
            answer = await proxy.ask(body, path="/v1/responses")
            assert answer.status == 400
            assert answer.json["error"]["param"] == "input[2].role"
            tools = [*TOOLS, {"type": "function", "name": "last", "parameters": CITY, "async": True}]
            answer = await proxy.ask({**body, "input": "Hi", "tools": tools}, path="/v1/responses")
            assert answer.status == 400
            assert answer.json["error"]["param"] == f"tools[{len(TOOLS)}].async"
            assert answer.json["error"]["message"].startswith(f"tools[{len(TOOLS)}].async: ")


BROUGHT: Item = {"type": "additional_tools", "role": "developer", "tools": TOOLS[1:4]}
LATE = ("weather__now", "weather__query", "shell")


@every_wire
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("state", ["auto", "stateless"])
async def test_a_chain_keeps_the_tools_of_items(wire: str, state: str, ours: bool) -> None:
    """A response that is continued by its id keeps what items have brought, and the record has the items as
    the client sent them."""
    asked = {"model": "m", "stream": False, "store": True}
    async with serving(wire, calls=LATE, ours=ours, responses_state=state) as (proxy, model):
        said: list[Item] = [{"role": "user", "content": "Hi", "type": "message"}, BROUGHT]
        more: Item = {}
        for turn in range(3):
            answer = await proxy.ask({**asked, "input": said, **more}, path="/v1/responses")
            assert answer.status == 200, answer.body
            assert set(LATE) <= set(model.got.tools)
            response = answer.json
            kept = await proxy.get(f"/v1/responses/{response['id']}/input_items?order=asc")
            items = kept.json["data"]
            assert [item["type"] for item in items] == [item["type"] for item in said]
            assert all(item.items() <= shown.items() for item, shown in zip(said[1:], items[1:], strict=True))
            more = {"previous_response_id": response["id"]}
            if turn == 0:
                assert [item["type"] for item in response["output"]] == [
                    MEMBERS[name]["type"] for name in LATE
                ]
                stored = await proxy.get(f"/v1/responses/{response['id']}")
                assert stored.json["output"] == response["output"]
                said = [output_of(item) for item in response["output"]]
            else:
                said = [{"role": "user", "content": "Go on", "type": "message"}]
    results = {call.name: model.got.results[call.id] for call in model.got.calls}
    if state == "stateless":
        assert results["weather__query"] == "done query"
        assert json.loads(results["shell"])[0]["stdout"] == "ran"


@every_wire
async def test_a_websocket_keeps_the_tools_of_items(wire: str) -> None:
    """What a client has sent before its turn, or in an earlier one, counts on; nothing is on record."""
    async with serving(wire, calls=LATE) as (proxy, model), connected(proxy) as client:
        said = [{"role": "user", "content": "Hi"}]
        warm = await client.ask(model="m", store=False, input=[BROUGHT], generate=False)
        turn = await client.ask(model="m", store=False, input=said, previous_response_id=warm.response["id"])
        made = turn.response["output"]
        assert [item["type"] for item in made] == [MEMBERS[name]["type"] for name in LATE]
        last = await client.ask(
            model="m", store=False, input=[*map(output_of, made)], previous_response_id=turn.response["id"]
        )
        assert last.text == "Done."
    assert set(LATE) <= set(model.got.tools)
    assert {call.name for call in model.got.calls} == set(LATE)


async def test_a_stream_that_breaks_off_in_a_call() -> None:
    """The end that the proxy writes has the client's items, too: every event once, and no half of a call."""
    events = item_events(function_call("call_1", "shell", '{"commands":["ls"]}'), 0)[:3]
    model = Fixed(encode([*opening(), *events]), "text/event-stream")
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": ("responses",)})
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        answer = await proxy.ask(asking(), path="/v1/responses")
    said = events_of(answer.body)
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    assert [event["type"] for event in said[2:4]] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    (item,) = said[-1]["response"]["output"]
    assert (said[-1]["type"], item["type"], item["action"]["commands"]) == (
        "response.failed",
        "shell_call",
        [],
    )


HALF = '{"commands":["rm -rf /'
CUT: Item = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


def cut_off(wire: str, *, stream: bool) -> tuple[bytes, str]:
    """Return an answer in whose only call the model reached its limit, and its content type."""
    kind = "text/event-stream" if stream else "application/json"
    if wire == "chat":
        call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": HALF}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        made = [role(), call_chunk("call_1", "shell", HALF), finish("length"), DONE]
        return b"".join(made) if stream else json.dumps({"id": "c", "choices": [choice]}).encode(), kind
    item = function_call("call_1", "shell", HALF)
    if stream:
        return encode([*opening(), *item_events(item, 0), closing([item], **CUT)]), kind
    return json.dumps(resource([item], **CUT)).encode(), kind


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_call_that_was_cut_off_is_incomplete(wire: str, stream: bool) -> None:
    """A client learns that the model could not end a call, and gets no half of a command, also from a server
    that ends each item as completed."""
    model = Fixed(*cut_off(wire, stream=stream))
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": (wire,)})
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        (item,) = await output(proxy, asking(stream=stream))
    assert (item["type"], item["status"], item["action"]["commands"]) == ("shell_call", "incomplete", [])


IN_A_GROUP: Item = {"type": "namespace", "name": "n", "description": "", "tools": [{**LATER, "name": ECHO}]}
IN_AN_ITEM: Item = {"type": "additional_tools", "role": "developer", "tools": [{**LATER, "name": ECHO}]}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("tools", "items", "group"),
    [
        ([IN_A_GROUP, LATER], [], {"namespace": "n"}),
        ([LATER], [IN_AN_ITEM], {}),
        ([LATER], [{**IN_AN_ITEM, "tools": [IN_A_GROUP]}], {"namespace": "n"}),
    ],
)
async def test_a_clients_tool_with_the_name_of_ours(
    tools: Sequence[Item], items: Sequence[Item], group: Item, stream: bool
) -> None:
    """Where the upstream knows namespaces itself, a call of the client's tool is the client's."""
    call = function_call("call_1", ECHO, '{"text":"hi"}', **group)
    events = [*opening(), *item_events(call, 0), closing([call])]
    reply = json.dumps(resource([call])).encode()
    model = Fixed(encode(events), "text/event-stream") if stream else Fixed(reply)
    table = {"base_url": "http://127.0.0.1:9/v1", "wires": ("responses",), "native": ("*",)}
    config = make_config(table, modules=("probe_tools",), allow=("probe_tools__*",))
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        body = {**asking(*items, stream=stream), "tools": tools}
        answer = await proxy.ask(body, path="/v1/responses")
        assert len(model.asked) == 1
        body["input"] += [call, output_of(call)]
        assert (await proxy.ask(body, path="/v1/responses")).status == 200
    assert len(model.asked) == 2
    assert ECHO not in [tool.get("name") for tool in model.asked[0].payload["tools"]]
    final = events_of(answer.body)[-1]["response"] if stream else answer.json
    (item,) = final["output"]
    assert {name: item.get(name) for name in call if name != "id"} == {n: call[n] for n in call if n != "id"}


INNER = [{**LATER, "name": f"f{at}"} for at in range(126)]
MANY: list[Item] = [
    {"type": "namespace", "name": "many", "description": "", "tools": INNER},
    {"type": "apply_patch"},
    LATER,
]
"""128 tools, the most that OpenAI takes."""


async def asked_with_many(wire: str, **upstream: Any) -> int:
    """Return how many requests a model of OpenAI's got from a client with 128 tools, ours withheld."""
    async with serving(wire, calls=("apply_patch",), ours=True, **upstream) as (proxy, model):
        answer = await proxy.ask({**asking(stream=False), "tools": MANY}, path="/v1/responses")
        assert answer.status == 200, answer.body
        assert [item["type"] for item in answer.json["output"]] == ["apply_patch_call"]
        run = await proxy.only_run()
        assert len(model.got.tools) == 128
        assert ECHO not in model.got.tools
    assert run.run.offered == ()
    assert "at most 128 tools" in run.run.withheld[ECHO]
    return len(model.asked)


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_where_the_most_tools_are_known_ours_are_withheld(wire: str) -> None:
    """The client's own tools count as the upstream gets them, and leave no room for those of the server."""
    assert await asked_with_many(wire, profile={"provider": "openai"}, native=()) == 1


@pytest.mark.refuses("chat-tools")
async def test_the_most_tools_are_learned_from_the_refusal_of_chat() -> None:
    """The upstream refuses 129 tools in OpenAI's words; then it gets the client's alone."""
    assert await asked_with_many("chat") == 2


@pytest.mark.refuses("responses-tools")
async def test_the_most_tools_are_learned_from_the_refusal_of_responses() -> None:
    """The upstream refuses 129 tools in OpenAI's words; then it gets the client's alone."""
    assert await asked_with_many("responses") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_search_by_the_client_beside_a_call_of_the_server(stream: bool) -> None:
    """An upstream that knows every type gets functions for what the client has to do before the model goes
    on; the next request has both results."""
    calls = ("weather__now", "shell", "tool_search")
    async with serving("responses", calls=calls, ours=True, native=["*"]) as (proxy, model):
        items = await output(proxy, asking(stream=stream))
        made = [item for item in items if item["type"] != "reasoning"]
        assert [item["type"] for item in made] == [MEMBERS[name]["type"] for name in calls]
        await output(proxy, asking(*items, *map(output_of, made), stream=stream))
    assert {call.name for call in model.got.calls} == {*calls, ECHO}
    assert "later" in model.got.tools


@every_wire
async def test_a_conversation_with_every_type_is_compacted(wire: str) -> None:
    """What a client asks to be compacted may have declarations, calls and results of every type."""
    async with serving(wire, calls=()) as (proxy, model):
        calls = [{**members, "call_id": name, "status": "completed"} for name, members in MEMBERS.items()]
        for call in calls:
            if call["type"] == "function_call":
                call["arguments"] = "{}"
        said = [{"role": "user", "content": "Hi"}, BROUGHT, *calls, *map(output_of, calls)]
        body = {"model": "m", "input": said}
        answer = await proxy.ask(body, path="/v1/responses/compact")
        if wire == "responses":
            assert json.loads(json.dumps(model.asked[-1].payload)) == body
            return
        assert answer.status == 200, answer.body
        assert answer.json["output"][-1]["type"] == "compaction"
        assert b"done query" in json.dumps(model.asked[-1].payload).encode()
        later = [*answer.json["output"], {"role": "user", "content": "Go on"}]
        assert (await proxy.ask(asking(*later, stream=False), path="/v1/responses")).status == 200


CUSTOM_TOOLS: list[Item] = [
    {"type": "function", "function": {"name": "plain", "description": "d", "parameters": CITY}},
    {
        "type": "custom",
        "custom": {
            "name": "say",
            "description": "Says.",
            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}},
        },
    },
]


async def calls_of(proxy: Proxy, body: Item) -> tuple[str, list[Item]]:
    """Return the text and the calls of a Chat answer; a stream has each call of a custom tool once."""
    answer = await proxy.ask(body)
    assert answer.status == 200, answer.body
    if not body.get("stream"):
        message = answer.json["choices"][0]["message"]
        return message["content"] or "", message.get("tool_calls") or []
    chunks = [chunk for chunk in payloads_of(answer.body) if chunk["choices"]]
    assert chunks[-1]["choices"][0]["finish_reason"]
    text, made = "", dict[int, Item]()
    for delta in (chunk["choices"][0]["delta"] for chunk in chunks):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            known = made.setdefault(call["index"], {**call, "function": {"arguments": ""}})
            if "custom" in call:
                assert known["custom"] == call["custom"]
            else:
                more = call["function"]
                known["function"]["arguments"] += more.get("arguments") or ""
    return text, [made[at] for at in sorted(made)]


@pytest.mark.parametrize("wire", SPEAKERS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ours", [False, True])
async def test_custom_tools_of_chat_are_functions(wire: str, stream: bool, ours: bool) -> None:
    """A Chat client's custom tool is a function with a text for a model that knows functions alone."""
    async with serving(wire, calls=("plain", "say"), ours=ours) as (proxy, model):
        messages: list[Item] = [{"role": "user", "content": "Hi"}]
        body = {"model": "m", "stream": stream, "tools": CUSTOM_TOOLS, "messages": messages}
        _, calls = await calls_of(proxy, body)
        (custom,) = [call for call in calls if call["type"] == "custom"]
        assert custom["custom"] == {"name": "say", "input": "hello"}
        back = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
        kept = [
            {"id": call["id"], "type": "custom", "custom": call["custom"]}
            if call["type"] == "custom"
            else {
                "id": call["id"],
                "type": "function",
                "function": {"name": "plain", "arguments": call["function"]["arguments"]},
            }
            for call in calls
        ]
        said = {"role": "assistant", "content": None, "tool_calls": kept}
        text, _ = await calls_of(proxy, {**body, "messages": [*messages, said, *back]})
        assert text == "Done."
    assert {call.name: call.arguments for call in model.got.calls if call.name != ECHO} == {
        "plain": CALLS["plain"],
        "say": CALLS["say"],
    }
    assert (ECHO in {call.name for call in model.got.calls}) is ours


async def test_a_custom_tool_of_chat_is_refused_by_its_field() -> None:
    """What cannot be read is named as the client wrote it, and a choice of a custom tool is one of it."""
    asked: Item = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    async with serving("anthropic", calls=("say",)) as (proxy, model):
        for tool, field in (
            ({"type": "custom"}, "tools[0].custom.name"),
            ({"type": "custom", "custom": 7}, "tools[0].custom"),
            ({"type": "custom", "custom": {"name": 7}}, "tools[0].custom.name"),
            ({"type": "custom", "custom": {"name": "c", "format": "odd"}}, "tools[0].custom.format"),
        ):
            answer = await proxy.ask({**asked, "tools": [tool]})
            assert (answer.status, answer.json["error"]["param"]) == (400, field)
        choice = {"type": "custom", "custom": {"name": "say"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [choice]}}
        for chosen in (choice, allowed):
            _, calls = await calls_of(proxy, {**asked, "tools": CUSTOM_TOOLS, "tool_choice": chosen})
            assert [call["type"] for call in calls] == ["custom"]
            assert json.loads(json.dumps(model.asked[-1].payload))["tool_choice"]["type"] in ("tool", "any")


ARGUMENTS = "response.function_call_arguments"
COMMAND = "response.shell_call_command"
RECORDED: Mapping[str, tuple[set[str], Sequence[tuple[str, set[str]]]]] = {
    "weather__now": (
        {"arguments", "call_id", "id", "name", "namespace", "status", "type"},
        [(f"{ARGUMENTS}.delta", {"delta", "item_id"}), (f"{ARGUMENTS}.done", {"arguments", "item_id"})],
    ),
    "local_shell": ({"action", "call_id", "id", "status", "type"}, []),
    "shell": (
        {"action", "call_id", "id", "status", "type"},
        [
            (f"{COMMAND}.added", {"command", "command_index"}),
            (f"{COMMAND}.delta", {"command_index", "delta"}),
            (f"{COMMAND}.done", {"command", "command_index"}),
        ],
    ),
    "tool_search": ({"arguments", "call_id", "execution", "id", "status", "type"}, []),
    "say": (
        {"call_id", "id", "input", "name", "status", "type"},
        [("response.custom_tool_call_input.delta", {"delta", "item_id"})],
    ),
}
"""For a call, the members of its item and of the events inside it, in order.

As recorded with OpenAI's gpt-5.4 (namespace, client's tool_search), gpt-5-codex (local_shell) and gpt-5.2
(shell in a container, whose calls also have an environment; custom). The recorded events also have a member
``obfuscation``, and the custom tool's no ``done``, which OpenAI's reference has."""


@every_wire
@pytest.mark.parametrize("name", RECORDED)
async def test_events_have_the_order_and_members_that_were_recorded(name: str, wire: str) -> None:
    """Each kind of event of a call comes in the order, and with the members, that OpenAI sent."""
    async with serving(wire, calls=(name,)) as (proxy, _):
        answer = await proxy.ask(asking(), path="/v1/responses")
    events = [event for event in events_of(answer.body) if "output_index" in event]
    item, inside = RECORDED[name]
    assert [set(event["item"]) for event in events if "item" in event] == [item, item]
    seen = {event["type"]: set(event) - {"type", "sequence_number", "output_index"} for event in events}
    expected = [
        ("response.output_item.added", {"item"}), *inside, ("response.output_item.done", {"item"})
    ]  # fmt: skip
    assert [one for one in seen.items() if one[0] != "response.custom_tool_call_input.done"] == expected
