"""``runs replay`` over real runs in real files: offline, and against another upstream."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_script import content, finish, reply, role, stream
from in_process import in_thread
from probe_tools import WATCH
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from served_runs import ANSWER, ASK, BUY, CLIENT_TOOL, CONFIG, ECHO, TIME, TURN, called, recorded
from waiting import until

from proxy.config.secret import Secret


def replayed(here: Any, run_id: str, *options: str, env: Any = None, status: int = 0) -> dict[str, Any]:
    """Replay a run, which must exit with ``status``, and return its JSON."""
    done = here("runs", "replay", run_id, "--json", *options, env=env)
    assert done.returncode == status, done.stderr + done.stdout
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_offline_a_run_comes_out_the_same(tmp_path: Path, here: Any) -> None:
    """Offline, model and tools answer from the record: no tool runs, and there is no difference."""
    run_id = recorded(tmp_path, TURN, ANSWER, content="tools")
    said = replayed(here, run_id)
    assert said["same"], said
    assert said["differences"] == []
    assert said["replayed"]["text"] == "It is noon."
    assert said["replayed"]["tools_called"] == [
        f'turn 1: {TIME} {{"timezone": "UTC"}} -> success',
        f'turn 1: {ECHO} {{"text": "word"}} -> success',
    ]
    assert WATCH.started == []
    shown = here("runs", "replay", run_id)
    assert shown.stdout.splitlines()[-1] == "no difference"
    event = json.loads(shown.stderr)
    assert (event["event"], event["run_id"], event["sent"]) == ("content_read", run_id, False)
    listed = here("runs", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in listed] == [run_id]  # the replay leaves no run behind


@pytest.mark.accepts("chat-calls", why="a gateway that writes more into its ids than OpenAI takes")
def test_a_run_with_long_call_ids_comes_out_the_same(tmp_path: Path, here: Any) -> None:
    """Calls are found by their recorded ids, which are shorter than those of the conversation."""
    ids = [f"call_{number}__thought__{'Cg+/=' * 100}" for number in (1, 2)]
    turn = called((ids[0], TIME, '{"timezone":"UTC"}'), (ids[1], ECHO, '{"text":"word"}'))
    said = replayed(here, recorded(tmp_path, turn, ANSWER, content="tools"))
    assert said["same"], said


def test_offline_shows_what_this_configuration_would_do_otherwise(tmp_path: Path, here: Any) -> None:
    """With another configuration, the replay names tools that it no longer offers and refuses their calls."""
    run_id = recorded(tmp_path, TURN, ANSWER, content="tools")
    env = {"TOOLRELAY_POLICY__ALLOW": '["core__*"]'}
    said = replayed(here, run_id, env=env)
    assert not said["same"]
    assert said["differences"] == ["tools_offered", "tools_called"]
    assert said["replayed"]["tools_called"][1].endswith("-> policy_denied")
    shown = here("runs", "replay", run_id, env=env).stdout
    assert f'no longer offered: {ECHO} (policy.allow lacks "{ECHO}")' in shown
    assert "2 differences" in shown
    gone = {"TOOLRELAY_TOOLS__MODULES": "[]"}
    assert replayed(here, run_id, env=gone)["replayed"]["tools_called"][1].endswith("-> unknown_tool")
    budget = replayed(here, run_id, env={"TOOLRELAY_TOOLS__MAX_CALLS": "1"})
    assert budget["replayed"]["tools_called"][1].endswith("-> budget_exhausted")


def test_offline_with_no_tool_left_there_is_no_run(tmp_path: Path, here: Any) -> None:
    """If no tool is left to offer, the request would pass through; that counts as a difference."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    said = replayed(here, run_id, env={"TOOLRELAY_POLICY__ALLOW": "[]"}, status=1)
    assert (said["recorded"]["status"], said["replayed"]["status"]) == ("completed", "no run")


def test_effects_do_not_happen_again(tmp_path: Path, here: Any) -> None:
    """Calls of a tool with a side effect are answered from the record, and the tool does not run."""
    turn = called(("call_1", BUY, '{"what":"a"}'), ("call_2", BUY, '{"what":"b"}'))
    run_id = recorded(tmp_path, turn, ANSWER)
    said = replayed(here, run_id)
    assert said["same"], said
    assert len(said["replayed"]["tools_called"]) == 2
    assert WATCH.started == []


