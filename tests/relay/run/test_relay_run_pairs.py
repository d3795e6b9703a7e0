"""What holds for clients of each dialect with upstreams of each dialect, over real sockets."""

from typing import Any

import pytest
from looping import ECHO
from pair_kits import PAIRS, SPEAKERS, Call, Message, Speaker, Turn
from pair_runs import ANSWER, CALLS, QUESTION, SAY, Pair, pair_of, scripts
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Answer, make_config, running
from waiting import until

MIXED = Turn("", (Call("call_1", ECHO, SAY), Call("call_2", "mine", {"a": 1})), (30, 20))
each_pair = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


# ---------------------------------------------------------------- what works


@each_pair
@streamed_or_not
async def test_server_tools(client: str, upstream: str, stream: bool) -> None:
    """Rules W3, W5: the client gets one answer with the usage of both turns, and nothing of the call."""
    async with pair_of(client, upstream, *scripts(upstream, CALLS, ANSWER, stream=stream)) as pair:
        answer = await pair.ask([QUESTION], stream=stream, system="Be brief.", tools=["mine"])
        seen = pair.client.seen(answer, stream=stream, hidden=(ECHO, "call_1"))
        first, second = pair.got()
    assert "It is noon." in seen.text
    assert (seen.calls, seen.finish, seen.used, seen.error) == ([], "stop", (37, 24), "")
    assert pair.server.requests[0].target == pair.upstream.path
    assert (first.system, first.messages) == ("Be brief.", [QUESTION])
    assert first.tools.keys() >= {"mine", ECHO}
    assert (first.body["model"], first.body.get("stream") or False) == (pair.upstream.model, stream)
    assert second.messages[0] == QUESTION
    assert second.calls == list(CALLS.calls)
    assert "noon" in second.results["call_1"]
    assert second.body.keys() >= first.body.keys()


@each_pair
@streamed_or_not
async def test_a_call_without_arguments(client: str, upstream: str, stream: bool) -> None:
    """Rule W4: a call without arguments reaches the client with ``{}``, whatever its upstream form is."""
    turn = Turn("", (Call("call_a", "mine", {}),))
    async with pair_of(client, upstream, *scripts(upstream, turn, stream=stream)) as pair:
        answer = await pair.ask([QUESTION], stream=stream, tools=["mine"])
        seen = pair.client.seen(answer, stream=stream)
    assert [call[1:] for call in seen.calls] == [("mine", {})]
    assert seen.finish == "calls"


@each_pair
@streamed_or_not
async def test_client_tools(client: str, upstream: str, stream: bool) -> None:
    """The client gets its own calls with their arguments, and the upstream gets their results."""
    calls = (Call("call_a", "mine", {"a": 1}), Call("call_b", "other", {"b": "ü\n"}))
    turns = scripts(upstream, Turn("Wait.", calls), ANSWER, stream=stream)
    async with pair_of(client, upstream, *turns) as pair:
        tools = ["mine", "other"]
        seen = pair.client.seen(await pair.ask([QUESTION], stream=stream, tools=tools), stream=stream)
        assert (seen.text, seen.finish) == ("Wait.", "calls")
        assert [call[1:] for call in seen.calls] == [call[1:] for call in calls]
        returned = [
            QUESTION,
            *seen.returned,
            *[Message("tool", f"did {call.name}", call_id=call.id) for call in seen.calls],
        ]
        last = pair.client.seen(await pair.ask(returned, stream=stream, tools=tools), stream=stream)
        assert (last.text, last.finish) == ("It is noon.", "stop")
        _, second = pair.got()
    assert [call[1:] for call in second.calls] == [call[1:] for call in calls]
    assert [second.results[call.id] for call in second.calls] == ["did mine", "did other"]
    assert next(one.text for one in second.messages if one.role == "assistant") == "Wait."


