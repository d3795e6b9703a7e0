"""Tokens of an OpenID provider: what is accepted, and the attacks of RFC 8725."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from in_process import serving_app
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from proxy.app.open_authentication import open_authentication
from proxy.base.errors import RequestError
from proxy.config.key_grants import KeyGrants
from proxy.config.load import load_config
from proxy.server.auth.jwt.authenticator import JwtAuthenticator
from proxy.server.auth.jwt.signing_keys import SigningKeys, read_keys
from proxy.server.auth.jwt.tokens import MAX_LENGTH, JwtRules, JwtTokens, TokenRefused, claim_at
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools.contract.capabilities import HttpFailure

ISSUER = "https://id.example.com/realms/main"
AUDIENCE = "toolrelay"
RSA, OTHER_RSA = RSAKey.generate_key(2048), RSAKey.generate_key(2048)
EC, ED = ECKey.generate_key("P-256"), OKPKey.generate_key("Ed25519")
NOW = 1_800_000_000.0


def public(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    """A key as its provider shows it."""
    return {**key.as_dict(private=False), "kid": kid, "use": "sig", **more}


class Provider:
    """A provider that answers with ``keys``, counts what it is asked, and fails while ``down``."""

    def __init__(self, *keys: Mapping[str, Any]) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.down = False
        self.hold: asyncio.Event | None = None
        self.clock = 1000.0
        self.wall = NOW
        self.metadata: dict[str, Any] = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}

    async def get_json(self, url: str) -> Any:
        """Answer a request."""
        self.asked.append(url)
        if self.hold is not None:
            await self.hold.wait()
        if self.down:
            raise HttpFailure("the service cannot be reached", transient=True)
        return self.metadata if url.endswith("/openid-configuration") else {"keys": self.keys}

    async def close(self) -> None:
        """Do nothing."""

    def tokens(self, **rules: Any) -> JwtTokens:
        """What checks the tokens of this provider."""
        keys = SigningKeys(ISSUER, "", self.get_json, self.close, monotonic=lambda: self.clock)
        made = JwtRules(**{"issuer": ISSUER, "audience": (AUDIENCE,), **rules})
        return JwtTokens(made, keys, now=lambda: self.wall)


@pytest.fixture
def provider() -> Provider:
    """A provider with a key of each kind."""
    return Provider(public(RSA, "rsa"), public(EC, "ec"), public(ED, "ed"))


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a valid token; ``None`` leaves one out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": NOW + 300, "iat": NOW}
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def part(value: Any) -> str:
    """A part of a token."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(payload: Any, key: Any = RSA, alg: str = "RS256", **header: Any) -> str:
    """A token as a provider signs it."""
    whole = {"alg": alg, "kid": "rsa", "typ": "at+jwt", **header}
    whole = {name: value for name, value in whole.items() if value is not None}
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    registry.max_header_length = registry.max_payload_length = 1 << 20
    return jws.serialize_compact(whole, body, key, algorithms=[alg], registry=registry)


async def refusal(tokens: JwtTokens, token: str) -> str:
    """Why a token is refused."""
    with pytest.raises(TokenRefused) as caught:
        await tokens.find(token)
    return str(caught.value)


async def test_a_valid_token_is_its_user(provider: Provider) -> None:
    """A token of each kind of key is accepted; the caller depends on issuer and user alone, and expires."""
    tokens = provider.tokens(algorithms=("RS256", "PS256", "ES256", "Ed25519"))
    names = set()
    for key, alg, kid in (
        (RSA, "RS256", "rsa"),
        (RSA, "PS256", "rsa"),
        (EC, "ES256", "ec"),
        (ED, "Ed25519", "ed"),
    ):
        found = await tokens.find(signed(claims(), key, alg, kid=kid))
        names.add(found.caller.name)
        assert found.expires_at == NOW + 330
        assert found.caller.rights.isolated
        assert not found.admin
    assert len(names) == 1
    assert "anna" not in names.pop()
    other = await tokens.find(signed(claims(sub="bert")))
    assert other.caller.name not in names
    assert provider.asked == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


