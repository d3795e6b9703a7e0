"""Mode `forward`, in which clients send the provider's own key: one key is one caller in every spelling."""

import base64
import itertools

import pytest
from client_keys import ALICE, OK, bearer, declared, key_config, made
from looping import ANSWER, ASK, called, looping
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import make_config, running

KEY = "sk-of-the-provider_0123456789"
FORWARD = {"mode": "forward"}
CASES = ["".join(letters) for letters in itertools.product(*((c, c.upper()) for c in "bearer"))]
SPELLINGS = [f"{scheme}{space}{KEY}" for scheme in CASES for space in (" ", "  ", " " * 40)]


def basic(pair: str) -> str:
    return base64.b64encode(pair.encode()).decode()


async def test_however_it_is_spelled_it_is_one_caller() -> None:
    """All spellings of one key are one caller on record, and another key is another caller."""
    assert len(SPELLINGS) == 192
    values = [*SPELLINGS[::10], SPELLINGS[-1], f"token {KEY}", f"Bearer {KEY}==", f"Bearer {KEY}x"]
    async with looping(*[ANSWER] * len(values), auth=FORWARD) as (proxy, _):
        for value in values:
            assert (await proxy.ask(ASK, {"Authorization": value})).status == 200
        callers = [run.caller for run in await proxy.runs()]
    assert len(callers) == len(values)
    assert len(set(callers)) == 2


async def test_spellings_do_not_multiply_a_limit_of_tool_calls(watch: Watch) -> None:
    """Eight spellings of one key share one limit of two tool calls."""
    call = called(("call_e", "probe_tools__echo", '{"text":"x"}'))
    limits = {"tool_calls": ["2/hour"]}
    async with looping(*[call, ANSWER] * 8, auth=FORWARD, limits=limits) as (proxy, _):
        for value in SPELLINGS[::25]:
            assert (await proxy.ask(ASK, {"Authorization": value})).status == 200
    assert watch.started == ["echo"] * 2


@pytest.mark.parametrize("kind", ["requests", "tool_calls", "tokens"])
async def test_made_up_keys_of_one_address_share_its_limits(kind: str, watch: Watch) -> None:
    """Each limit of a caller also holds for an address, whatever keys come from there."""
    call = called(("call_e", "probe_tools__echo", '{"text":"x"}'))
    limits = {kind: ["2/hour"]}
    async with looping(*[call, ANSWER] * 4, auth=FORWARD, limits=limits) as (proxy, _):
        statuses = [(await proxy.ask(ASK, bearer(f"sk-made-up-{number}"))).status for number in range(4)]
    if kind == "tool_calls":
        assert (statuses, watch.started) == ([200] * 4, ["echo"] * 2)
    elif kind == "requests":
        assert statuses == [200, 200, 429, 429]
    else:
        assert statuses[0] == 200
        assert statuses[-1] == 429


@pytest.mark.parametrize(
    "value",
    [
        KEY,
        f"Bearer\t{KEY}",
        f"Bearer{KEY}",
        f'Bearer "{KEY}"',
        f"Bearer '{KEY}'",
        f"Bearer {KEY},",
        f"Bearer {KEY}, Bearer {KEY}",
        f"Bearer {KEY};a=b",
        f"Bearer Bearer {KEY}",
        f"Bearer {KEY} x",
        f"Bearer {KEY}\\",
        f'ApiKey key="{KEY}"',
        f": {KEY}",
        "Bearer",
        "Bearer ",
        "Bearer ==",
        f"Bearer {KEY}é",
        f"Basic {basic('me:pass')[:-1]}",
        f"Basic {basic('me:pass')}=",
        f"Basic {basic('nocolon')}",
        f"Basic {basic('me:' + chr(10))}",
        "Basic !!!!",
    ],
)
async def test_what_is_malformed_is_refused(value: str) -> None:
    """The proxy refuses credentials that can be read in several ways, and sends nothing upstream."""
    async with RawUpstream(OK) as upstream:
        async with running(make_config(upstream.url, auth=FORWARD)) as proxy:
            answer = await proxy.ask(ASK, {"Authorization": value})
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert upstream.requests == []


async def test_two_headers_are_none() -> None:
    """The proxy refuses a request with two Authorization headers, whatever their case."""
    async with RawUpstream(OK) as upstream:
        async with running(make_config(upstream.url, auth=FORWARD)) as proxy:
            twice = [("Authorization", f"Bearer {KEY}"), ("AUTHORIZATION", f"Bearer {KEY}")]
            assert (await proxy.ask(ASK, twice)).status == 401
        assert upstream.requests == []


@pytest.mark.parametrize("kind", ["declared", "stored", "revoked", "token"])
async def test_a_key_of_ours_is_not_sent_up_within_another(kind: str) -> None:
    """The proxy finds its own keys within other credentials, refuses them, and sends nothing upstream."""
    keys = {"admin": declared(ALICE, admin=True)}
    async with RawUpstream(OK) as upstream:
        async with running(key_config(upstream.url, auth=FORWARD, keys=keys)) as proxy:
            stored = await made(proxy.services.store)
            secret = {
                "declared": ALICE,
                "stored": stored,
                "revoked": "tr_" + "A" * 43,
                "token": "trt_key_0123456789abcdef.e30." + "A" * 86,
            }[kind]
            for value in (
                f"Basic {basic('me:' + secret)}",
                f"Basic {basic(secret + ':')}",
                f"Basic {basic(secret + ':x')}",
                f"Basic {basic('me:' + basic(secret))}",
                f"Bearer {basic(secret)}",
                f"Bearer {basic(secret).rstrip('=')}",
                f"Bearer {secret}",
                f"bearer   {secret}",
                f"Bearer {secret[:5]}%{ord(secret[5]):02x}{secret[6:]}",
                f"Bearer x={secret}",
                secret,
            ):
                answer = await proxy.ask(ASK, {"Authorization": value})
                assert (answer.status, "key of the proxy" in answer.error["message"]) == (401, True), value
            assert upstream.requests == []
            assert (await proxy.ask(ASK, {"Authorization": f"Basic {basic('me:provider')}"})).status == 200
        assert upstream.requests[0].header("authorization") == f"Basic {basic('me:provider')}"


async def test_addresses_are_counted_apart() -> None:
    """A key has one limit for all its addresses, and an address has one limit for all its keys."""
    server = {"trusted_proxies": ["127.0.0.1"]}
    limits = {"requests": ["2/hour"]}
    async with RawUpstream(OK) as upstream:
        config = make_config(upstream.url, auth=FORWARD, limits=limits, server=server)
        async with running(config) as proxy:
            statuses = [
                (await proxy.ask(ASK, {**bearer(key), "X-Forwarded-For": address})).status
                for key, address in (
                    ("sk-one", "203.0.113.1"),
                    ("sk-one", "203.0.113.2"),
                    ("sk-one", "203.0.113.3"),
                    ("sk-two", "203.0.113.1"),
                    ("sk-three", "203.0.113.1"),
                    ("sk-three", "203.0.113.9"),
                )
            ]
    assert statuses == [200, 200, 429, 200, 429, 200]