@each_pair
@streamed_or_not
async def test_a_mixed_turn_is_shown_in_part_and_put_back_whole(
    client: str, upstream: str, stream: bool
) -> None:
    """Rules W5, R4: the client sees only its own call; in its next request the hidden call is restored."""
    async with pair_of(client, upstream, *scripts(upstream, MIXED, ANSWER, stream=stream)) as pair:
        answer = await pair.ask([QUESTION], stream=stream, tools=["mine"])
        seen = pair.client.seen(answer, stream=stream, hidden=(ECHO,))
        assert ([call[1:] for call in seen.calls], seen.finish) == ([("mine", {"a": 1})], "calls")
        returned = [
            QUESTION,
            *seen.returned,
            Message("tool", "mine too", call_id=seen.calls[0].id),
        ]
        answer = await pair.ask(returned, stream=stream, tools=["mine"])
        assert pair.client.seen(answer, stream=stream, hidden=(ECHO,)).text == "It is noon."
        _, second = pair.got()
    assert [call[1:] for call in second.calls] == [call[1:] for call in MIXED.calls]
    theirs, ours = (second.results[call.id] for call in reversed(second.calls))
    assert (theirs, "noon" in ours) == ("mine too", True)


@each_pair
@streamed_or_not
async def test_large_integers_are_exact(client: str, upstream: str, stream: bool) -> None:
    """An integer of 2**64 or more in a call reaches the client, and the upstream again, with all its digits,
    also beside a hidden call."""
    large = {"amount": 10**21 + 1, "least": [-(2**64) - 1], "text": 'a "1e5" \n b'}
    turn = Turn("", (MIXED.calls[0], Call("call_2", "mine", large)))
    async with pair_of(client, upstream, *scripts(upstream, turn, ANSWER, stream=stream)) as pair:
        answer = await pair.ask([QUESTION], stream=stream, tools=["mine"])
        seen = pair.client.seen(answer, stream=stream, hidden=(ECHO,))
        assert [call.arguments for call in seen.calls] == [large]
        returned = [QUESTION, *seen.returned, Message("tool", "done", call_id=seen.calls[0].id)]
        await pair.ask(returned, stream=stream, tools=["mine"])
        _, second = pair.got()
    assert [call[1:] for call in second.calls] == [call[1:] for call in turn.calls]


@each_pair
async def test_large_integers_of_a_clients_own_history_are_exact(client: str, upstream: str) -> None:
    """A call that the proxy has never seen is translated with all digits of its integers."""
    large = Call("call_9", "mine", {"amount": 10**21 + 1, "price": 0.5, "id": 2**63 + 1})
    said = [QUESTION, Message("assistant", "", (large,)), Message("tool", "done", call_id="call_9")]
    async with pair_of(client, upstream, *scripts(upstream, ANSWER)) as pair:
        await pair.ask(said, tools=["mine"])
        (got,) = pair.got()
    assert [call.arguments for call in got.calls] == [large.arguments]


@each_pair
async def test_hidden_turns_are_returned_to_the_model(client: str, upstream: str) -> None:
    """Rule R4: when the client sends the answer back, the proxy restores the hidden turn before it."""
    turns = scripts(upstream, CALLS, ANSWER, Turn("Still noon."))
    async with pair_of(client, upstream, *turns) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION]))
        returned = [QUESTION, *seen.returned, Message("user", "And now?")]
        assert pair.client.seen(await pair.ask(returned)).text == "Still noon."
        third = pair.got()[-1]
    assert third.calls == list(CALLS.calls)
    assert "noon" in third.results["call_1"]
    assert third.messages[-1] == returned[-1]


@each_pair
async def test_a_request_without_tools_crosses_all_the_same(client: str, upstream: str) -> None:
    """The proxy translates a request without server tools, too."""
    config = {"tools": {"enabled": False}}
    async with pair_of(client, upstream, *scripts(upstream, ANSWER), **config) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION]))
    assert (seen.text, seen.finish, seen.used) == ("It is noon.", "stop", (7, 4))