def test_failures_are_frozen_too(tmp_path: Path, here: Any) -> None:
    """A call that failed, or that the schema refused, ends in the same way in the replay."""
    turn = called(
        ("call_1", "probe_tools__fail", "{}"),
        ("call_2", ECHO, '{"wrong":1}'),
        ("call_3", ECHO, '{"text":"x"}'),
    )
    run_id = recorded(tmp_path, turn, ANSWER)
    said = replayed(here, run_id)
    assert said["same"], said
    ends = [line.rpartition(" ")[2] for line in said["replayed"]["tools_called"]]
    assert ends == ["execution_failed", "invalid_arguments", "success"]


ERROR = b'{"error":{"message":"no","type":"x","param":null,"code":"bad"}}'


@pytest.mark.parametrize(
    ("scripts", "error"),
    [
        ([TURN, whole(ERROR, status="400 Bad Request")], "bad"),
        ([whole(ERROR, status="400 Bad Request")], "http_400"),
        ([TURN, whole(b"{}", content_type="text/plain")], "upstream_malformed"),
    ],
)
def test_an_upstreams_error_is_replayed(tmp_path: Path, here: Any, scripts: Any, error: str) -> None:
    """A run that ended in an error of the upstream ends in the same error again."""
    said = replayed(here, recorded(tmp_path, *scripts))
    assert said["same"], said
    assert (said["replayed"]["status"], said["replayed"]["error"]) == ("failed", error)


