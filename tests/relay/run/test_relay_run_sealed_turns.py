"""Held turns that no record has: the client carries them in an encrypted item."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from client_keys import ALICE, BOB, bearer, declared
from looping import ECHO
from pair_kits import SPEAKERS, Call, Got, Turn
from probe_tools import WATCH
from raw_upstream import RawUpstream, whole
from responses_check import check_response_stream
from responses_script import function
from running_proxy import Answer, Proxy, make_config, running
from waiting import until

from proxy.config.secret import Secret
from proxy.relay.memory.hidden import sealed_turns

KEY, OTHER_KEY = "11" * 32, "22" * 32
MARK = "toolrelay-turn:"
OURS, THEIRS = Call("call_1", ECHO, {"text": "noon"}), Call("call_2", "mine", {"a": 1})
MIXED, ANSWER = Turn("", (OURS, THEIRS), (30, 20)), Turn("It is noon.")
QUESTION = {"role": "user", "content": "What time is it?"}
Item = dict[str, Any]
each_upstream = pytest.mark.parametrize("upstream", SPEAKERS)
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(autouse=True)
def watch() -> None:
    """Forget what the probe tools did in earlier tests."""
    WATCH.reset()


class Fleet:
    """Proxies before one upstream that share only a key."""

    def __init__(self, upstream: str, server: RawUpstream, proxies: Sequence[Proxy]) -> None:
        self.upstream = SPEAKERS[upstream]
        self.server = server
        self.proxies = proxies

    async def ask(
        self, items: Sequence[Item], *, at: int = 0, headers: dict[str, str] | None = None, **asked: Any
    ) -> Answer:
        """Send one request with ``store`` off to one of the proxies."""
        body = {"model": "m", "input": list(items), "tools": [function("mine")], "stream": False}
        answer = await self.proxies[at].ask(
            {**body, "store": False, **asked}, headers or {}, path="/v1/responses"
        )
        assert answer.status == 200, answer.body
        return answer

    def got(self, number: int = -1) -> Got:
        """Return a request that the upstream got."""
        return self.upstream.got(json.loads(self.server.requests[number].body))

    async def memory(self, at: int) -> tuple[list[str], dict[str, int], int]:
        """Return what the newest run restored, its outcomes, and the bytes that its client got to carry."""
        (newest, *_) = await self.proxies[at].runs()
        said = newest.memory or {}
        put_back = said.get("put_back", ())
        assert all(one["bytes"] > 0 for one in put_back)
        kinds = [one["kind"] for one in put_back]
        return kinds, said.get("counts", {}), said.get("given_bytes", 0)


@asynccontextmanager
async def fleet(
    *turns: Turn,
    upstream: str = "chat",
    stream: bool = False,
    keys: Sequence[str] = (KEY, KEY),
    **config: Any,
) -> AsyncIterator[Fleet]:
    """Run one proxy for each of the keys, each with an empty record of its own."""
    scripts = [SPEAKERS[upstream].script(turn, stream=stream) for turn in turns]
    store = config.pop("store", {})
    if keyed := config.pop("client_keys", None):
        config["keys"] = keyed
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RawUpstream(*scripts))
        proxies = []
        for key in keys:
            table = {"base_url": server.url, "wires": (upstream,), "retries": 0}
            sealed = {"seal_key": Secret("env:SEAL", key), **store}
            made = make_config(table, modules=("probe_tools",), store=sealed, **config)
            proxies.append(await stack.enter_async_context(running(made)))
        yield Fleet(upstream, server, proxies)


def output_of(answer: Answer, *, stream: bool = False) -> list[Item]:
    """Return the items of an answer, as a client keeps them."""
    if not stream:
        return list(answer.json["output"])
    read = check_response_stream(answer.body, hidden=(ECHO, "hidden-output"))
    return list(read.response["output"])


def results(items: Sequence[Item]) -> list[Item]:
    """Return the client's results of its calls."""
    calls = [item for item in items if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": one["call_id"], "output": "7"} for one in calls]


def sealed_of(items: Sequence[Item]) -> Item:
    """Return the one item that holds the sealed turn."""
    (found,) = [item for item in items if str(item.get("encrypted_content")).startswith(MARK)]
    return found


async def mixed(made: Fleet, at: int = 0, **asked: Any) -> list[Item]:
    """Return the items of a mixed turn's answer."""
    return output_of(await made.ask([QUESTION], at=at, **asked))


@each_upstream
@streamed_or_not
async def test_another_proxy_goes_on(upstream: str, stream: bool) -> None:
    """Rules W3, W4, W5, R4: another proxy with the same key and an empty record restores the turn."""
    async with fleet(MIXED, ANSWER, upstream=upstream, stream=stream) as made:
        first = output_of(await made.ask([QUESTION], stream=stream), stream=stream)
        assert [item["type"] for item in first] == ["function_call", "reasoning"]
        again = [QUESTION, *first, *results(first)]
        last = output_of(await made.ask(again, at=1, stream=stream), stream=stream)
        assert last[-1]["content"][0]["text"] == "It is noon."
        got, asked = made.got(), made.server.requests[-1].body
        assert await made.memory(0) == ([], {}, len(sealed_of(first)["encrypted_content"]) - len(MARK))
        assert await made.memory(1) == (["carried"], {"put_back": 1}, 0)
    assert [call[1:] for call in got.calls] == [OURS[1:], THEIRS[1:]]
    ours, theirs = (got.results[call.id] for call in got.calls)
    assert "hidden-output" in ours
    assert theirs == "7"
    assert b"toolrelay" not in asked
    assert WATCH.started == ["echo"]


SHAPES: dict[str, Callable[[list[Item], Item, list[Item]], list[Item]]] = {
    "as it came": lambda calls, sealed, outputs: [*calls, sealed, *outputs],
    "before the calls": lambda calls, sealed, outputs: [sealed, *calls, *outputs],
    "after the outputs": lambda calls, sealed, outputs: [*calls, *outputs, sealed],
    "without ids": lambda calls, sealed, outputs: [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in (*calls, sealed, *outputs)
    ],
    "with nulls": lambda calls, sealed, outputs: [
        *calls,
        {**sealed, "content": None, "status": None},
        *outputs,
    ],
    "twice": lambda calls, sealed, outputs: [*calls, sealed, sealed, *outputs],
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_clients_send_it_back_in_many_ways(shape: str) -> None:
    """The proxy finds a sealed turn even if a library drops ids, adds nulls or moves the item."""
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made)
        calls = [item for item in first if item["type"] == "function_call"]
        await made.ask([QUESTION, *SHAPES[shape](calls, sealed_of(first), results(first))], at=1)
        got = made.got()
        assert (await made.memory(1))[0] == ["carried"]
    assert [call[1:] for call in got.calls] == [OURS[1:], THEIRS[1:]]


async def test_the_conversation_goes_on_behind_it() -> None:
    """Rule R4: each later request restores the hidden part in the same bytes, on any proxy."""
    async with fleet(MIXED, ANSWER, Turn("Yes."), keys=(KEY, KEY, KEY)) as made:
        first = await mixed(made)
        said = [QUESTION, *first, *results(first)]
        said += output_of(await made.ask(said, at=1))
        await made.ask([*said, {"role": "user", "content": "Sure?"}], at=2)
        second, third = (made.got(number).messages for number in (1, 2))
    assert third[: len(second)] == second


async def test_two_mixed_turns_in_one_conversation() -> None:
    """Each of two sealed turns is restored in its own place."""
    other = Turn("", (Call("call_3", ECHO, {"text": "one"}), Call("call_4", "mine", {})))
    async with fleet(MIXED, other, ANSWER, keys=(KEY, KEY, KEY)) as made:
        first = await mixed(made)
        said = [QUESTION, *first, *results(first)]
        second = output_of(await made.ask(said, at=1))
        await made.ask([*said, *second, *results(second)], at=2)
        got = made.got()
        assert await made.memory(2) == (["carried", "carried"], {"put_back": 2}, 0)
    assert [call.name for call in got.calls] == [ECHO, "mine", ECHO, "mine"]


# ---------------------------------------------------------------- who gets a sealed turn


async def test_what_is_stored_is_not_carried() -> None:
    """A client whose answers are stored gets no sealed turn, even if it asks for encrypted reasoning."""
    async with fleet(MIXED, MIXED) as made:
        for include in ([], ["reasoning.encrypted_content"]):
            items = await mixed(made, store=True, include=include)
            assert [item["type"] for item in items] == ["function_call"]


async def test_a_record_without_content_has_its_clients_carry_turns() -> None:
    """With ``store.content = "none"`` only a client that asks for encrypted reasoning carries the turn:
    others may send just the id of the response."""
    async with fleet(MIXED, MIXED, ANSWER, store={"content": "none"}) as made:
        plain = await mixed(made, store=True)
        assert [item["type"] for item in plain] == ["function_call"]
        asks: dict[str, Any] = {"store": True, "include": ["reasoning.encrypted_content"]}
        first = await mixed(made, **asks)
        await made.ask([QUESTION, *first, *results(first)], at=1, **asks)
        assert (await made.memory(1))[0] == ["carried"]


async def test_a_conversation_of_the_upstream_carries_nothing() -> None:
    """With ``conversation`` a client sends only results back, so that it gets no sealed turn."""
    async with fleet(MIXED, upstream="responses") as made:
        items = await mixed(made, conversation="conv_1")
    assert [item["type"] for item in items] == ["function_call"]


async def test_a_turn_that_is_too_long_is_held_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a turn is too large for its client, the same proxy restores it from memory."""
    monkeypatch.setattr(sealed_turns, "MAX_BYTES", 100)
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made)
        assert [item["type"] for item in first] == ["function_call"]
        await made.ask([QUESTION, *first, *results(first)])
        assert await made.memory(0) == (["calls"], {"put_back": 1}, 0)


async def test_a_client_that_drops_it_goes_on_where_it_was() -> None:
    """If a client drops the sealed turn, the proxy that made it restores it from memory."""
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made)
        await made.ask([QUESTION, first[0], *results(first)])
        assert await made.memory(0) == (["calls"], {"put_back": 1}, 0)
        assert [call[1:] for call in made.got().calls] == [OURS[1:], THEIRS[1:]]


async def test_private_arguments_come_back_whole() -> None:
    """A sealed turn is encrypted as a whole, so that its private arguments are not masked."""
    call = Call("call_1", "probe_tools__unlock", {"pin": "4321"})
    async with fleet(Turn("", (call, THEIRS)), ANSWER) as made:
        first = await mixed(made)
        await made.ask([QUESTION, *first, *results(first)], at=1)
        got = made.got()
    assert got.calls[0].arguments == {"pin": "4321"}


# ---------------------------------------------------------------- what is not restored


async def lost(made: Fleet, items: Sequence[Item], *, at: int = 1, **asked: Any) -> str:
    """Send items of which nothing may be restored; return the recorded outcome."""
    await made.ask(items, at=at, **asked)
    assert [call.name for call in made.got().calls] == ["mine"]
    assert b"hidden-output" not in made.server.requests[-1].body
    assert b"toolrelay" not in made.server.requests[-1].body
    kinds, counts, _ = await made.memory(at)
    assert kinds == []
    (outcome,) = counts
    assert counts[outcome] == 1
    return outcome


async def test_another_conversation() -> None:
    """Rule R4: a sealed turn is restored only behind the messages for which it was made."""
    async with fleet(MIXED, ANSWER, ANSWER) as made:
        first = await mixed(made)
        other = [{"role": "user", "content": "Something else."}, *first, *results(first)]
        assert await lost(made, other) == "sealed_elsewhere"
        longer = [{"role": "user", "content": "Hello."}, QUESTION, *first, *results(first)]
        assert await lost(made, longer) == "sealed_elsewhere"


async def test_another_call() -> None:
    """Rule R4: a sealed turn is not restored if the client changed the call beside it."""
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made)
        call = {**first[0], "arguments": '{"a":2}'}
        assert await lost(made, [QUESTION, call, *first[1:], *results(first)]) == "changed"


async def test_another_caller() -> None:
    """A turn that was sealed for one client key can be restored only with the same client key."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with fleet(MIXED, ANSWER, ANSWER, client_keys=keys) as made:
        first = await mixed(made, headers=bearer(ALICE))
        said = [QUESTION, *first, *results(first)]
        assert await lost(made, said, headers=bearer(BOB)) == "sealed_unreadable"
        await made.ask(said, at=1, headers=bearer(ALICE))
        assert (await made.memory(1))[0] == ["carried"]


async def test_another_person() -> None:
    """A turn of one end user is not restored for another one of the same client key."""
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made, safety_identifier="ann")
        said = [QUESTION, *first, *results(first)]
        assert await lost(made, said, safety_identifier="bob") == "sealed_elsewhere"