@pytest.mark.parametrize("client", SPEAKERS)
async def test_the_clients_own_dialect_is_preferred(client: str) -> None:
    """If an upstream speaks several dialects, the proxy uses the client's, in whatever order they are."""
    speaker = SPEAKERS[client]
    for wires in (tuple(SPEAKERS), tuple(reversed(SPEAKERS))):
        async with RawUpstream(speaker.script(ANSWER)) as server:
            config = make_config({"base_url": server.url, "wires": wires})
            async with running(config) as proxy:
                answer = await proxy.ask(speaker.ask([QUESTION]), path=speaker.path)
            assert speaker.seen(answer).text == "It is noon."
            assert server.requests[0].target == speaker.path


# ---------------------------------------------------------------- repeats, limits, cost, fallback


@each_pair
async def test_a_repeat_has_its_effects_once(client: str, upstream: str, watch: Watch) -> None:
    """Rule R5: a repeated request with the same idempotency key gets the result of the first attempt."""
    buys = Turn("", (Call("call_1", "probe_tools__buy", {"what": "milk"}),))
    again = Turn("", (Call("call_2", "probe_tools__buy", {"what": "milk"}),))
    turns = scripts(upstream, buys, ANSWER, again, ANSWER)
    async with pair_of(client, upstream, *turns) as pair:
        for _ in range(2):
            answer = await pair.ask([QUESTION], headers={"idempotency-key": "k-1"})
            assert pair.client.seen(answer).text == "It is noon."
        _, first, _, second = pair.got()
    assert watch.finished == ["buy"]
    assert first.results["call_1"] == second.results["call_2"] == '{"done":true,"what":"milk"}'


@each_pair
async def test_tokens_and_cost_are_recorded(client: str, upstream: str) -> None:
    """The record has the tokens and the cost of all turns, and the tool call."""
    prices = {"prices": {SPEAKERS[upstream].model: {"input": 1.0, "output": 10.0}}}
    turns = scripts(upstream, CALLS, ANSWER)
    async with pair_of(client, upstream, *turns, **prices) as pair:
        pair.client.seen(await pair.ask([QUESTION]))
        detail = await pair.proxy.run_reaches("completed")
    assert (detail.run.input_tokens, detail.run.output_tokens) == (37, 24)
    assert detail.run.cost == 37 * 1000 + 24 * 10_000
    assert (detail.run.wire, detail.run.turns) == (client, 2)
    assert [one.tool for one in detail.invocations] == [ECHO]


@each_pair
async def test_who_has_spent_its_tokens_is_refused(client: str, upstream: str) -> None:
    """The limit of tokens counts every upstream's tokens; the refusal is in the client's dialect."""
    limits = {"limits": {"tokens": ("50/hour",)}}
    async with pair_of(client, upstream, *scripts(upstream, CALLS, ANSWER), **limits) as pair:
        pair.client.seen(await pair.ask([QUESTION]))
        answer: list[Answer] = []

        async def refused() -> bool:
            answer[:] = [await pair.ask([QUESTION])]
            return answer[0].status == 429

        await until(refused)
    assert pair.client.error(answer[0].json)


@each_pair
@pytest.mark.parametrize("first", SPEAKERS)
async def test_another_upstream_takes_over_before_the_first_byte(
    client: str, upstream: str, first: str
) -> None:
    """If the first upstream refuses, the next one is asked in its own dialect."""
    async with (
        RawUpstream(SPEAKERS[first].refused("503 Busy", "Too hot.")) as busy,
        RawUpstream(*scripts(upstream, CALLS, ANSWER)) as server,
    ):
        tables = [
            {"name": "a", "base_url": busy.url, "wires": (first,), "retries": 0},
            {"name": "b", "base_url": server.url, "wires": (upstream,), "retries": 0},
        ]
        # An upstream of the client's dialect is asked first, wherever it is in the list.
        native_last = upstream == client != first
        async with running(make_config(*tables, modules=("probe_tools",))) as proxy:
            pair = Pair(client, upstream, proxy, server)
            seen = pair.client.seen(await pair.ask([QUESTION]))
        assert len(busy.requests) == (0 if native_last else 1)
    assert ("It is noon." in seen.text, seen.finish) == (True, "stop")
    assert [len(got.calls) for got in pair.got()] == [0, 1]


