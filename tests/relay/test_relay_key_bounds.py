"""Argument bounds of one client key, from its configuration to the call."""

import json

import pytest
from client_keys import ALICE, BOB, bearer, declared, made
from looping import ANSWER, ASK, ECHO, called, follow_up, looping

BOUNDS = {"probe_tools__*": {"text": {"enum": ("ab", "abc", "x")}}}


@pytest.mark.parametrize(
    ("who", "text", "rule"),
    [
        (ALICE, "abc", 'denied: keys.alice.arguments."probe_tools__echo".text'),
        (ALICE, "q", 'denied: policy.arguments."probe_tools__*".text'),
        (ALICE, "ab", ""),
        (BOB, "abc", ""),
        ("made", "ab", 'denied: the argument limits of key carol."*".text'),
        ("made", "x", ""),
    ],
)
async def test_a_key_bounds_its_own_calls(who: str, text: str, rule: str) -> None:
    """Rule T2: a call must meet the bounds of the policy and of its caller's key, and of no other key."""
    own = {ECHO: {"text": {"max_length": 2}}}
    keys = {"alice": declared(ALICE, arguments=own), "bob": declared(BOB)}
    turn = called(("call_1", ECHO, json.dumps({"text": text})))
    async with looping(turn, ANSWER, keys=keys, policy={"arguments": BOUNDS}) as (proxy, upstream):
        if who == "made":
            who = await made(proxy.services.store, arguments={"*": {"text": {"max_length": 1}}})
        answer = await proxy.ask(ASK, bearer(who))
        assert answer.status == 200
        (result,) = follow_up(upstream.requests)[1]
        (row,) = (await proxy.run_reaches("completed")).invocations
    said = json.loads(result["content"])
    if rule:
        assert (said["ok"], said["error_code"], row.decision) == (False, "policy_denied", rule)
        assert "text" in said["message"]
    else:
        assert said["echo"] == text