async def test_another_key() -> None:
    """A proxy with another key cannot read a sealed turn, and goes on with what the client sent."""
    async with fleet(MIXED, ANSWER, keys=(KEY, OTHER_KEY)) as made:
        first = await mixed(made)
        assert await lost(made, [QUESTION, *first, *results(first)]) == "sealed_unreadable"


async def test_an_old_key_still_opens() -> None:
    """With ``store.old_seal_keys`` a proxy restores turns that were sealed with an old key."""
    async with fleet(MIXED, keys=(KEY,)) as before:
        first = await mixed(before)
    old = {"old_seal_keys": (Secret("env:OLD", KEY),)}
    async with fleet(ANSWER, keys=(OTHER_KEY,), store=old) as after:
        await after.ask([QUESTION, *first, *results(first)])
        assert (await after.memory(0))[0] == ["carried"]


async def test_an_expired_turn() -> None:
    """After ``store.keep_days`` a sealed turn is not restored any more."""
    async with fleet(MIXED, ANSWER, store={"keep_days": 1e-9}) as made:
        first = await mixed(made)
        assert await lost(made, [QUESTION, *first, *results(first)]) == "sealed_expired"


async def test_two_different_turns_for_one_place() -> None:
    """Rule R4: if a client sends two different sealed turns for one place, neither is restored."""
    other = Turn("", (Call("call_1", ECHO, {"text": "midnight"}), THEIRS))
    async with fleet(MIXED, other, ANSWER) as made:
        first, second = await mixed(made), await mixed(made, at=1)
        said = [QUESTION, *first, sealed_of(second), *results(first)]
        assert await lost(made, said) == "ambiguous"


