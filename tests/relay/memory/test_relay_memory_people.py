"""Whose hidden turns are restored, where several people share one key or one address."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chat_script import content, finish, role, stream
from client_keys import ALICE, BOB, bearer, declared
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of
from raw_upstream import RawUpstream
from responses_script import function_call, message, user
from responses_script import stream as response
from running_proxy import make_config, running

CALL = called(("call_s", TIME, '{"timezone":"UTC"}'))
BERLIN = called(("call_s", TIME, '{"timezone":"Europe/Berlin"}'))
MIXED = called(("call_s", TIME, '{"timezone":"UTC"}'), ("mine:0", "mine", "{}"))
WELCOME = stream(role(), content("Welcome."), finish())
HI = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "It is noon."}
THANKS = {"role": "user", "content": "thanks"}
BACK = [HI, SAID, THANKS]
RETURNED: list[dict[str, Any]] = [
    HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "mine:0", "type": "function", "function": {"name": "mine", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "mine:0", "content": "7"},
]


def ask(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {**ASK, "messages": messages, **more}


def tools_put_back(upstream: RawUpstream) -> int:
    """The number of tool results in the last request to the upstream."""
    return sum(message["role"] == "tool" for message in messages_of(upstream.requests[-1]))


PEOPLE: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {}, True),
    ({"user": "ann"}, {"user": "ann"}, True),
    ({"user": "ann"}, {"user": "bob"}, False),
    ({"user": "ann"}, {}, False),
    ({}, {"user": "ann"}, False),
    ({"safety_identifier": "ann"}, {"safety_identifier": "bob"}, False),
    ({"user": "ann"}, {"safety_identifier": "ann"}, False),
    ({"user": "ann", "safety_identifier": "x"}, {"user": "ann", "safety_identifier": "y"}, False),
    ({"user": "ann", "prompt_cache_key": "x"}, {"user": "ann", "prompt_cache_key": "y"}, True),
]


@pytest.mark.parametrize(("first", "then", "same"), PEOPLE)
async def test_people_named_in_the_body_are_told_apart_unasked(
    first: dict[str, Any], then: dict[str, Any], same: bool
) -> None:
    """Rule R4: also without auth.end_user, turns of one user in the body are not restored for another."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask([HI], **first))
        answer = await proxy.ask(ask(BACK, **then))
    assert tools_put_back(upstream) == int(same)
    assert (answer.header("x-toolrelay-restored") is not None) is same


@pytest.mark.parametrize(("first", "then", "same"), PEOPLE)
async def test_what_waits_for_one_person_is_nobody_elses(
    first: dict[str, Any], then: dict[str, Any], same: bool
) -> None:
    """Rule R4: a held turn of one person is not restored for another, even if its call ids come again."""
    more = {"tools": [CLIENT_TOOL]}
    async with looping(MIXED, WELCOME) as (proxy, upstream):
        await proxy.ask(ask([HI], **more, **first))
        await proxy.ask(ask(RETURNED, **more, **then))
    assert tools_put_back(upstream) == 1 + int(same)


async def test_two_users_of_the_body() -> None:
    """Rule R4: with ``body:user`` each user gets only their own turns, and an unnamed user gets none."""
    turns = [CALL, ANSWER, BERLIN, ANSWER, WELCOME, WELCOME, WELCOME, WELCOME]
    async with looping(*turns, auth={"end_user": "body:user"}) as (proxy, upstream):
        for user_named in ("ann", "bob"):
            await proxy.ask(ask([HI], user=user_named))
        for named in ({"user": "ann"}, {"user": "bob"}, {"user": "eve"}, {}):
            await proxy.ask(ask(BACK, **named))
    ann, bob, eve, nobody = (messages_of(request) for request in upstream.requests[4:])
    assert ann[1]["tool_calls"][0]["function"]["arguments"] == '{"timezone":"UTC"}'
    assert "Berlin" in bob[1]["tool_calls"][0]["function"]["arguments"]
    assert len(eve) == len(nobody) == 3


@pytest.mark.parametrize("unnamed", [{}, {"user": None}, {"user": ""}, {"user": 5}, {"user": ["ann"]}])
async def test_a_shared_door_puts_nothing_back_for_nobody(unnamed: dict[str, Any]) -> None:
    """Rule R4: where requests have to name an end user, two that name none do not share turns."""
    auth = {"end_user": "body:user"}
    async with looping(CALL, ANSWER, WELCOME, auth=auth) as (proxy, upstream):
        await proxy.ask(ask([HI], **unnamed))
        await proxy.ask(ask(BACK, **unnamed))
        assert tools_put_back(upstream) == 0
    async with looping(MIXED, WELCOME, auth=auth) as (proxy, upstream):
        await proxy.ask(ask([HI], tools=[CLIENT_TOOL], **unnamed))
        await proxy.ask(ask(RETURNED, tools=[CLIENT_TOOL], **unnamed))
        assert tools_put_back(upstream) == 1


