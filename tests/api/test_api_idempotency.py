"""``Idempotency-Key``: the proxy keeps the keys of many clients apart behind one provider key."""

from typing import Any

import pytest
from chat_script import call, content, finish, role, stream
from client_keys import ALICE, BOB, OK, bearer, declared, keyed
from raw_upstream import RawUpstream
from running_proxy import make_config, running

SAY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TIME = "core__get_current_time"
KEY = {"Idempotency-Key": "order-1"}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/embeddings", "/v1/moderations", "/v1/images/generations"]
)
async def test_an_idempotency_key_is_one_callers(path: str) -> None:
    """The proxy gives each client's key a value of its own, the same each time. Otherwise a provider would
    give one client the answer of another client with the same key."""
    async with keyed(allow=()) as (proxy, upstream):
        for key in (ALICE, BOB, ALICE):
            assert (await proxy.ask(SAY, {**bearer(key), **KEY}, path=path)).status == 200
        sent = [request.header("idempotency-key") for request in upstream.requests]
        assert sent[0] == sent[2] != sent[1]
        assert all(value and "order-1" not in value for value in sent)
        again = {**bearer(BOB), "Idempotency-Key": sent[0] or ""}
        assert (await proxy.ask(SAY, again, path=path)).status == 200
        assert upstream.requests[-1].header("idempotency-key") not in sent


async def test_an_idempotency_key_is_one_persons() -> None:
    """End users of one client key, as told apart by ``auth.end_user``, get different values, too."""
    for end_user, people in (("header:x-user", ({"x-user": "ann"}, {"x-user": "bob"})), ("body:user", ())):
        keys = {"webui": declared(ALICE, shared=True)}
        async with keyed(keys=keys, allow=(), auth={"end_user": end_user}) as (proxy, upstream):
            for name in ("ann", "bob", "ann"):
                headers = {**bearer(ALICE), **KEY, **({"x-user": name} if people else {})}
                body = SAY if people else {**SAY, "user": name}
                assert (await proxy.ask(body, headers)).status == 200
            sent = [request.header("idempotency-key") for request in upstream.requests]
            assert sent[0] == sent[2] != sent[1]


async def test_whoever_is_alone_with_the_provider_says_it_as_it_is() -> None:
    """In the modes open and forward the upstream gets the client's value unchanged."""
    for mode in ("open", "forward"):
        config: dict[str, Any] = {"auth": {"mode": mode}, "allow": ()}
        async with RawUpstream(OK) as upstream, running(make_config(upstream.url, **config)) as proxy:
            assert (await proxy.ask(SAY, {**bearer("sk-of-a-client"), **KEY})).status == 200
            assert upstream.requests[0].header("idempotency-key") == "order-1"


async def test_turns_of_a_run_are_no_repeats_of_each_other() -> None:
    """The turns of a run carry no key: a provider would answer the second with the first one's answer."""
    called = stream(role(), call("call_1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))
    answer = stream(role(), content("Noon."), finish())
    async with RawUpstream(called, answer) as upstream, running(make_config(upstream.url)) as proxy:
        assert (await proxy.ask({**SAY, "stream": True}, KEY)).status == 200
        assert len(upstream.requests) == 2
        assert [request.header("idempotency-key") for request in upstream.requests] == [None, None]
