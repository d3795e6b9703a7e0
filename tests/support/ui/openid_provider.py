"""An OpenID provider that logs everybody in at once, and a browser that goes there and back.

It refuses what OpenID Connect Core 1.0 (sections 3.1.2 and 3.1.3), RFC 6749 (4.1), RFC 7636 and RFC 9700 have
a provider refuse: an unknown client or address to return to, a request without ``openid``, ``state``,
``nonce`` or S256, a code that is used twice, by another client, with another address or another verifier.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import aiohttp
from aiohttp import web
from in_process import serving_app
from joserfc import jws
from joserfc.jwk import RSAKey
from running_proxy import Answer, Proxy

CLIENT_ID = "toolrelay-ui"
CLIENT_SECRET = "secret of: the/client"
URL = "http://localhost:8080"
"""The address of the proxy as the provider knows it; no test listens there."""


@dataclass
class OpenIdProvider:
    """A provider and its faults.

    ``claims`` replace those of ID tokens; ``None`` leaves one out. ``answer`` replaces parameters of the
    redirect. ``down`` answers 503, ``secret`` is empty for a public client. ``tokens`` are the requests of
    the token endpoint, ``asked`` all paths.
    """

    secret: str = CLIENT_SECRET
    claims: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, str | None] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    token_answer: dict[str, Any] = field(default_factory=dict)
    redirect_uri: str = f"{URL}/ui/login/done"
    lasts_s: float = 3600
    down: bool = False
    url: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))
    signs: RSAKey | None = None
    asked: list[str] = field(default_factory=list)
    tokens: list[dict[str, str]] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def app(self) -> web.Application:
        """Return the application."""

        @web.middleware
        async def noting(request: web.Request, handler: Any) -> web.StreamResponse:
            self.asked.append(f"{request.method} {request.path}")
            if self.down:
                return web.Response(status=500)
            answer: web.StreamResponse = await handler(request)
            return answer

        app = web.Application(middlewares=[noting])
        app.router.add_get("/.well-known/openid-configuration", self._metadata)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        return app

    def code_for(self, asked: Mapping[str, str]) -> str:
        """Return a code as for this authorization request."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = dict(asked)
        return code

    async def _metadata(self, request: web.Request) -> web.Response:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?tenant=one",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }
        return web.json_response({name: value for name, value in document.items() if value is not None})

    async def _keys(self, request: web.Request) -> web.Response:
        public = {**self.key.as_dict(private=False), "kid": "one", "use": "sig", "alg": "RS256"}
        return web.json_response({"keys": [public]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert len(asked) == len(request.query), "a parameter stands twice (RFC 6749, 3.1)"
        assert asked["tenant"] == "one", "the query of the endpoint is kept (RFC 6749, 3.1)"
        assert (asked["client_id"], asked["redirect_uri"]) == (CLIENT_ID, self.redirect_uri)
        assert asked["response_type"] == "code"
        assert "openid" in asked["scope"].split(), "OpenID Connect Core, 3.1.2.1"
        assert (asked["code_challenge_method"], len(asked["code_challenge"])) == ("S256", 43)
        assert len(asked["state"]) >= 32
        assert len(asked["nonce"]) >= 32
        back = {"state": asked["state"], "iss": self.url, "code": self.code_for(asked), **self.answer}
        query = urlencode({name: value for name, value in back.items() if value is not None})
        raise web.HTTPFound(f"{asked['redirect_uri']}?{query}")

    async def _token(self, request: web.Request) -> web.Response:
        sent = await request.post()
        form = {name: str(value) for name, value in sent.items()}
        self.tokens.append(form)
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or challenge.decode().rstrip("=") != asked["code_challenge"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        said = {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "expires_in": 300,
            "id_token": self.id_token(asked["nonce"]),
            **self.token_answer,
        }
        return web.json_response({name: value for name, value in said.items() if value is not None})

    def _is_client(self, request: web.Request, form: Mapping[str, str]) -> bool:
        header = request.headers.get("Authorization", "")
        if not self.secret:
            return not header and form.get("client_id") == CLIENT_ID and "client_secret" not in form
        name, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        return (unquote(name), unquote(secret)) == (CLIENT_ID, self.secret)

    def id_token(self, nonce: str) -> str:
        """Return an ID token for a nonce."""
        now = time.time()
        usual = {
            "iss": self.url,
            "sub": "anna",
            "aud": CLIENT_ID,
            "exp": now + self.lasts_s,
            "iat": now,
            "nonce": nonce,
            "groups": ["platform"],
            "preferred_username": "Anna",
        }
        said = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        head = {"alg": "RS256", "kid": "one", "typ": "JWT", **self.header}
        body = json.dumps(said).encode()
        if head["alg"] == "none":
            parts = (
                base64.urlsafe_b64encode(each).decode().rstrip("=")
                for each in (json.dumps(head).encode(), body)
            )
            return f"{'.'.join(parts)}."
        registry = jws.JWSRegistry(algorithms=["RS256"], strict_check_header=False)
        registry.max_payload_length = 1 << 20
        return jws.serialize_compact(
            head, body, self.signs or self.key, algorithms=["RS256"], registry=registry
        )


@asynccontextmanager
async def openid_provider(**how: Any) -> AsyncIterator[OpenIdProvider]:
    """Serve a provider."""
    provider = OpenIdProvider(**how)
    async with serving_app(provider.app()) as url:
        provider.url = url
        yield provider


@dataclass
class LoginBrowser:
    """A browser with cookies, which goes from the proxy to the provider and back."""

    proxy: Proxy
    cookies: dict[str, str] = field(default_factory=dict)
    set: list[str] = field(default_factory=list)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Navigate to a path of the proxy, as from another site's link."""
        sent = {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
            "Accept": "text/html",
            **self._cookie(),
            **(headers or {}),
        }
        answer = await self.proxy.ask(None, sent, method="GET", path=path)
        self._keep(answer)
        return answer

    async def data(self, path: str, method: str = "GET", body: Any = None) -> Answer:
        """Ask for data, as a page of the proxy does."""
        sent = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", **self._cookie()}
        if method != "GET":
            origin = f"http://127.0.0.1:{self.proxy.port}"
            sent |= {"Origin": origin, "x-toolrelay-ui": "1", "Content-Type": "application/json"}
        raw = None if body is None else json.dumps(body).encode()
        answer = await self.proxy.ask(raw, sent, method=method, path=f"/ui/api/{path}")
        self._keep(answer)
        return answer

    async def at_provider(self, then: str = "/ui/runs") -> str:
        """Begin, and log in at the provider; return the address to which it sends the browser back."""
        begun = await self.get(f"/ui/login?{urlencode({'then': then})}")
        assert begun.status == 303, begun.body
        async with (
            aiohttp.ClientSession() as session,
            session.get(begun.header("location") or "", allow_redirects=False) as answer,
        ):
            assert answer.status == 302, await answer.text()
            return answer.headers["Location"]

    async def log_in(self, then: str = "/ui/runs") -> Answer:
        """Log in, and return the proxy's answer at the end."""
        return await self.back(await self.at_provider(then))

    async def back(self, address: str) -> Answer:
        """Follow the provider's redirect."""
        parts = urlsplit(address)
        return await self.get(f"{parts.path}?{parts.query}")

    def _cookie(self) -> dict[str, str]:
        text = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": text} if text else {}

    def _keep(self, answer: Answer) -> None:
        for name, value in answer.headers:
            if name.lower() == "set-cookie":
                self.set.append(value)
                cookie, _, text = value.partition(";")[0].partition("=")
                if "Max-Age=0" in value:
                    self.cookies.pop(cookie, None)
                else:
                    self.cookies[cookie] = text


def asked_of(address: str | None) -> dict[str, str]:
    """Return the parameters in an address."""
    return dict(parse_qsl(urlsplit(address or "").query))