def test_a_run_of_the_responses_wire_is_replayed(tmp_path: Path, here: Any) -> None:
    """A run over the Responses API is replayed the same, offline and against another upstream."""
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": TIME,
            "arguments": '{"timezone":"UTC"}', "status": "completed"}  # fmt: skip
    text = {"type": "output_text", "text": "Noon.", "annotations": []}
    message = {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": [text]}
    base = {"object": "response", "status": "completed", "model": "m"}
    turns = [{**base, "id": "resp_1", "output": [item]}, {**base, "id": "resp_2", "output": [message]}]
    scripts = [whole(json.dumps(turn).encode()) for turn in turns]
    run_id = recorded(tmp_path, *scripts, ask={"model": "m", "input": "hi"}, path="/v1/responses")
    said = replayed(here, run_id)
    assert said["same"], said
    assert said["replayed"]["text"] == "Noon."
    with in_thread(RawUpstream(*scripts)) as upstream:
        said = replayed(here, run_id, "--upstream", upstream.url)
    assert said["same"], said
    assert json.loads(upstream.requests[0].body)["input"] == "hi"


@pytest.mark.parametrize("keep", ["tools", "none"])
def test_what_is_missing_is_said(tmp_path: Path, here: Any, keep: str) -> None:
    """If content was not kept, the command says what is missing and which setting keeps it."""
    run_id = recorded(tmp_path, TURN, ANSWER, content=keep)
    done = here("runs", "replay", run_id, "--upstream", "http://127.0.0.1:9/v1")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "the client's request" in line
    assert 'store.content = "all"' in line
    offline = here("runs", "replay", run_id)
    assert offline.returncode == (1 if keep == "none" else 0)
    if keep == "none":
        assert "what the model said in turn 1" in offline.stderr


def test_against_another_upstream(tmp_path: Path, here: Any) -> None:
    """Another upstream gets the client's request and the same tools; tool results come from the record."""
    ask = {**ASK, "temperature": 0.5}
    run_id = recorded(tmp_path, TURN, ANSWER, ask=ask)
    other = called(("call_9", ECHO, '{"text": "word"}'))
    last = stream(role(), content("Noon, ", "I think."), finish())
    with in_thread(RawUpstream(other, last)) as upstream:
        said = replayed(here, run_id, "--upstream", upstream.url, "--model", "n")
        requests = [json.loads(request.body) for request in upstream.requests]
    assert [request["model"] for request in requests] == ["n", "n"]
    assert [request["temperature"] for request in requests] == [0.5, 0.5]
    assert requests[0]["messages"] == ASK["messages"]
    offered = {tool["function"]["name"] for tool in requests[0]["tools"]}
    assert {TIME, ECHO, BUY} <= offered
    assert json.loads(requests[1]["messages"][-1]["content"]) == {"echo": "word", "inside": "hidden-output"}
    assert WATCH.started == []
    assert said["differences"] == ["tools_called", "text"]
    assert said["replayed"]["text"] == "Noon, I think."
    assert said["unmatched"] == []


def test_a_call_that_was_not_made_then_has_no_result(tmp_path: Path, here: Any) -> None:
    """If another model makes a call that is not on record, it gets an error and no tool runs."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    other = called(("call_9", ECHO, '{"text":"another word"}'))
    with in_thread(RawUpstream(other, ANSWER)) as upstream:
        said = replayed(here, run_id, "--upstream", upstream.url)
        told = json.loads(upstream.requests[1].body)["messages"][-1]["content"]
    assert said["unmatched"] == [ECHO]
    assert "no result for this call" in told
    assert WATCH.started == []


def test_a_key_goes_to_no_other_upstream(tmp_path: Path, here: Any) -> None:
    """A replay does not send the configured key to another upstream."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    env = {"OPENAI_API_KEY": "sk-never-sent-0123456789"}
    with in_thread(RawUpstream(reply("Noon."))) as upstream:
        replayed(here, run_id, "--upstream", upstream.url, env=env)
        assert not any(request.header("authorization") for request in upstream.requests)


def test_an_upstream_that_is_not_there(tmp_path: Path, here: Any) -> None:
    """If the other upstream cannot be reached, the replay fails with that error and exit status 1."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    said = replayed(here, run_id, "--upstream", "http://127.0.0.1:9/v1", status=1)
    assert (said["replayed"]["status"], said["replayed"]["error"]) == ("failed", "upstream_unreachable")


def test_the_record_is_what_serve_left(tmp_path: Path, here: Any) -> None:
    """A replay does not change the record of the run."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    before = here("runs", "export", "--content").stdout
    replayed(here, run_id)
    assert here("runs", "export", "--content").stdout == before


def test_private_arguments_are_the_same_by_what_is_not_private(tmp_path: Path, here: Any) -> None:
    """A record without a seal masks private arguments; the replay matches the rest, and says so."""
    turn = called(("call_1", "probe_tools__unlock", '{"pin":"pin-4711"}'))
    run_id = recorded(tmp_path, turn, ANSWER, seal=False)
    assert b"pin-4711" not in (tmp_path / "toolrelay.db").read_bytes()
    with in_thread(
        RawUpstream(called(("call_9", "probe_tools__unlock", '{"pin":"pin-0815"}')), ANSWER)
    ) as upstream:
        said = replayed(here, run_id, "--upstream", upstream.url)
    assert said["unmatched"] == []
    assert said["missing"] == [
        "private tool arguments (they are masked; a tool's schema may refuse the mask)"
    ]
    assert WATCH.started == []


@pytest.mark.accepts("chat-calls", why="the model calls a name that no provider takes back")
def test_calls_inside_a_wrapper_have_results_of_their_own(tmp_path: Path, here: Any) -> None:
    """Calls inside one wrapper call are replayed each with its own result."""
    uses = [
        {"recipient_name": f"functions.{ECHO}", "parameters": {"text": text}} for text in ("one", "two")
    ]  # fmt: skip
    turn = called(("call_1", "multi_tool_use.parallel", json.dumps({"tool_uses": uses})))
    said = replayed(here, recorded(tmp_path, turn, ANSWER))
    assert said["same"], said
    assert len(said["replayed"]["tools_called"]) == 2
    assert said["unmatched"] == []


def test_a_function_call_of_the_older_kind_is_replayed(tmp_path: Path, here: Any) -> None:
    """A run with function calls of the older kind, which have no ids, is replayed the same."""
    ask = {**ASK, "stream": False, "functions": [{"name": "mine", "parameters": {"type": "object"}}]}
    legacy = reply(None, reason="function_call", function_call={"name": ECHO, "arguments": '{"text":"x"}'})
    said = replayed(here, recorded(tmp_path, legacy, reply("It is noon."), ask=ask))
    assert said["same"], said
    assert said["replayed"]["tools_called"] == [f'turn 1: {ECHO} {{"text": "x"}} -> success']


CONNECTED = """
from proxy.tools import HttpClient, Redaction, tool

@tool(effect="external_side_effect", redaction=Redaction(), hosts=("127.0.0.1",), connection="shop")
async def order(http: HttpClient) -> str:
    "Order."
    return "ordered"
"""


def test_a_replay_spends_no_credentials(tmp_path: Path, here: Any) -> None:
    """Rule T6: a replay does not run the tool, so it requests no token."""
    module = tmp_path / "desk.py"
    module.write_text(CONNECTED)
    asked: list[Any] = []

    async def serve() -> str:
        async with RawUpstream(called(("call_1", "desk__order", "{}")), ANSWER) as scripted:
            config = make_config(
                scripted.url,
                modules=(str(module),),
                allow=("desk__*",),
                store={"url": f"sqlite:///{tmp_path / 'toolrelay.db'}", "content": "all"},
                credentials={"shop": {"token": Secret("env:SHOP", "s3cret-shop")}},
            )
            async with running(config) as proxy:
                return (await proxy.ask(ASK)).header("x-toolrelay-run") or ""

    run_id = asyncio.run(serve())
    with in_thread(RawUpstream(whole(b'{"access_token":"a","refresh_token":"b"}'))) as upstream:
        (tmp_path / "toolrelay.toml").write_text(
            f'[tools]\nmodules = ["{module}"]\nnetworks = ["127.0.0.0/8"]\n[policy]\nallow = ["desk__*"]\n'
            f'[credentials.shop]\ntoken_url = "{upstream.url}/token"\nclient_id = "env:SHOP"\n'
            'refresh_token = "env:SHOP"\n'
        )
        said = replayed(here, run_id, env={"SHOP": "s3cret-shop"})
        asked += upstream.requests
    assert said["replayed"]["tools_called"] == ["turn 1: desk__order {} -> success"]
    assert said["same"], said
    assert asked == []


MIXED = called(("call_1", TIME, '{"timezone":"UTC"}'), ("call_2", "mine", '{"a":1}'))
MIXED_ASK = {**ASK, "tools": [CLIENT_TOOL]}


@pytest.mark.parametrize("kept", ["tools", "all"])
def test_offline_a_suspended_run_comes_out_the_same(tmp_path: Path, here: Any, kept: str) -> None:
    """Offline, the client gets its own call again, and the server tool's result comes from the record."""
    run_id = recorded(tmp_path, MIXED, ask=MIXED_ASK, content=kept)
    said = replayed(here, run_id)
    assert said["same"], said
    assert (said["replayed"]["status"], said["replayed"]["finish"]) == ("suspended", "tool_calls")
    assert said["replayed"]["tools_called"] == [f'turn 1: {TIME} {{"timezone": "UTC"}} -> success']
    assert said["unmatched"] == []


def test_offline_a_run_that_ends_in_the_clients_calls_comes_out_the_same(tmp_path: Path, here: Any) -> None:
    """A run that ends in calls of the client's tools only is replayed the same."""
    run_id = recorded(tmp_path, called(("call_2", "mine", '{"a":1}')), ask=MIXED_ASK)
    said = replayed(here, run_id)
    assert said["same"], said
    assert said["replayed"]["finish"] == "tool_calls"


def test_offline_a_run_that_spent_its_budget_comes_out_the_same(tmp_path: Path, here: Any) -> None:
    """A call that was refused for a budget is refused again; a larger budget makes a difference."""
    late = called(("call_3", ECHO, '{"text":"again"}'))
    run_id = recorded(tmp_path, TURN, late, tools={"max_turns": 2})
    said = replayed(here, run_id, env={"TOOLRELAY_TOOLS__MAX_TURNS": "2"})
    assert said["same"], said
    assert said["replayed"]["tools_called"][-1].endswith("-> budget_exhausted")
    more = replayed(here, run_id, env={"TOOLRELAY_TOOLS__MAX_TURNS": "3"}, status=1)
    assert not more["same"]
    assert "tools_called" in more["differences"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_offline_a_suspended_run_of_another_dialect_comes_out_the_same(
    tmp_path: Path, here: Any, path: str
) -> None:
    """A suspended run is replayed the same if the client speaks another dialect than the upstream."""
    function = {"name": "mine", "parameters": {"type": "object"}}
    asks: dict[str, dict[str, Any]] = {
        "/v1/responses": {
            "model": "m",
            "stream": True,
            "input": "hi",
            "tools": [{"type": "function", **function}],
        },
        "/v1/messages": {
            "model": "m",
            "max_tokens": 99,
            "stream": True,
            "messages": ASK["messages"],
            "tools": [{"name": "mine", "input_schema": {"type": "object"}}],
        },
    }
    run_id = recorded(tmp_path, MIXED, ask=asks[path], path=path, wires=("chat",))
    said = replayed(here, run_id)
    assert (said["recorded"]["status"], said["recorded"]["finish"]) == ("suspended", "tool_calls")
    assert said["same"], said


SERVER_TOOLS = called(("call_1", TIME, '{"timezone":"UTC"}'))
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/responses": {"model": "m", "stream": True, "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 99, "stream": True, "messages": ASK["messages"]},
    "/api/chat": {"model": "m", "messages": ASK["messages"]},
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", list(ASKS))
def test_the_client_would_get_the_same_bytes(tmp_path: Path, here: Any, path: str, stream: bool) -> None:
    """In each dialect, client and upstream get the same bytes, including ids and times of the proxy."""
    scripts = (SERVER_TOOLS, ANSWER)
    if not stream:
        calls = [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": TIME, "arguments": '{"timezone":"UTC"}'},
            }
        ]
        scripts = (reply(None, reason="tool_calls", tool_calls=calls), reply("It is noon."))
    run_id = recorded(
        tmp_path,
        *scripts,
        ask={**ASKS[path], "stream": stream},
        path=path,
        wires=("chat",),
        headers={"x-toolrelay-trace": "events"},
        tools={"trace_max": "events"},
    )
    said = replayed(here, run_id)
    assert said["same"], said
    assert said["bytes"] == {"same": True, "not_compared": None}
    compared = [name for name in said["recorded"] if name.startswith("bytes")]
    assert compared == ["bytes to client", *(f"bytes of request {n} to upstream" for n in (1, 2))]
    assert "offline; used the recorded bytes" in here("runs", "replay", run_id).stdout
    assert WATCH.started == []