async def test_a_name_that_stands_twice_names_nobody() -> None:
    """Rule R4: if a request has the header with the end user twice, no turn is restored."""
    auth = {"end_user": "header:x-user"}
    twice = [("x-user", "ann"), ("X-User", "bob")]
    async with looping(CALL, ANSWER, WELCOME, WELCOME, auth=auth) as (proxy, upstream):
        await proxy.ask(ask([HI]), [("x-user", "ann")])
        await proxy.ask(ask(BACK), twice)
        assert tools_put_back(upstream) == 0
        await proxy.ask(ask(BACK), [("x-user", "ann")])
        assert tools_put_back(upstream) == 1


SHARED = {"alice": declared(ALICE, shared=True), "bob": declared(BOB)}


@pytest.mark.parametrize(
    ("secret", "named", "back"),
    [(ALICE, {}, 0), (ALICE, {"user": "ann"}, 1), (ALICE, {"safety_identifier": "ann"}, 1), (BOB, {}, 1)],
    ids=["nobody", "user", "safety_identifier", "a key of one person"],
)
async def test_a_shared_key_with_nobody_named(secret: str, named: dict[str, Any], back: int) -> None:
    """Rule R4: on a shared key, turns are restored only for a request that names a person."""
    async with looping(CALL, ANSWER, WELCOME, keys=SHARED) as (proxy, upstream):
        await proxy.ask(ask([HI], **named), bearer(secret))
        await proxy.ask(ask(BACK, **named), bearer(secret))
        assert tools_put_back(upstream) == back
    async with looping(MIXED, WELCOME, keys=SHARED) as (proxy, upstream):
        await proxy.ask(ask([HI], tools=[CLIENT_TOOL], **named), bearer(secret))
        await proxy.ask(ask(RETURNED, tools=[CLIENT_TOOL], **named), bearer(secret))
        assert tools_put_back(upstream) == 1 + back


async def test_what_a_key_left_before_it_was_shared_is_nobodys(tmp_path: Path) -> None:
    """Rule R4: a turn held before its key became shared is not restored for the people who now share it."""
    store = {"url": f"sqlite:///{tmp_path}/record.db"}
    more = {"tools": [CLIENT_TOOL]}
    async with RawUpstream(MIXED, WELCOME, MIXED, WELCOME) as upstream:
        for shared, back in ((False, 2), (True, 1)):
            keys = {"alice": declared(ALICE, shared=shared)}
            async with running(make_config(upstream.url, keys=keys, store=store)) as proxy:
                await proxy.ask(ask([HI], **more), bearer(ALICE))
                await proxy.ask(ask(RETURNED, **more), bearer(ALICE))
                assert tools_put_back(upstream) == back


async def test_nothing_is_held_for_nobody(tmp_path: Path) -> None:
    """Rule R3: the proxy does not store turns that it could never restore."""
    file = tmp_path / "record.db"
    store = {"url": f"sqlite:///{file}"}
    async with looping(MIXED, CALL, ANSWER, keys=SHARED, store=store) as (proxy, _):
        await proxy.ask(ask([HI], tools=[CLIENT_TOOL]), bearer(ALICE))
        await proxy.ask(ask([HI]), bearer(ALICE))
    with closing(sqlite3.connect(file)) as record:
        for table in ("suspended_turns", "hidden_turns"):
            assert record.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_two_keys_with_equal_words_have_their_own_turns() -> None:
    """Rule R4: turns of one key are not restored under another key, even for an equal user and words."""
    async with looping(CALL, ANSWER, WELCOME, WELCOME, keys=SHARED) as (proxy, upstream):
        for_ann = {"user": "ann"}
        await proxy.ask(ask([HI], **for_ann), bearer(ALICE))
        await proxy.ask(ask(BACK, **for_ann), bearer(BOB))
        assert tools_put_back(upstream) == 0
        await proxy.ask(ask(BACK, **for_ann), bearer(ALICE))
        assert tools_put_back(upstream) == 1


async def test_whoever_has_the_id_of_a_response_goes_on_from_it() -> None:
    """A shared key can continue a response by its id alone, whether the request names a user or not."""
    now = function_call("call_s", TIME, '{"timezone":"UTC"}')
    turns = [response(now), response(message("It is noon."), id="resp_2"), response(message("Welcome."))]
    asked = {"model": "m", "stream": True, "input": [user("hi")]}
    async with looping(*turns, keys=SHARED) as (proxy, upstream):
        await proxy.ask(asked, bearer(ALICE), path="/v1/responses")
        again = {**asked, "input": [user("thanks")], "previous_response_id": "resp_1", "user": "ann"}
        assert (await proxy.ask(again, bearer(ALICE), path="/v1/responses")).status == 200
        kinds = [item.get("type") for item in json.loads(upstream.requests[2].body)["input"]]
    assert kinds == [None, "function_call", "function_call_output", "message", None]
