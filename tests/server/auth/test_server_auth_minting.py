"""Minted tokens: they narrow their key, end with it, and cannot be forged or extended."""

import asyncio
import base64
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from client_keys import ALICE, BOB, bearer, declared, keyed, made
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.app.compose.edge import make_permissions
from proxy.base import globs
from proxy.base.errors import RequestError
from proxy.config.key_grants import KeyGrants
from proxy.rights.callers import Caller
from proxy.rights.limit_rules import KeyLimits, parse_limits
from proxy.server.auth.key_ring import KeyRing, signer
from proxy.server.auth.minting import MAX_LIFE_S, Minting
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools.contract.bounds import ArgumentBound

NOW = 1_700_000_000.0
TOKENS = "/v1/toolrelay/tokens"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


async def mint_for(clock: Clock, **grants: Any) -> Minting:
    """Minting for the key alice, with grants, and for bob, who may mint nothing."""
    declared_keys = {
        "alice": (ALICE, KeyGrants.model_validate({"mint": True, **grants})),
        "bob": (BOB, KeyGrants()),
    }
    store = MemoryStore()
    await store.start()
    ring = KeyRing(store, declared_keys, now=clock)
    await ring.load()
    return Minting(ring, now=clock)


async def minted(minting: Minting, **asked: Any) -> str:
    """A token of alice's."""
    return str((await minting.mint(ALICE, orjson.dumps(asked)))["token"])


async def test_a_token_is_its_subjects() -> None:
    """A token is a caller with its own end user, budget and expiry; its key's limits hold as well."""
    clock = Clock()
    minting = await mint_for(clock, limits={"requests": ["9/minute"], "concurrent_streams": 8})
    made = await minting.mint(ALICE, b'{"subject":"ann","expires_in":60,"limits":{"requests":"3/minute"}}')
    assert (made["expires_in"], made["expires_at"], made["subject"]) == (60, NOW + 60, "ann")
    caller = await minting.find(made["token"])
    assert caller is not None
    assert (caller.name, caller.end_user) == ("config:alice", "ann")
    assert caller.counted_as.startswith("config:alice/")
    assert caller.parent_counted_as == "config:alice"
    assert caller.limits == KeyLimits(
        requests=parse_limits("requests", ("9/minute", "3/minute")), concurrent_streams=8
    )
    again = await minting.find(await minted(minting, subject="ann"))
    assert again is not None
    assert again.counted_as == caller.counted_as
    other = await minting.find(await minted(minting, subject="bea"))
    assert other is not None
    assert other.counted_as != caller.counted_as


async def test_a_token_without_a_subject_is_somebody_of_its_own() -> None:
    """Two tokens without a subject are two different callers."""
    minting = await mint_for(Clock())
    callers = [await minting.find(await minted(minting)) for _ in range(2)]
    assert len({caller.end_user for caller in callers if caller}) == 2
    assert len({caller.counted_as for caller in callers if caller}) == 2


async def test_a_token_narrows_its_key() -> None:
    """A token's models and tools apply in addition to those of its key, so it cannot widen them."""
    minting = await mint_for(Clock(), models=["gpt-*"], tools=["core__*"], endpoints=["/files*"])
    caller = await minting.find(await minted(minting, models=["gpt-4o", "*mini"], tools=["*__calculate"]))
    assert caller is not None
    assert caller.rights.models == (("gpt-*",), ("gpt-4o", "*mini"))
    assert caller.rights.tools == (
        ("keys.alice.tools", ("core__*",)),
        ("the token's tools", ("*__calculate",)),
    )
    assert caller.rights.isolated
    nothing = await minting.find(await minted(minting, tools=[]))
    assert nothing is not None
    assert nothing.rights.tools[-1] == ("the token's tools", ())