@pytest.mark.parametrize("content", ["", "AAAA", "!", "ü", "A" * (3 << 20)], ids=range(5))
async def test_what_only_looks_like_one(content: str) -> None:
    """The proxy removes an item that only looks like a sealed turn, because no upstream could read it."""
    async with fleet(MIXED, ANSWER) as made:
        first = await mixed(made)
        fake = {"type": "reasoning", "summary": [], "encrypted_content": MARK + content}
        assert await lost(made, [QUESTION, first[0], fake, *results(first)]) == "sealed_unreadable"


async def test_other_encrypted_reasoning_passes() -> None:
    """The upstream's own encrypted reasoning goes back to it, while a sealed turn does not."""
    async with fleet(MIXED, ANSWER, ANSWER, upstream="responses") as made:
        first = await mixed(made)
        thought = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
        turn = [QUESTION, *first, *results(first)]
        await made.ask([QUESTION, thought, said, *turn], at=1)
        sent = json.loads(made.server.requests[-1].body)["input"]
    assert thought in sent
    assert MARK not in json.dumps(sent)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"])
@pytest.mark.accepts("responses-fields", "responses-members", why="the members are made up")
async def test_no_upstream_is_sent_one(path: str) -> None:
    """Even a proxy without tools removes sealed turns; other items and members keep the bytes within them."""
    sealed = b'{"type": "reasoning", "summary": [], "encrypted_content": "%sAAAA"}' % MARK.encode()
    first = b'{"role" : "user",  "content": "What time \\u0069s it?"}'
    second = b'{ "role":"user", "content":"%s what is it?", "odd": 2.50 }' % MARK.encode()
    odd = b'{"a":  1.50, "b": [1.0 , 1E3], "c": "\\u00fc"}'
    body = b'{ "model" : "m", "input" : [ %s, %s , %s ], "odd" : 1.50, "more": %s }'
    with_one = body % (first, sealed, second, odd)
    without = with_one.replace(sealed + b" , ", b"")
    async with RawUpstream(whole(b'{"object": "response"}')) as server:
        table = {"base_url": server.url, "wires": ("responses",)}
        async with running(make_config(table, allow=())) as proxy:
            for asked in (with_one, without):
                assert (await proxy.ask(asked, path=path)).status == 200
    assert [request.body for request in server.requests] == [
        b'{"model":"m","input":[%s,%s],"odd":1.50,"more":%s}' % (first, second, odd),
        without,
    ]