async def test_an_expired_token_is_refused_also_if_it_was_valid(provider: Provider) -> None:
    """A token is looked up again while it is valid, and refused when it is not, leeway included."""
    tokens = provider.tokens()
    token = signed(claims())
    key = await tokens.find(token)
    assert await tokens.find(token) is key
    assert tokens.is_still_valid(key)
    provider.wall = NOW + 329
    assert await tokens.find(token) is key
    provider.wall = NOW + 330
    assert not tokens.is_still_valid(key)
    assert await refusal(tokens, token) == "has expired"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exp": NOW - 31}, "has expired"),
        ({"exp": None}, "has no expiry"),
        ({"exp": "tomorrow"}, "no number"),
        ({"exp": True}, "no number"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 3600}, "not valid yet"),
        ({"iss": "https://evil.example.com"}, "another issuer"),
        ({"iss": f"{ISSUER}/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"aud": "someone-else"}, "another audience"),
        ({"aud": None}, "no audience"),
        ({"aud": {"toolrelay": 1}}, "no audience"),
        ({"aud": ["other", 7]}, "no audience"),
        ({"aud": []}, "another audience"),
        ({"aud": [*map(str, range(64)), AUDIENCE]}, "more than 64 audiences"),
        ({"aud": "TOOLRELAY"}, "another audience"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "no claim sub"),
        ({"sub": 7}, "no claim sub"),
        ({"sub": "a\nb"}, "no claim sub"),
        ({"sub": "x" * 513}, "no claim sub"),
    ],
)
async def test_claims_that_do_not_fit(changes: dict[str, Any], words: str, provider: Provider) -> None:
    """RFC 8725, sections 3.8 and 3.9: issuer, subject and audience are validated, and so are the times."""
    assert words in await refusal(provider.tokens(), signed(claims(**changes)))


async def test_claims_that_fit(provider: Provider) -> None:
    """Clocks may differ by the leeway; one of several audiences is enough."""
    tokens = provider.tokens()
    for changes in ({"exp": NOW - 29}, {"nbf": NOW + 29}, {"aud": ["a", AUDIENCE]}, {"iat": None}):
        await tokens.find(signed(claims(**changes)))


async def test_no_signature_is_no_token(provider: Provider) -> None:
    """RFC 8725, section 2.1: ``none`` in any spelling, and a signature that is cut off, are refused."""
    tokens = provider.tokens()
    good = signed(claims())
    for alg in ("none", "None", "NONE", "nOnE", "", None, ["RS256"], {"a": 1}):
        header = part({"alg": alg, "kid": "rsa"})
        assert await refusal(tokens, f"{header}.{part(claims())}.")
    assert "signature" in await refusal(tokens, good.rpartition(".")[0] + ".")
    assert "signature" in await refusal(tokens, good[:-8] + "AAAAAAAA")
    body = good.split(".")
    assert "signature" in await refusal(tokens, ".".join([body[0], part(claims(sub="admin")), body[2]]))


async def test_a_public_key_is_no_secret(provider: Provider) -> None:
    """RFC 8725, section 2.1: HS256 with the public key as its secret is refused, in every form of the key."""
    tokens = provider.tokens()
    for secret in (
        RSA.as_pem(private=False),
        json.dumps(public(RSA, "rsa")).encode(),
        RSA.as_der(private=False),
    ):
        text = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims())}"
        mac = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        assert "algorithm" in await refusal(tokens, f"{text}.{part(mac)}")


async def test_a_shared_secret_of_the_provider_is_no_key() -> None:
    """A symmetric key among the provider's keys is not used, and neither is one for encryption."""
    secret = OctKey.generate_key(256)
    provider = Provider({**secret.as_dict(private=True), "kid": "rsa"}, public(RSA, "enc", use="enc"))
    tokens = provider.tokens()
    assert await refusal(tokens, signed(claims(), secret, "HS256"))
    assert "not signed by a key" in await refusal(tokens, signed(claims(), RSA, kid="enc"))


async def test_a_key_is_for_its_own_algorithm() -> None:
    """RFC 8725, section 3.2: a key with an ``alg`` is used for that one alone, and each kind for its own."""
    provider = Provider(public(RSA, "rsa", alg="PS256"), public(EC, "ec"))
    tokens = provider.tokens(algorithms=("RS256", "PS256", "ES256"))
    assert "not signed by a key" in await refusal(tokens, signed(claims(), RSA, "RS256"))
    assert "not signed by a key" in await refusal(tokens, signed(claims(), RSA, "RS256", kid="ec"))
    await tokens.find(signed(claims(), RSA, "PS256"))
    # An algorithm that is not configured.
    assert "auth.jwt.algorithms" in await refusal(tokens, signed(claims(), RSA, "RS512"))