def test_the_first_byte_that_differs_is_shown(tmp_path: Path, here: Any) -> None:
    """If the client's bytes differ, the replay shows the first different byte and exits with status 1."""
    traced = {"x-toolrelay-trace": "events"}
    run_id = recorded(tmp_path, TURN, ANSWER, headers=traced, tools={"trace_max": "events"})
    assert replayed(here, run_id)["bytes"]["same"] is True
    env = {"TOOLRELAY_POLICY__ALLOW": '["core__*"]'}
    said = replayed(here, run_id, env=env, status=1)
    assert said["bytes"] == {"same": False, "not_compared": None}
    was, now = said["recorded"]["bytes to client"], said["replayed"]["bytes to client"]
    assert was.split(" of ")[0] == now.split(" of ")[0]
    assert was.startswith("byte ")
    before, _, after = was.partition("»")
    other_before, _, other_after = now.partition("»")
    assert before.partition(": ")[2] == other_before.partition(": ")[2]
    assert after[:1] != other_after[:1]


def test_bytes_that_were_not_kept_are_not_compared(tmp_path: Path, here: Any) -> None:
    """If a run's bytes were not kept, the command says so and names the setting that keeps them."""
    run_id = recorded(tmp_path, TURN, ANSWER, content="tools")
    said = replayed(here, run_id)
    assert said["bytes"]["same"] is None
    assert 'store.content = "all"' in said["bytes"]["not_compared"]
    assert (
        "bytes are not compared: the bytes of this run were not kept" in here("runs", "replay", run_id).stdout
    )