# ---------------------------------------------------------------- effects, and what is written down


async def test_effects_happen_once() -> None:
    """Rule R5: if a client repeats a sealed turn on any proxy, its side effect does not happen again."""
    call = Call("call_1", "probe_tools__buy", {"what": "milk"})
    async with fleet(Turn("", (call, THEIRS)), *[ANSWER] * 4) as made:
        first = await mixed(made)
        said = [QUESTION, *first, *results(first)]
        retry = {"x-stainless-retry-count": "1"}
        for at, headers in ((0, {}), (0, retry), (1, {}), (1, retry)):
            await made.ask(said, at=at, headers=headers)
            assert [call.name for call in made.got().calls] == ["probe_tools__buy", "mine"]
    assert WATCH.started == ["buy"]


async def test_no_content_is_on_record() -> None:
    """Rule R3: the record of a sealed turn has no message, no held turn and no response."""
    async with fleet(MIXED, ANSWER, store={"content": "all"}) as made:
        first = await mixed(made)
        await made.ask([QUESTION, *first, *results(first)], at=1)
        for proxy in made.proxies:
            store = proxy.services.store
            (run,) = await proxy.runs()
            await until(lambda proxy=proxy: proxy.services.store.waiting == 0)  # type: ignore[misc]
            detail = await store.get_run(run.id)
            assert detail is not None
            assert (detail.messages, detail.native_calls) == ([], [])
            async with store._snapshot() as db:  # type: ignore[attr-defined]
                for table in ("suspended_turns", "hidden_turns", "responses", "messages", "native_calls"):
                    assert [tuple(row) for row in await db.execute_fetchall(f"SELECT * FROM {table}")] == []