@pytest.mark.parametrize(
    "header",
    [
        {"jku": "https://evil.example.com/keys"},
        {"x5u": "https://evil.example.com/cert"},
        {"jwk": OTHER_RSA.as_dict(private=False)},
        {"x5c": ["AAAA" * 200]},
    ],
)
async def test_a_token_does_not_say_where_its_key_is(header: dict[str, Any], provider: Provider) -> None:
    """RFC 8725, section 3.10: ``jku``, ``x5u``, ``jwk`` and ``x5c`` cause no request and bring no key."""
    tokens = provider.tokens()
    assert "signature" in await refusal(tokens, signed(claims(), OTHER_RSA, **header))
    assert not [url for url in provider.asked if "evil" in url]
    await tokens.find(signed(claims(), **header))


@pytest.mark.parametrize(
    "kid",
    [
        "../../../../dev/null",
        "rsa' OR '1'='1",
        "http://169.254.169.254/",
        "rsa\0",
        "x" * 513,
        7,
        ["rsa"],
        {"a": 1},
        "",
    ],
)
async def test_a_kid_is_only_compared(kid: Any, provider: Provider) -> None:
    """RFC 8725, section 3.10: whatever a ``kid`` contains, it names one of the provider's keys or none."""
    tokens = provider.tokens()
    header = part({"alg": "RS256", "kid": kid})
    assert await refusal(tokens, f"{header}.{part(claims())}.{part(b'x' * 256)}")
    assert set(provider.asked) <= {f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"}


async def test_a_token_without_a_kid_needs_one_key_that_fits(provider: Provider) -> None:
    """Without a name the only key for the algorithm is used; with two of them there is none."""
    await provider.tokens().find(signed(claims(), kid=None))
    provider.keys.append(public(OTHER_RSA, "new"))
    assert "not signed by a key" in await refusal(provider.tokens(), signed(claims(), kid=None))


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"], "exp": 1}, {"enc": "A128GCM"}, {"b64": False, "crit": ["b64"]}]
)
async def test_headers_that_nobody_understands(header: dict[str, Any], provider: Provider) -> None:
    """RFC 7515, section 4.1.11: a token whose ``crit`` is not understood is refused."""
    head = part({"alg": "RS256", "kid": "rsa", **header})
    assert "nobody here understands" in await refusal(
        provider.tokens(), f"{head}.{part(claims())}.{part(b'x')}"
    )


@pytest.mark.parametrize(
    "token",
    [
        "eyJ..",
        "eyJhbGciOiJSUzI1NiJ9..",
        part(b'{"alg":"RS256","alg":"none"}') + "." + part(claims()) + ".AA",
        part(b'{"alg":"RS256"}') + "=" + "." + part(claims()) + ".AA",
        part([]) + ".a.b",
        part(b"{" * 3000) + ".a.b",
        part(b'{"alg":"RS256","kid":"rsa","n":1e999999}') + ".a.b",
        "eyJ\ud800.a.b",
        "eyJ" + "A" * MAX_LENGTH + ".a.b",
    ],
)
async def test_malformed_tokens(token: str, provider: Provider) -> None:
    """What is no token is refused, whatever is wrong with it."""
    assert await refusal(provider.tokens(), token)


async def test_claims_that_stand_twice(provider: Provider) -> None:
    """A signed token whose claims have a name twice is refused: two readers could choose differently."""
    body = json.dumps(claims())[:-1].encode() + b',"sub":"admin"}'
    assert "malformed" in await refusal(provider.tokens(), signed(body))
    assert "malformed" in await refusal(provider.tokens(), signed(b"[]"))