@pytest.mark.parametrize("wire_bytes", [True, False], ids=["bytes", "messages"])
def test_a_request_s_own_budget_holds_again(tmp_path: Path, here: Any, wire_bytes: bool) -> None:
    """A request's ``max_tool_calls`` holds again, whether its bytes or only its messages were kept."""
    ask = {**ASKS["/v1/responses"], "max_tool_calls": 1}
    run_id = recorded(
        tmp_path, TURN, ANSWER, ask=ask, path="/v1/responses", wires=("chat",), wire_bytes=wire_bytes
    )
    said = replayed(here, run_id)
    assert said["recorded"]["tools_called"][-1].endswith("-> budget_exhausted")
    assert said["same"], said
    assert said["bytes"]["same"] is (True if wire_bytes else None)


@pytest.mark.parametrize("scripts", [(TURN, whole(ERROR, status="500 Server Error")), (TURN, TURN[:3])])
def test_a_broken_upstream_breaks_again_byte_for_byte(tmp_path: Path, here: Any, scripts: Any) -> None:
    """If the upstream failed, the replay gives the client the same error, byte for byte."""
    run_id = recorded(tmp_path, *scripts, wires=("chat",), retries=0)
    said = replayed(here, run_id, env={"TOOLRELAY_UPSTREAMS__DEFAULT__RETRIES": "0"})
    assert said["recorded"]["status"] == "failed"
    assert said["bytes"]["same"] is True, said


