"""A scripted authorization server, and an MCP server that accepts its tokens, on the loopback.

The server accepts each refresh token once; if a token comes again, its login ends, as with strict providers.
The MCP server speaks 2025-11-25 in JSON. Its tools need a token, and ``write`` needs the scope ``write``.
Both refuse what :mod:`mcp_rules` says.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode

from aiohttp import web
from in_process import serving_app
from mcp_rules import OAuthRule, http_fault, message_fault, oauth_fault

OBJECT = {"type": "object", "properties": {}}
TOOLS = [{"name": name, "description": f"Does {name}.", "inputSchema": OBJECT} for name in ("read", "write")]

REPEATED = OAuthRule("repeated", "", bool, "invalid_request", "RFC 6749, 3.1 and 3.2: each parameter once")
NO_FORM = OAuthRule("form", "", bool, "invalid_request", "RFC 6749, 4.1.3: application/x-www-form-urlencoded")


def _refused(rule: OAuthRule) -> web.Response:
    told = {"error": rule.error, "error_description": f"{rule.name} ({rule.source})"}
    return web.json_response(told, status=401 if rule.error == "invalid_client" else 400)


@dataclass
class TokenSet:
    """The tokens of one login, which ends if one of its refresh tokens is used twice."""

    client_id: str
    resource: str
    scope: str
    refresh_token: str = ""
    access_token: str = ""
    ended: bool = False


@dataclass
class OAuthServer:
    """The settings of both servers, and the requests that they got.

    ``documents`` replace the documents at these paths; ``{URL}`` in them becomes the address of the server.
    ``None`` gives 404, a number another status. The token endpoint waits for ``gate`` if there is one. If
    the client disconnects meanwhile, its request has no effect unless ``hears_the_dead`` is set. ``forms``
    are the requests of the token endpoint, ``registered`` the registrations, ``seen`` the headers of the MCP
    server's requests, and ``asked`` all paths. ``list_scope`` is the scope that listing the tools needs, or
    empty.
    """

    expires_in: float | None = 3600
    needs_scope: bool = True
    list_scope: str = ""
    sends_iss: bool = True
    gives_refresh: bool = True
    grants: str | None = None
    refuses: str = ""
    iss: str | None = None
    challenge: str | None = None
    documents: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    forms: list[dict[str, str]] = field(default_factory=list)
    registered: list[dict[str, Any]] = field(default_factory=list)
    revoked: list[dict[str, str]] = field(default_factory=list)
    authorized: list[dict[str, str]] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    logins: list[TokenSet] = field(default_factory=list)
    token_answer: Any = None
    token_status: int = 200
    url: str = ""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None
    hears_the_dead: bool = False
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def mcp(self) -> str:
        """The address of the MCP server."""
        return f"{self.url}/mcp"

    def app(self) -> web.Application:
        """Return the application with both servers."""

        @web.middleware
        async def noting(request: web.Request, handler: Any) -> web.StreamResponse:
            self.asked.append(f"{request.method} {request.path}")
            answer: web.StreamResponse = await handler(request)
            return answer

        app = web.Application(middlewares=[noting])
        app.router.add_post("/mcp", self._serve_mcp)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_post("/register", self._register)
        app.router.add_post("/revoke", self._revoke)
        app.router.add_get("/{path:.*}", self._document)
        return app

    # Documents.

    async def _document(self, request: web.Request) -> web.StreamResponse:
        own: dict[str, Any] = {
            "/.well-known/oauth-protected-resource/mcp": {
                "resource": "{URL}/mcp",
                "authorization_servers": ["{URL}"],
                "scopes_supported": ["read"],
            },
            "/.well-known/oauth-authorization-server": {
                "issuer": "{URL}",
                "authorization_endpoint": "{URL}/authorize",
                "token_endpoint": "{URL}/token",
                "registration_endpoint": "{URL}/register",
                "revocation_endpoint": "{URL}/revoke",
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": self.sends_iss,
            },
            **self.documents,
        }
        found = own.get(request.path)
        if isinstance(found, int) or found is None:
            return web.Response(status=found or 404)
        if isinstance(found, web.HTTPException):
            raise found
        if isinstance(found, bytes):
            return web.Response(body=found, content_type="application/json")
        return web.json_response(_filled(found, self.url))

    # The authorization server.

    async def _authorize(self, request: web.Request) -> web.StreamResponse:
        asked = dict(request.query)
        self.authorized.append(asked)
        if len(asked) < len(request.query):
            return _refused(REPEATED)
        if broken := oauth_fault("authorize", asked):
            return _refused(broken)
        client = self.clients.get(asked["client_id"])
        if client is not None:
            assert asked["redirect_uri"] in client["redirect_uris"]
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = {"state": asked["state"]}
        issuer = self.iss if self.iss is not None else self.url
        if self.sends_iss or self.iss is not None:
            back["iss"] = issuer
        back.update({"error": self.refuses} if self.refuses else {"code": code})
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.StreamResponse:
        form, broken = await self._form(request, "token")
        if broken is not None:
            return _refused(broken)
        work = asyncio.ensure_future(self._answer(form))
        # If the client disconnects meanwhile, aiohttp cancels this handler.
        return await (asyncio.shield(work) if self.hears_the_dead else work)

    async def _answer(self, form: dict[str, str]) -> web.StreamResponse:
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        self.forms.append(form)
        if self.token_answer is not None:
            return web.json_response(self.token_answer, status=self.token_status)
        match form["grant_type"]:
            case "authorization_code":
                return self._exchanged(form)
            case "refresh_token":
                return self._refreshed(form)
            case "client_credentials":
                login = TokenSet(form["client_id"], form.get("resource", ""), form.get("scope", ""))
                self.logins.append(login)
                return self._tokens(login)
        return web.json_response({"error": "unsupported_grant_type"}, status=400)

    async def _form(self, request: web.Request, endpoint: str) -> tuple[dict[str, str], OAuthRule | None]:
        """Return the form of a client with its id and secret, and the rule that refuses it."""
        sent = await request.post()
        form = {name: str(value) for name, value in sent.items()}
        repeated = REPEATED if len(form) < len(sent) else None
        if request.content_type != "application/x-www-form-urlencoded":
            repeated = NO_FORM
        self._prove(request, form)
        return form, repeated or oauth_fault(endpoint, form)

    def _prove(self, request: web.Request, form: dict[str, str]) -> None:
        """Add the client's id and secret to the form if they came in the header."""
        header = request.headers.get("Authorization", "")
        if header.startswith("Basic "):
            name, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
            form.update({"client_id": unquote(name), "client_secret": unquote(secret), "method": "basic"})

    def _exchanged(self, form: Mapping[str, str]) -> web.StreamResponse:
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        fits = asked is not None and (proof, form["redirect_uri"], form["client_id"]) == (
            asked["code_challenge"],
            asked["redirect_uri"],
            asked["client_id"],
        )
        if asked is None or not fits or form.get("resource") != asked.get("resource"):
            return web.json_response({"error": "invalid_grant"}, status=400)
        granted = self.grants if self.grants is not None else asked.get("scope", "")
        login = TokenSet(form["client_id"], form.get("resource", ""), granted)
        self.logins.append(login)
        return self._tokens(login)

    def _refreshed(self, form: Mapping[str, str]) -> web.StreamResponse:
        token = form["refresh_token"]
        for number, login in enumerate(self.logins):
            if token.startswith(f"s3cret-refresh-{number}-"):
                fits = not login.ended and token == login.refresh_token
                fits = fits and form["client_id"] == login.client_id
                if fits and form.get("resource", "") == login.resource:
                    return self._tokens(login)
                login.ended = True
        return web.json_response({"error": "invalid_grant", "error_description": token}, status=400)

    def _tokens(self, login: TokenSet) -> web.StreamResponse:
        number = self.logins.index(login)
        login.access_token = f"s3cret-access-{number}-{secrets.token_hex(4)}"
        told: dict[str, Any] = {"access_token": login.access_token, "token_type": "Bearer"}
        if self.expires_in is not None:
            told["expires_in"] = self.expires_in
        if self.grants is not None:
            told["scope"] = self.grants
        if self.gives_refresh and login.client_id != "machine":
            login.refresh_token = told["refresh_token"] = f"s3cret-refresh-{number}-{secrets.token_hex(4)}"
        return web.json_response(told)

    async def _register(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.registered.append(asked)
        if broken := oauth_fault("register", asked):
            return _refused(broken)
        told = {**asked, "client_id": f"client-{len(self.registered)}"}
        if asked["token_endpoint_auth_method"] != "none":
            told["client_secret"] = f"s3cret-client-{len(self.registered)}"
        self.clients[told["client_id"]] = told
        return web.json_response(told, status=201)

    async def _revoke(self, request: web.Request) -> web.StreamResponse:
        form, broken = await self._form(request, "revoke")
        if broken is not None:
            return _refused(broken)
        self.revoked.append(form)
        for login in self.logins:
            if form["token"] in (login.refresh_token, login.access_token):
                login.ended = True
        return web.Response()

    # The MCP server.

    async def _serve_mcp(self, request: web.Request) -> web.StreamResponse:
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        login = next((one for one in self.logins if one.access_token == token and token), None)
        if login is None or login.ended or login.resource != self.mcp:
            challenge = self.challenge
            if challenge is None:
                challenge = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return web.json_response({}, status=401, headers={"WWW-Authenticate": challenge})
        if wrong := http_fault(request.headers):
            return web.json_response({}, status=wrong.status, reason=wrong.name)
        asked = await request.json()
        if fault := message_fault(asked):
            return web.json_response({"jsonrpc": "2.0", "id": asked.get("id"), "error": fault})
        if "id" not in asked:
            return web.Response(status=202)
        name = asked.get("params", {}).get("name")
        needed = "write" if name == "write" and self.needs_scope else ""
        if asked["method"] == "tools/list":
            needed = self.list_scope
        if needed and needed not in login.scope.split():
            wanted = f'Bearer error="insufficient_scope", scope="{needed}"'
            return web.json_response({}, status=403, headers={"WWW-Authenticate": wanted})
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **_result(asked["method"], name)})


def _result(method: str, tool: str | None) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "scripted", "version": "1"}
            made = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return {"result": made}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": f"{tool} is done"}]}}
    return {"error": {"code": -32601, "message": "not known"}}


def _filled(document: Any, url: str) -> Any:
    """Return a document with the address of the server in it."""
    if isinstance(document, str):
        return document.replace("{URL}", url)
    if isinstance(document, list):
        return [_filled(one, url) for one in document]
    if isinstance(document, dict):
        return {name: _filled(one, url) for name, one in document.items()}
    return document


@asynccontextmanager
async def running(server: OAuthServer | None = None) -> AsyncIterator[OAuthServer]:
    """Run both servers in this event loop."""
    made = server or OAuthServer()
    async with serving_app(made.app()) as made.url:
        yield made