async def test_one_token_has_one_spelling(provider: Provider) -> None:
    """Other trailing bits of base64 make another text, which is no valid token."""
    tokens = provider.tokens()
    head, body, signature = signed(claims(sub="bert!")).split(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for spelling in (body[:-1] + last[(last.index(body[-1]) + 1) % 64], body + "=", body + "\n"):
        assert await refusal(tokens, f"{head}.{spelling}.{signature}")


async def test_rotation_is_noticed_within_a_bound(provider: Provider) -> None:
    """An unknown ``kid`` has the keys fetched again, but never more than once in ten seconds."""
    tokens = provider.tokens()
    await tokens.find(signed(claims()))
    assert len(provider.asked) == 2
    provider.keys = [public(OTHER_RSA, "new")]
    rotated = signed(claims(), OTHER_RSA, kid="new")
    for number in range(50):
        assert await refusal(tokens, signed(claims(), OTHER_RSA, kid=f"invented-{number}"))
    assert len(provider.asked) == 2
    provider.clock += 10
    await asyncio.gather(*(tokens.find(rotated) for _ in range(20)))
    assert len(provider.asked) == 4
    # The key that the provider no longer shows is not used any more, for known tokens either.
    assert "not signed by a key" in await refusal(tokens, signed(claims()))


async def test_a_provider_that_is_down(provider: Provider) -> None:
    """Known keys stay in use for a day; without any, the answer is a 503 and not a refusal."""
    tokens = provider.tokens()
    provider.down = True
    with pytest.raises(RequestError) as caught:
        await tokens.find(signed(claims()))
    assert (caught.value.status, caught.value.code) == (503, "issuer_unavailable")
    provider.down, provider.clock = False, provider.clock + 10
    await tokens.find(signed(claims()))
    provider.down, provider.clock = True, provider.clock + 80_000
    await tokens.find(signed(claims(jti="2")))
    provider.clock += 7_000
    with pytest.raises(RequestError):
        await tokens.find(signed(claims(jti="3")))


async def test_keys_are_fetched_in_the_background(provider: Provider) -> None:
    """Keys older than an hour are fetched again, and no request with a known key waits for that."""
    tokens = provider.tokens()
    await tokens.find(signed(claims()))
    provider.hold = asyncio.Event()
    provider.clock += 3601
    await tokens.find(signed(claims(jti="2")))
    await asyncio.sleep(0)
    assert len(provider.asked) == 3
    provider.hold.set()
    await tokens.aclose()


async def test_a_token_that_is_known_asks_for_keys_too(provider: Provider) -> None:
    """A token of a key that its provider withdrew ends within the hour, also if no other token comes."""
    tokens = provider.tokens()
    token = signed(claims(exp=NOW + 10_000_000))
    key = await tokens.find(token)
    provider.keys = [public(OTHER_RSA, "other")]
    provider.clock += 3601
    assert not tokens.is_still_valid(key)
    await tokens.find(token)  # Does not wait for the keys.
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(provider.asked) == 4
    assert "not signed by a key" in await refusal(tokens, token)


async def test_a_known_token_needs_keys_that_are_not_too_old(provider: Provider) -> None:
    """If its provider does not answer for a day, a known token is checked no longer, like any other."""
    tokens = provider.tokens()
    token = signed(claims(exp=NOW + 10_000_000))
    await tokens.find(token)
    provider.down = True
    provider.clock += 86_401
    with pytest.raises(RequestError) as caught:
        await tokens.find(token)
    assert caught.value.status == 503


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.com", "jwks_uri": "https://evil.example.com/keys"},
        {"jwks_uri": "https://id.example.com/keys"},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 7},
        [],
    ],
)
async def test_metadata_of_another_issuer(metadata: Any, provider: Provider) -> None:
    """The metadata must be the issuer's own, or no key is taken."""
    provider.metadata = metadata
    with pytest.raises(RequestError):
        await provider.tokens().find(signed(claims()))
    assert not [url for url in provider.asked if url.endswith("/keys")]


CURVES = ("P-999", "brainpoolP256r1", "X25519", "Ed448", "", "P-256", "Ed25519")