async def test_a_token_has_its_keys_bounds() -> None:
    """Rule T2: the argument bounds of a key hold for its tokens, too."""
    minting = await mint_for(Clock(), arguments={"core__*": {"days": {"max": 3}}})
    caller = await minting.find(await minted(minting))
    assert caller is not None
    (own,) = caller.rights.arguments
    assert (own.setting, own.tools, own.path) == ("keys.alice.arguments", "core__*", "days")
    assert own.bound == ArgumentBound(max=3)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"expires_in":0}', "expires_in"),
        (b'{"expires_in":901}', "expires_in"),
        (b'{"expires_in":"60"}', "expires_in"),
        (b'{"expires_in":true}', "expires_in"),
        (b'{"models":[]}', "models"),
        (b'{"models":"gpt-4o"}', "models"),
        (b'{"models":["o9"]}', "models"),
        (b'{"models":["a b"]}', "models"),
        (b'{"tools":["a b"]}', "tools"),
        (b'{"tools":["a","a"]}', "tools"),
        (b'{"subject":""}', "subject"),
        (b'{"subject":"a\\u0000b"}', "subject"),
        (b'{"subject":"' + b"x" * 201 + b'"}', "subject"),
        (b'{"limits":{"requests":"often"}}', "limits"),
        (b'{"limits":{"requests":"1 per' + b" " * 15_000 + b'x"}}', "limits"),
        (b'{"limits":{"requests":"1/' + b"9" * 100 + b'year"}}', "limits"),
        (b'{"admin":true}', "admin"),
        (b'{"mint":true}', "mint"),
        (b'{"until":9999999999}', "until"),
        (b'{"subject":"a","subject":"b"}', None),
        (b"[]", None),
        (b"\xff", None),
        (orjson.dumps({"models": [f"gpt-{n:0>190}" for n in range(32)]}), "tools"),
    ],
)
async def test_what_cannot_be_minted(body: bytes, param: str | None) -> None:
    """Rule E1: every mistake is a 400 that names its field."""
    minting = await mint_for(Clock(), models=["gpt-*"])
    with pytest.raises(RequestError) as caught:
        await minting.mint(ALICE, body)
    assert caught.value.status == 400
    if param is not None:
        assert caught.value.param == param


async def test_who_cannot_mint() -> None:
    """A key without ``mint``, a token and an unknown secret cannot mint tokens."""
    minting = await mint_for(Clock())
    for secret in (BOB, await minted(minting), "nobody"):
        with pytest.raises(RequestError) as caught:
            await minting.mint(secret, b"{}")
        assert (caught.value.status, caught.value.code) == (403, "minting_not_allowed")


async def test_a_token_ends() -> None:
    """A token is valid until it expires, which is never later than its key."""
    clock = Clock()
    minting = await mint_for(clock, expires=NOW + 100)
    token, late = await minted(minting, expires_in=50), await minting.mint(ALICE, b'{"expires_in":900}')
    assert late["expires_at"] == NOW + 100
    clock.now = NOW + 49.9
    assert await minting.find(token) is not None
    clock.now = NOW + 50
    assert await minting.find(token) is None
    assert await minting.find(late["token"]) is not None
    clock.now = NOW + 100
    assert await minting.find(late["token"]) is None