def test_a_response_in_the_background_has_the_same_bytes(tmp_path: Path, here: Any) -> None:
    """A response in the background is replayed with the same bytes."""
    ask = {**ASKS["/v1/responses"], "stream": False, "background": True}

    async def serve() -> str:
        store = {"url": f"sqlite:///{tmp_path / 'toolrelay.db'}", "content": "all"}
        async with RawUpstream(SERVER_TOOLS, ANSWER) as scripted:
            served = {"base_url": scripted.url, "wires": ("chat",)}
            async with running(make_config(served, modules=("probe_tools",), store=store)) as proxy:
                answer = await proxy.ask(ask, path="/v1/responses")

                async def completed() -> bool:
                    found = await proxy.get(f"/v1/responses/{answer.json['id']}")
                    return bool(found.json["status"] == "completed")

                await until(completed)
                return answer.header("x-toolrelay-run") or ""

    (tmp_path / "toolrelay.toml").write_text(CONFIG)
    said = replayed(here, asyncio.run(serve()))
    assert said["bytes"] == {"same": True, "not_compared": None}, said
    assert said["same"], said


def test_tools_that_need_an_approval_are_offered_again(tmp_path: Path, here: Any) -> None:
    """A tool that needs an approval is offered again, so there is no difference."""
    approve = {"TOOLRELAY_POLICY__APPROVE": f'["{BUY}"]'}
    run_id = recorded(tmp_path, TURN, ANSWER, approve=(BUY,))
    said = replayed(here, run_id, env=approve)
    assert BUY in said["recorded"]["tools_offered"]
    assert said["same"], said


def test_a_run_that_searched_comes_out_the_same(tmp_path: Path, here: Any) -> None:
    """A replay of a run that searched its tools offers the same, finds the same and calls the same."""
    searched = called(("call_1", "core__search_tools", '{"query":"say the text again"}'))
    used = called(("call_2", ECHO, '{"text":"word"}'))
    run_id = recorded(tmp_path, searched, used, ANSWER, tools={"search": "on"})
    (tmp_path / "toolrelay.toml").write_text(CONFIG.replace("[tools]", '[tools]\nsearch = "on"'))
    said = replayed(here, run_id)
    assert said["same"], said
    assert said["replayed"]["text"] == "It is noon."


@pytest.mark.parametrize("wire_bytes", [False, True])
def test_a_run_with_a_program_comes_out_the_same(tmp_path: Path, here: Any, wire_bytes: bool) -> None:
    """The recorded result of a program takes its place; the tool that runs programs is offered again."""
    code = f"print((await {ECHO}(text='word'))['echo'])"
    wrote = called(("call_1", "core__run_program", json.dumps({"code": code})))
    content = "all" if wire_bytes else "tools"
    run_id = recorded(tmp_path, wrote, ANSWER, content=content, tools={"programs": "on"})
    (tmp_path / "toolrelay.toml").write_text(CONFIG.replace("[tools]", '[tools]\nprograms = "on"'))
    comparison = replayed(here, run_id)
    assert comparison["same"], comparison
    assert "no longer offered" not in here("runs", "replay", run_id).stdout
    assert comparison["replayed"]["text"] == "It is noon."
    assert WATCH.started == []