def test_keys_that_are_none() -> None:
    """Each key that cannot be used is left out; what is no set of keys is a failure."""
    short = json.loads(json.dumps(public(RSA, "short")))
    short["n"] = part(b"\xff" * 128)
    entries: list[Any] = [
        *(None, 7, {}, {"kty": "RSA"}, {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, short),
        {**public(RSA, "a"), "n": 5},
        {**public(RSA, "a"), "kid": 5},
        *({"kty": kind, "crv": curve, "x": "AA", "y": "AA"} for kind in ("EC", "OKP") for curve in CURVES),
        *({"kty": []}, {"kty": {}}, {"kty": ["RSA"]}, {"kty": None}),
        {**RSA.as_dict(private=True), "kid": "private", "use": "sig"},
    ]
    (kept,) = read_keys({"keys": entries})
    assert kept.kid == "private"
    assert not kept.key.is_private
    assert len(read_keys({"keys": [public(RSA, str(number)) for number in range(200)]})) == 100
    documents: list[Any] = [{}, [], {"keys": {}}, None]
    for document in documents:
        with pytest.raises(HttpFailure):
            read_keys(document)


GRANTS = {
    "admins": KeyGrants(admin=True),
    "developers": KeyGrants(models=("gpt-*",), limits={"requests": ["5/minute"]}),
    "approvers": KeyGrants(approves=("pay__*",)),
}


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["developers", "admins"], "admins"),
        (["approvers"], "approvers"),
        ("x developers y", "developers"),
        ([7, None, "developers"], "developers"),
    ],
)
async def test_the_first_role_that_a_token_has(groups: Any, role: str, provider: Provider) -> None:
    """The configuration's order decides, not the token's."""
    key = await provider.tokens(grants=GRANTS).find(signed(claims(groups=groups)))
    assert (key.admin, key.approves) == (GRANTS[role].admin, GRANTS[role].approves)
    assert key.caller.rights.models == ((("gpt-*",),) if role == "developers" else ())
    assert (key.caller.limits is not None) == (role == "developers")


@pytest.mark.parametrize("groups", [None, [], "admin", ["Admins"], {"admins": True}, [["admins"]], 5])
async def test_a_token_without_a_role(groups: Any, provider: Provider) -> None:
    """A valid token with none of the roles is a 403; "*" gives all others theirs."""
    with pytest.raises(RequestError) as caught:
        await provider.tokens(grants=GRANTS).find(signed(claims(groups=groups)))
    assert (caught.value.status, caught.value.code) == (403, "role_not_allowed")
    others = {**GRANTS, "*": KeyGrants(models=("small",))}
    key = await provider.tokens(grants=others).find(signed(claims(groups=groups)))
    assert key.caller.rights.models == (("small",),)


def test_claims_at_paths() -> None:
    """A dotted path leads into objects; a name with dots of its own is found whole."""
    found = {"realm_access": {"roles": ["a"]}, "https://x.example/roles": ["b"], "flat": "c"}
    assert claim_at(found, "realm_access.roles") == ["a"]
    assert claim_at(found, "https://x.example/roles") == ["b"]
    assert claim_at(found, "flat.x") is None
    assert claim_at(found, "none") is None


async def test_what_is_kept_is_bounded(provider: Provider) -> None:
    """Tokens that were checked are kept within the bound of the cache, and all are found again."""
    tokens = provider.tokens()
    for number in range(30):
        await tokens.find(signed(claims(jti=str(number)), EC, "ES256", kid="ec"))
    size = tokens._cache_size()
    assert 0 < size.held <= size.limit


async def test_keys_may_be_inside_although_the_issuer_is_public(tmp_path: Path) -> None:
    """Tokens name the provider's public address; its keys are read where the operator says."""

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [public(RSA, "rsa")]})

    app = web.Application()
    app.router.add_get("/keys", keys)
    async with serving_app(app) as address:
        (tmp_path / "toolrelay.toml").write_text(
            f'[auth]\nmode = "jwt"\n[auth.jwt]\nissuer = "{ISSUER}"\naudience = ["{AUDIENCE}"]\n'
            f'jwks_url = "{address}/keys"\nnetworks = ["127.0.0.0/8"]\n'
        )
        config = load_config(tmp_path / "toolrelay.toml", {"OPENAI_API_KEY": "sk-test-openai"})
        store = MemoryStore()
        await store.start()
        authentication = await open_authentication(config, store)
        sent = signed(claims(exp=time.time() + 300, iat=time.time()))
        authenticator = cast(JwtAuthenticator, authentication.authenticator)
        assert (await authenticator._jwt.find(sent)).name == "anna"
        await authentication.aclose()
        await store.aclose()
