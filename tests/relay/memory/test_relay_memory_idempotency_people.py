"""Repeated requests with a key that several people use: nobody gets what was done for another person."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from chat_script import payloads_of, text_of
from client_keys import ALICE, bearer, declared
from looping import ANSWER, ASK, called, messages_of
from probe_tools import Watch
from raw_upstream import RawUpstream
from request_keys import keyed
from running_proxy import Proxy, make_config, running
from store_postgres import need_postgres, new_schema

from proxy.relay.memory.idempotency import Idempotency
from proxy.tools.running.ledger import RunLedger

MILK = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
EGGS = called(("call_b", "probe_tools__buy", '{"what":"eggs"}'))
KEY = {"Idempotency-Key": "order-1"}
ANN, BOB, NOBODY = {"user": "ann"}, {"user": "bob"}, {"user": ""}


@pytest.fixture(params=["memory 1", "sqlite 1", "sqlite 2", "postgres 2"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    """The URL of the record in each kind of store, and how many processes share it."""
    kind, processes = request.param.split()
    if kind == "postgres":
        need_postgres()
        async with new_schema() as made:
            yield made, int(processes)
    else:
        yield "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/record.db", int(processes)


class Shop:
    """Proxies that share a record and the client key ``alice``, before one scripted model."""

    def __init__(self, url: str, *, shared: bool, end_user: str = "") -> None:
        keys = {"alice": declared(ALICE, shared=shared)}
        self._sections: dict[str, Any] = {"keys": keys, "auth": {"end_user": end_user}, "store": {"url": url}}
        self._stack = AsyncExitStack()
        self._upstream = RawUpstream(MILK, ANSWER, EGGS, ANSWER)

    async def __aenter__(self) -> "Shop":
        await self._stack.enter_async_context(self._upstream)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def proxy(self) -> Proxy:
        """Start one more process that shares the record."""
        config = make_config(self._upstream.url, modules=("probe_tools",), **self._sections)
        return await self._stack.enter_async_context(running(config))

    async def ask(self, proxy: Proxy, person: dict[str, Any], headers: dict[str, str]) -> str:
        """Ask for one thing; return the result that the model got."""
        answer = await proxy.ask({**ASK, **person}, {**bearer(ALICE), **headers})
        assert text_of(payloads_of(answer.body)) == "It is noon."
        return str(messages_of(self._upstream.requests[-1])[-1]["content"])


CASES = {
    "two people of a shared key": (True, "", (ANN, {}), (BOB, {}), False),
    "two people of a key of one": (False, "", (ANN, {}), (BOB, {}), False),
    "two people by a safety identifier": (
        True, "", ({"safety_identifier": "ann"}, {}), ({"safety_identifier": "bob"}, {}), False,
    ),
    "a person and nobody": (True, "", (ANN, {}), (NOBODY, {}), False),
    "nobody and a person": (True, "", (NOBODY, {}), (ANN, {}), False),
    "nobody twice": (True, "", (NOBODY, {}), (NOBODY, {}), False),
    "one person twice": (True, "", (ANN, {}), (ANN, {}), True),
    "nobody of a key of one": (False, "", (NOBODY, {}), (NOBODY, {}), True),
    "two people in a header": (
        False, "header:x-user", (NOBODY, {"x-user": "ann"}), (NOBODY, {"x-user": "bob"}), False,
    ),
    "one person in a header": (
        False, "header:x-user", (NOBODY, {"x-user": "ann"}), (NOBODY, {"x-user": "ann"}), True,
    ),
    "nobody where a header should name somebody": (False, "header:x-user", (ANN, {}), (ANN, {}), False),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
async def test_an_idempotency_key_is_one_persons(case: str, place: tuple[str, int], watch: Watch) -> None:
    """Rule R5: the result for an idempotency key goes to the same person again, and to nobody else."""
    shared, end_user, first, second, same = CASES[case]
    url, processes = place
    async with Shop(url, shared=shared, end_user=end_user) as shop:
        one = await shop.proxy()
        two = await shop.proxy() if processes > 1 else one
        told = [
            await shop.ask(one, first[0], {**first[1], **KEY}),
            await shop.ask(two, second[0], {**second[1], **KEY}),
        ]
    assert watch.finished == (["buy"] if same else ["buy", "buy"])
    assert "milk" in told[0]
    assert ("milk" in told[1]) is same
    assert '{"done":true,"what":"eggs"}' in told[1] or same


@pytest.mark.parametrize(("person", "times"), [(NOBODY, 2), (ANN, 1)], ids=["nobody", "a person"])
async def test_an_equal_body_is_nobodys_repeat_where_nobody_is_named(
    person: dict[str, Any], times: int, watch: Watch
) -> None:
    """Rule R5: on a shared key, the retry of an SDK counts as a repeat only if the request names a person."""
    again = {"x-stainless-retry-count": "1"}
    async with RawUpstream(MILK, ANSWER, MILK, ANSWER) as upstream:
        keys = {"alice": declared(ALICE, shared=True)}
        async with running(make_config(upstream.url, modules=("probe_tools",), keys=keys)) as proxy:
            for headers in ({}, again):
                await proxy.ask({**ASK, **person}, {**bearer(ALICE), **headers})
    assert watch.finished == ["buy"] * times


def test_what_nobody_can_repeat_is_not_remembered() -> None:
    """Effects of requests without a key are not shared."""
    repeats = Idempotency(forget=lambda _: None)
    ledger = RunLedger()
    repeats.caused(keyed(""), ledger)
    assert repeats.begin(keyed(""), is_repeat=True).caused is not ledger.caused