# ---------------------------------------------------------------- what goes wrong


@each_pair
@streamed_or_not
async def test_an_error_before_the_stream(client: str, upstream: str, stream: bool) -> None:
    """Rule E1: the client gets the upstream's status and message in its own dialect."""
    refused = SPEAKERS[upstream].refused("429 No", "Too hot.")
    async with pair_of(client, upstream, refused) as pair:
        answer = await pair.ask([QUESTION], stream=stream)
    assert answer.status == 429
    assert "Too hot." in pair.client.error(answer.json)


@each_pair
@pytest.mark.parametrize("later", [False, True], ids=["first turn", "second turn"])
async def test_a_stream_that_breaks_off_is_an_error(client: str, upstream: str, later: bool) -> None:
    """Rule W1: if the stream breaks off, the client gets the text so far and an error of its dialect."""
    broken = SPEAKERS[upstream].broken("It is")
    turns = [*(scripts(upstream, CALLS) if later else []), broken]
    async with pair_of(client, upstream, *turns) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION]), hidden=(ECHO,))
        await pair.proxy.run_reaches("failed")
    assert seen.text.endswith("It is")
    assert seen.error
    assert seen.finish == ""


@each_pair
async def test_an_error_within_the_stream(client: str, upstream: str) -> None:
    """An upstream's error within its stream reaches the client with its message."""
    async with pair_of(client, upstream, SPEAKERS[upstream].failing("It is", "Too hot.")) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION]))
    assert (seen.text, "Too hot." in seen.error, seen.finish) == ("It is", True, "")


@each_pair
async def test_a_reply_that_breaks_off_is_an_error(client: str, upstream: str) -> None:
    """If the upstream's reply breaks off, the client gets a 502."""
    whole = SPEAKERS[upstream].script(ANSWER, stream=False)
    assert isinstance(whole[0], bytes)
    async with pair_of(client, upstream, [whole[0][:-20]]) as pair:
        answer = await pair.ask([QUESTION], stream=False)
    assert answer.status == 502
    assert pair.client.error(answer.json)


def mistakes(client: Speaker) -> list[tuple[str, dict[str, Any]]]:
    """Return requests with one mistake each, together with the wrong field."""
    asked = client.ask([QUESTION], tools=["mine"])
    history = "input" if "input" in asked else "messages"
    found = [
        (history, {**asked, history: 7}),
        ("tools", {**asked, "tools": "all"}),
        ("stream", {**asked, "stream": "yes"}),
        (f"{history}[0].role", {**asked, history: [{"role": "robot", "content": "hi"}]}),
    ]
    if client.name == "ollama":  # It ignores what it does not know.
        return [*found, ("options.temperature", {**asked, "options": {"temperature": "hot"}})]
    return [
        *found,
        ("temperature", {**asked, "temperature": "hot"}),
        ("not_known_to_anybody", {**asked, "not_known_to_anybody": 1}),
    ]


@pytest.mark.parametrize(
    ("client", "upstream"), [pair for pair in PAIRS if pair[0] != pair[1]], ids=lambda name: name
)
async def test_a_mistake_is_named_in_the_clients_own_shape(client: str, upstream: str) -> None:
    """Rule E1: a mistake gets a 400 that names the wrong field, and no upstream is asked."""
    async with pair_of(client, upstream, *scripts(upstream, ANSWER)) as pair:
        for field, body in mistakes(pair.client):
            answer = await pair.send(body)
            assert (answer.status, field) == (400, field), answer.body
            assert field in pair.client.error(answer.json)
        assert pair.server.requests == []