def forged(claims: dict[str, Any], *, secret: str = ALICE, key: str = "config:alice") -> str:
    """A token with these claims, whatever they are, signed with this secret in the name of this key."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    text = f"trt_{key}.{encode(orjson.dumps(claims))}"
    return f"{text}.{encode(signer(secret).sign(text.encode()))}"


@pytest.mark.parametrize(
    "token",
    [
        forged({"subject": "a", "until": int(NOW) + MAX_LIFE_S + 1}),
        forged({"subject": "a", "until": int(NOW) + 60, "admin": True}),
        forged({"until": int(NOW) + 60}),
        forged({"subject": "a"}),
        forged({"subject": "a", "until": int(NOW) + 60}, secret=BOB),
        forged({"subject": "a", "until": int(NOW) + 60}, secret=BOB, key="config:bob"),
        forged({"subject": "a", "until": int(NOW) + 60}, key="config:nobody"),
        forged({"subject": "a", "until": int(NOW) + 60}) + "=",
        forged({"subject": "a", "until": int(NOW) + 60}) + ".x",
        "trt_",
        "trt_..",
        "trt_config:alice..",
        "trt_config:alice.\u00e9.AA",
        "x" * 5000,
    ],
)
async def test_what_is_no_token(token: str) -> None:
    """A token with too long a life, unknown claims, a wrong signature or another spelling is invalid."""
    minting = await mint_for(Clock())
    assert await minting.find(forged({"subject": "a", "until": int(NOW) + 60})) is not None
    assert await minting.find(token) is None


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_changed_token_is_valid(data: st.DataObject) -> None:
    """A token whose text was changed, cut or mixed with that of another token is invalid."""

    async def holds() -> None:
        minting = await mint_for(Clock())
        one, other = await minted(minting, subject="ann"), await minted(minting, subject="bea", models=["x"])
        kind = data.draw(st.sampled_from(["change", "cut", "insert", "swap", "case"]))
        place = data.draw(st.integers(0, len(one) - 1))
        letter = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
        match kind:
            case "change":
                changed = one[:place] + letter + one[place + 1 :]
            case "cut":
                changed = one[:place] + one[place + data.draw(st.integers(1, 5)) :]
            case "insert":
                changed = one[:place] + letter + one[place:]
            case "swap":
                mine, theirs = one.split("."), other.split(".")
                part = data.draw(st.integers(1, 2))
                mine[part] = theirs[part]
                changed = ".".join(mine)
            case _:
                changed = one.swapcase()
        found = await minting.find(changed)
        assert (found is not None) == (changed in (one, other))

    asyncio.run(holds())


# ---------------------------------------------------------------- over HTTP


async def test_a_token_serves_and_dies_with_its_key() -> None:
    """A token works like a narrower key, never goes upstream, and ends when its key is revoked."""
    async with keyed() as (proxy, upstream):
        store = proxy.services.store
        secret = await made(store, mint=True, models=["gpt-*", "o9"])
        answer = await proxy.ask({"subject": "ann", "models": ["gpt-4o"]}, bearer(secret), path=TOKENS)
        assert (answer.status, answer.header("cache-control")) == (200, "no-store")
        token = answer.json["token"]
        assert (await proxy.ask({**ASK, "model": "gpt-4o"}, bearer(token))).status == 200
        assert (await proxy.ask({**ASK, "model": "o9"}, bearer(token))).status == 404
        assert (await proxy.ask({}, bearer(token), path=TOKENS)).status == 403
        assert (await proxy.ask({"model": "o9"}, bearer(secret), path="/v1/embeddings")).status == 200
        sent = str([request.headers for request in upstream.requests])
        assert token not in sent
        await store.revoke_key((await store.read_keys()).keys[0].id)
        assert (await proxy.ask({**ASK, "model": "gpt-4o"}, bearer(token))).status == 401


async def test_a_token_names_its_person_whatever_the_request_says() -> None:
    """The end user of a token is its subject, whatever a header of the request names."""
    keys = {"alice": declared(ALICE, mint=True)}
    async with keyed(keys=keys, auth={"end_user": "header:x-user"}, store={"content": "all"}) as (proxy, _):
        made = await proxy.ask({"subject": "ann"}, bearer(ALICE), path=TOKENS)
        token = made.json["token"]
        for headers in ({}, {"x-user": "bea"}):
            await proxy.ask(ASK, {**bearer(token), **headers})
        await proxy.ask(ASK, {**bearer(ALICE), "x-user": "ann"})
        await proxy.ask(ASK, {**bearer(ALICE), "x-user": "bea"})
        callers = [run.caller for run in await proxy.runs()]
        assert len(set(callers[1:])) == 1
        assert callers[0] != callers[1]
        assert callers[0].startswith("config:alice/")


async def test_no_token_without_mint() -> None:
    """A key without ``mint`` gets a 403 that says so, and nothing goes upstream."""
    async with keyed() as (proxy, upstream):
        answer = await proxy.ask({}, bearer(ALICE), path=TOKENS)
        assert (answer.status, answer.error["code"]) == (403, "minting_not_allowed")
        assert upstream.requests == []


async def test_a_token_is_worked_out_once() -> None:
    """The proxy checks a token once, and returns the same caller when the token comes again."""
    minting = await mint_for(Clock())
    token = await minted(minting)
    first = await minting.find(token)
    assert isinstance(first, Caller)
    assert await minting.find(token) is first


async def test_many_patterns_of_a_token_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy matches a token's patterns without compiling them: each token may bring new ones."""
    minting = await mint_for(Clock())
    patterns = [f"*{number:02}*" + "x*" * 10 for number in range(32)]
    caller = await minting.find(await minted(minting, models=patterns, tools=patterns))
    assert caller is not None
    monkeypatch.setattr(globs, "fnmatchcase", lambda *_: pytest.fail("compiled"))
    async with keyed() as (proxy, _):
        granted = make_permissions(proxy.services, proxy.services.router()).of(caller.rights)
        assert not granted.router.permits("gpt-4o")
        assert not granted.offers


@pytest.mark.parametrize("field", ["models", "tools"])
async def test_few_patterns_of_a_token_are_more_than_asterisks(field: str) -> None:
    """A token may have only few patterns that need a regular expression, even if it is signed by hand."""
    minting = await mint_for(Clock())
    few, many = ([f"a{number}?" for number in range(count)] for count in (4, 5))
    assert await minting.find(await minted(minting, **{field: few})) is not None
    with pytest.raises(RequestError) as error:
        await minted(minting, **{field: many})
    assert error.value.status == 400
    assert error.value.param == field
    said = base64.urlsafe_b64encode(orjson.dumps({"subject": "ann", "until": int(NOW) + 9, field: many}))
    text = f"trt_config:alice.{said.rstrip(b'=').decode()}"
    signed = base64.urlsafe_b64encode(signer(ALICE).sign(text.encode())).rstrip(b"=").decode()
    assert await minting.find(f"{text}.{signed}") is None
