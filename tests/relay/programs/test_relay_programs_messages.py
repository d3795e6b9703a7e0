"""Anthropic's code execution: programs of clients of Messages, which can call the client's own tools."""

import json
from collections.abc import Sequence
from typing import Any

import anthropic
import pytest
from agents_rig import Asked, Models, Turn
from client_keys import ALICE, BOB, bearer, declared
from code_execution_rig import (
    BUY,
    CALLER,
    CODE_TOOL,
    ECHO,
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
from messages_script import reply, stream, text, tool_use
from probe_tools import Watch
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import make_config, running

from proxy.base.events import RUN_PROGRAM
from proxy.store.base import RunFilter


async def test_a_program_without_client_tools_is_shown_as_code_execution(watch: Watch) -> None:
    """The client sees the program, its output and a container; server tools run in it."""
    code = f"print((await {ECHO}(text='a'))['echo'])\n21 * 2"
    models = Models({"m": writes(code)})
    async with served(models) as proxy:
        answer = (await ask(proxy, QUESTION, tools=[CODE_TOOL])).json
        await ask(proxy, QUESTION, said(answer), {"role": "user", "content": "And?"}, tools=[CODE_TOOL])
    use, result, text = answer["content"]
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": code})
    assert result == {
        "type": "code_execution_tool_result",
        "tool_use_id": use["id"],
        "content": {
            "type": "code_execution_result",
            "stdout": "a\n42",
            "stderr": "",
            "return_code": 0,
            "content": [],
        },
    }
    assert answer["container"]["id"].startswith("container_")
    assert watch.started == ["echo"]
    assert "Read: " in text["text"]
    # In the next request the model reads its program and the result again.
    again = models.asked["m"][-1]
    assert "code_execution" in again.text
    assert json.loads(again.results[0]) == {"printed": "a\n", "value": 42}
    shown = models.asked["m"][0].tools
    assert shown == ["code_execution"]


async def test_an_exception_is_an_exit_code() -> None:
    """A program that fails has a result with its traceback, and the model reads it."""
    async with served(Models({"m": writes("1 / 0")})) as proxy:
        answer = (await ask(proxy, QUESTION)).json
    content = answer["content"][1]["content"]
    assert (content["return_code"], content["stdout"]) == (1, "")
    assert "ZeroDivisionError" in content["stderr"]


async def test_a_program_calls_tools_of_the_client_over_several_requests() -> None:
    """Each pause ends the answer with the calls; the end of the program comes before the model's text."""
    models = Models({"m": writes(TWO_STEPS)})
    async with served(models) as proxy:
        first = (await ask(proxy, QUESTION)).json
        use, call = first["content"]
        assert first["stop_reason"] == "tool_use"
        assert call["caller"] == {"type": CALLER, "tool_id": use["id"]}
        assert (call["name"], call["input"]) == ("query_sales", {"region": "West"})
        box = first["container"]["id"]
        talk = [QUESTION, said(first), results_of(first, sold)]
        second = (await ask(proxy, *talk, container=box)).json
        (call,) = second["content"]
        assert call["caller"] == {"type": CALLER, "tool_id": use["id"]}
        assert call["input"] == {"region": "East"}
        assert (second["stop_reason"], second["container"]["id"]) == ("tool_use", box)
        assert len(models.asked["m"]) == 1
        talk += [said(second), results_of(second, sold)]
        third = (await ask(proxy, *talk, container=box)).json
        result, text = third["content"]
        assert (result["type"], result["tool_use_id"]) == ("code_execution_tool_result", use["id"])
        assert result["content"]["stdout"] == "East\n"
        assert text["text"].startswith("Read: ")
        assert third["stop_reason"] == "end_turn"
        talk += [said(third), {"role": "user", "content": "Thanks."}]
        fourth = (await ask(proxy, *talk, container=box)).json
    assert fourth["content"][0]["text"].startswith("Read: ")
    for asked in models.asked["m"][1:]:
        assert len(asked.results) == 1
        assert "East" in asked.results[0]
        assert "query_sales" not in [
            call["function"]["name"] for one in asked.body["messages"] for call in one.get("tool_calls", ())
        ]
    assert [message["role"] for message in models.asked["m"][-1].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def test_the_official_client_reads_the_stream_of_a_program() -> None:
    """Anthropic's SDK streams the pauses and the end, with the container that it sends back."""
    models = Models({"m": writes(TWO_STEPS)})
    async with served(models) as proxy:
        client = anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{proxy.port}", api_key="x", max_retries=0
        )
        talk: list[Any] = [QUESTION]
        box: str | None = None
        for turn in range(3):
            asked: Any = {"messages": talk, "tools": [CODE_TOOL, QUERY], "container": box}
            async with client.messages.stream(model="m", max_tokens=500, **asked) as stream:
                message = await stream.get_final_message()
            assert message.stop_reason == ("end_turn" if turn == 2 else "tool_use")
            assert message.container is not None
            box = message.container.id
            as_sent = message.model_dump(mode="json", exclude_none=True)
            talk.append(said(as_sent))
            if turn < 2:
                (call,) = [block for block in message.content if block.type == "tool_use"]
                assert call.caller is not None
                assert call.caller.type == CALLER
                talk.append(results_of(as_sent, sold))
        await client.close()
    kinds = [block.type for block in message.content]
    assert kinds == ["code_execution_tool_result", "text"]


async def test_who_may_call_a_tool() -> None:
    """Tools for programs only are not shown; those for both are; those without a word are for the model."""
    both = {**QUERY, "name": "both", "allowed_callers": ["direct", CALLER]}
    direct = {**QUERY, "name": "direct_only"}
    del direct["allowed_callers"]
    code = "await direct_only(region='West')"
    models = Models({"m": writes(code)})
    async with served(models) as proxy:
        answer = (await ask(proxy, QUESTION, tools=[CODE_TOOL, QUERY, both, direct])).json
    assert "direct_only" in answer["content"][1]["content"]["stderr"]
    asked = models.asked["m"][0]
    assert sorted(asked.tools) == ["both", "code_execution", "direct_only"]
    (shown,) = [one["function"] for one in asked.body["tools"] if one["function"]["name"] == "code_execution"]
    declared = shown["parameters"]["properties"]["code"]["description"]
    assert "async def query_sales(*, region: str) -> Any:" in declared
    assert "async def both(*, region: str) -> Any:" in declared
    assert "direct_only" not in declared


async def test_a_model_cannot_call_a_tool_of_programs_directly() -> None:
    """A call that the model makes of such a tool does not reach the client."""

    def say(asked: Asked) -> Turn:
        return Turn("Done.") if asked.results else Turn(calls=[("query_sales", {"region": "West"})])

    models = Models({"m": say})
    async with served(models) as proxy:
        answer = (await ask(proxy, QUESTION)).json
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert "unknown_tool" in models.asked["m"][1].results[0]


async def test_the_container_of_a_program_that_waits_is_needed() -> None:
    """It has to be sent, and it has to be the caller's, not expired, and that of the program."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        first, talk = await paused(proxy)
        box = first["container"]["id"]
        other = (await ask(proxy, {"role": "user", "content": "Other"})).json["container"]["id"]
        for container, words in (
            (None, "container_id is required when there are pending tool uses"),
            ("container_011CWHPPTDTn1XufeRB9uHeH", "there is no container of this id"),
            (box[:-4] + ("AAAA" if box[-4:] != "AAAA" else "BBBB"), "there is no container of this id"),
            (other, "runs in another one"),
            ({"id": box, "skills": [{"type": "anthropic", "skill_id": "pdf"}]}, "no files"),
        ):
            more = {} if container is None else {"container": container}
            error = (await ask(proxy, *talk, status=400, **more)).json["error"]
            assert error["type"] == "invalid_request_error"
            assert words in error["message"]
        assert (await ask(proxy, *talk, container={"id": box})).json["stop_reason"] == "tool_use"


async def test_a_container_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day it is refused, and the error says what to do."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        first, talk = await paused(proxy)
        monkeypatch.setattr("proxy.wires.anthropic.hosted.programs.epoch_s", lambda: 1 << 35)
        error = (await ask(proxy, *talk, status=400, container=first["container"]["id"])).json["error"]
    assert "expired" in error["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda blocks: [*blocks, {"type": "text", "text": "Quick!"}], "nothing else"),
        (lambda blocks: [*blocks, blocks[0]], "another result"),
        (lambda blocks: [], "without tool_result"),
        (lambda blocks: [{**blocks[0], "tool_use_id": "toolu_" + "0" * 24}], "without tool_result"),
    ],
)
async def test_results_that_do_not_fit_are_refused(change: Any, words: str) -> None:
    """Text beside results, two results, none, and one for a call that was not made."""
    async with served(Models({"m": writes(TWO_STEPS)})) as proxy:
        first, talk = await paused(proxy)
        talk[-1] = {"role": "user", "content": change(talk[-1]["content"])}
        error = (await ask(proxy, *talk, status=400, container=first["container"]["id"])).json["error"]
        assert words in error["message"]


async def test_a_request_that_is_sent_again_gets_the_same_calls(watch: Watch) -> None:
    """The client may lose an answer: the program does not run again, and no effect happens twice."""
    code = (
        "await query_sales(region='West')\n"
        f"await {BUY}(what='tea')\n"
        "(await query_sales(region='East'))['total']"
    )
    async with served(Models({"m": writes(code)})) as proxy:
        first, talk = await paused(proxy)
        box = first["container"]["id"]
        second = (await ask(proxy, *talk, container=box)).json
        again = (await ask(proxy, *talk, container=box)).json
        assert [block["id"] for block in again["content"]] == [block["id"] for block in second["content"]]
        talk += [said(second), results_of(second, sold)]
        third = (await ask(proxy, *talk, container=box)).json
        last = (await ask(proxy, *talk, container=box)).json
    assert watch.started == ["buy"]
    assert third["content"][0]["content"]["stdout"] == "9"
    assert last["content"][-1]["text"] == third["content"][-1]["text"] == "Read: 9"


async def test_several_calls_at_once_and_an_error_of_the_client(watch: Watch) -> None:
    """Calls side by side come in one answer; what is an error at the client raises in the program."""
    code = f"""
import asyncio
async def tried(region):
    try:
        return (await query_sales(region=region))["total"]
    except RuntimeError as error:
        return str(error)
await asyncio.gather({ECHO}(text="a"), tried("West"), tried("North"))
"""
    async with served(Models({"m": writes(code)})) as proxy:
        first = (await ask(proxy, QUESTION)).json
        west, north = first["content"][1:]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": north["id"],
                "content": "no such region",
                "is_error": True,
            },
            {
                "type": "tool_result",
                "tool_use_id": west["id"],
                "content": [{"type": "text", "text": '{"total": 7}'}],
            },
        ]
        talk = [QUESTION, said(first), {"role": "user", "content": results}]
        last = (await ask(proxy, *talk, container=first["container"]["id"])).json
    echoed, seven, error = json.loads(last["content"][0]["content"]["stdout"])
    assert (echoed["echo"], seven) == ("a", 7)
    assert "no such region" in error
    assert watch.started == ["echo"]


async def test_another_caller_cannot_go_on() -> None:
    """The container and the program belong to the key that began it."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with served(Models({"m": writes(TWO_STEPS)}), keys=keys) as proxy:
        first = await proxy.ask(body(QUESTION), {**HEADERS, **bearer(ALICE)}, path=MESSAGES)
        message = first.json
        asked = body(QUESTION, said(message), results_of(message, sold), container=message["container"]["id"])
        theirs = await proxy.ask(asked, {**HEADERS, **bearer(BOB)}, path=MESSAGES)
        assert theirs.status == 400
        assert "there is no container" in theirs.json["error"]["message"]
        mine = await proxy.ask(asked, {**HEADERS, **bearer(ALICE)}, path=MESSAGES)
        assert mine.status == 200


@pytest.mark.parametrize("given", ["'[1]'", "'{'", "'null'", "chr(0) * 9", "'{\"a\": NaN}'"])
async def test_a_program_cannot_write_anything_into_the_stream(given: str) -> None:
    """What a program passes below the names of tools is checked before the client sees it."""
    async with served(Models({"m": writes(f"await _call('query_sales', {given})")})) as proxy:
        answer = (await ask(proxy, QUESTION)).json
    assert answer["stop_reason"] == "end_turn"
    assert "invalid_arguments" in json.dumps(answer)


async def test_without_programs_the_declaration_is_refused_as_before() -> None:
    """The error says what the operator would have to set."""
    async with served(Models({"m": writes("1")}), tools={"programs": "off"}) as proxy:
        error = (await ask(proxy, QUESTION, status=400)).json["error"]
    assert "tools.programs" in error["message"]


async def test_the_record_has_the_program(watch: Watch) -> None:
    """The program's run goes on over the requests, under the run that began it."""
    async with served(
        Models({"m": writes(f"await query_sales(region='West')\nawait {BUY}(what='a')")})
    ) as proxy:
        first, talk = await paused(proxy)
        await ask(proxy, *talk, container=first["container"]["id"])
        store = proxy.services.store
        runs = await store.list_runs(RunFilter())
    (program,) = [run for run in runs if run.agent == RUN_PROGRAM]
    assert program.status == "completed"
    assert program.tool_calls == 2
    assert watch.started == ["buy"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_upstream_of_the_same_dialect(streamed: bool) -> None:
    """A server of Messages that runs no code gets an ordinary tool, without members that it may not know."""
    code = "(await query_sales(region='West'))['total']"

    def answer(request: RawRequest) -> Sequence[Step]:
        sent = json.loads(request.body)
        asked.append(sent)
        results = [
            block
            for message in sent["messages"]
            for block in message["content"]
            if isinstance(block, dict) and block["type"] == "tool_result"
        ]
        block = (
            text(results[0]["content"]) if results else tool_use("toolu_1", "code_execution", {"code": code})
        )
        reason = "end_turn" if results else "tool_use"
        return stream(block, reason=reason) if sent.get("stream") else reply(block, reason=reason)

    asked: list[Any] = []
    async with RawUpstream(answer) as upstream:
        table = {"base_url": upstream.url, "wires": ("anthropic",), "native": ()}
        config = make_config(
            table, allow=("probe_tools__*",), modules=("probe_tools",), tools={"programs": "on"}
        )
        async with running(config) as proxy:
            client = anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="x")
            talk, box = [QUESTION], None
            for _ in range(2):
                more: Any = {"messages": talk, "tools": [CODE_TOOL, QUERY], "container": box}
                if streamed:
                    async with client.messages.stream(model="m", max_tokens=500, **more) as events:
                        message = await events.get_final_message()
                else:
                    message = await client.messages.create(model="m", max_tokens=500, **more)
                as_sent = message.model_dump(mode="json", exclude_none=True)
                if message.stop_reason == "tool_use":
                    talk += [said(as_sent), results_of(as_sent, sold)]
                box = message.container and message.container.id
            await client.close()
    result, words = as_sent["content"]
    assert (result["type"], result["content"]["stdout"]) == ("code_execution_tool_result", "7")
    assert words["text"] == "7"
    for one in asked:
        assert "container" not in one
        assert [tool["name"] for tool in one["tools"]] == ["code_execution"]
        assert "allowed_callers" not in json.dumps(one)
        assert "caller" not in json.dumps(one["messages"])
