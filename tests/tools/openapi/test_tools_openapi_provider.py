"""Calls of operations at an API that answers only what its document allows."""

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from api_documents import KEY, document, operation, parameter, shop, users
from documented_service import DocumentedService
from in_process import serving_app

from proxy.base.errors import ToolFailure
from proxy.records.rows import ToolEffect
from proxy.tools.access.credentials import CredentialBroker, StaticToken
from proxy.tools.access.egress import EgressClient, EgressPool
from proxy.tools.access.placement import Placement
from proxy.tools.contract.provider import CallContext, Person
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.pins import GivenPins, Pin
from proxy.tools.openapi.api import Api
from proxy.tools.openapi.document import read_document
from proxy.tools.openapi.operations import read_operations
from proxy.tools.openapi.provider import OpenApiProvider

TOKEN = "s3cret-token"
CONTEXT = CallContext("run", "inv", "caller", "call")


def no_oauth(connection: Any) -> Any:
    """Static tokens ask no authorization server."""
    raise AssertionError(connection)


class Called:
    """An API behind its provider: calls by the names of operations."""

    def __init__(
        self, service: DocumentedService, provider: OpenApiProvider, specs: Sequence[ToolSpec]
    ) -> None:
        self.service = service
        self.provider = provider
        self.specs = {spec.origin.name: spec for spec in specs if spec.origin is not None}

    async def __call__(self, name: str, **arguments: Any) -> RichResult:
        spec = self.specs[name]
        result: RichResult = await self.provider.call_tool(spec, spec.validate(arguments), CONTEXT)
        return result


@asynccontextmanager
async def serving(
    written: Mapping[str, Any], *, networks: Sequence[str] = ("127.0.0.0/8",), token: str = TOKEN, **api: Any
) -> AsyncIterator[Called]:
    """Serve a document and everything that it describes; the document's server is replaced by the service."""
    service = DocumentedService(written)
    async with serving_app(service.app()) as address:
        pool = EgressPool(allowed_networks=networks, schemes=("https", "http"), retries=0)
        broker = CredentialBroker({"c": StaticToken(token)}, pool, no_oauth)

        def client(
            connection: str, hosts: Sequence[str], place: Placement | None, person: Person | None
        ) -> EgressClient | None:
            return pool.client(hosts) if place is None else broker.placing_client(connection, hosts, place)

        own = Api("shop", **{"connection": "c", "base_url": address.rstrip("/"), **api})
        found = read_operations(read_document(json.dumps(written).encode(), "s"), own)
        assert not found.left_out
        pins = [Pin(definition, own.identity, 0.0) for definition in found.definitions]
        provider = OpenApiProvider({"shop": own}, GivenPins(pins), client)
        async with aclosing(pool):
            await provider.begin()
            yield Called(service, provider, await provider.list_tools())


async def test_every_form_of_a_request_is_one_that_the_document_allows() -> None:
    """Paths, queries, headers, cookies, JSON, merge patches, forms and text arrive as they were given."""
    async with serving(shop("https://api.example.com")) as call:
        await call(
            "getItem",
            id="a b+c;d,e",
            fields=["x", "y z"],
            tag=["1&2", "3"],
            DateCreated="2026",
            DateCreated_query="2027",
            filter={"a": "[x]=1"},
            **{"X-Trace": "t 1"},
            session="s;1",
            limit=3,
            full=True,
        )
        item = {"name": None, "price": 1.5, "parts": [{"name": "ö \U0001f600"}]}
        await call("putItem", id="7", body=item)
        await call("postOrder", body={"note": "n"})
        charge = {
            "amount": 5,
            "expand": ["a", "b"],
            "metadata": {"a": "x y", "b": "&="},
            "lines": [{"price": "p", "quantity": 2}],
        }
        await call("postCharge", body=charge)
        await call("postNote", body="two\nlines")
        assert call.service.refused == []
        got, put, order, charged, note = call.service.seen
    assert got.arguments == {
        "id": "a b+c;d,e",
        "fields": ["x", "y z"],
        "tag": ["1&2", "3"],
        "DateCreated": "2026",
        "DateCreated<": "2027",
        "filter": {"a": "[x]=1"},
        "X-Trace": "t 1",
        "session": "s;1",
        "limit": 3,
        "full": True,
    }
    assert put.body == item
    assert order.body == {"note": "n"}
    assert charged.body == charge
    assert note.body == "two\nlines"
    assert {each.headers["X-Api-Key"] for each in call.service.seen} == {TOKEN}


async def test_an_application_of_version_3_1_is_called() -> None:
    """Optional arguments that are left out, or null, are not sent."""
    async with serving(users("https://api.example.com"), connection="") as call:
        body = {"email": "a@example.com", "age": None, "kind": "guest"}
        await call("update_user_users__user_id___patch", user_id=5, q=None, body=body)
        assert call.service.refused == []
        (seen,) = call.service.seen
    assert (seen.arguments, seen.body) == ({"user_id": 5}, body)
    assert "Authorization" not in seen.headers


def secured(scheme: dict[str, Any]) -> dict[str, Any]:
    """Return a document with one operation that needs these credentials."""
    return document(
        {"/x": {"get": operation("x", parameter("q", "query"))}},
        components={"securitySchemes": {"s": scheme}},
        security=[{"s": []}],
    )


BASIC = base64.b64encode(b"user:pass word").decode()


@pytest.mark.parametrize(
    ("scheme", "token", "header", "value"),
    [
        (KEY, TOKEN, "X-Api-Key", TOKEN),
        ({"type": "http", "scheme": "bearer"}, TOKEN, "Authorization", f"Bearer {TOKEN}"),
        ({"type": "http", "scheme": "basic"}, "user:pass word", "Authorization", f"Basic {BASIC}"),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "a;b", "Cookie", "sid=a%3Bb"),
        ({"type": "oauth2", "flows": {}}, TOKEN, "Authorization", f"Bearer {TOKEN}"),
    ],
)
async def test_credentials_are_sent_in_their_place(
    scheme: dict[str, Any], token: str, header: str, value: str
) -> None:
    """Rule T6: each scheme has its header, and the token stands nowhere else."""
    async with serving(secured(scheme), token=token) as call:
        await call("x", q="1")
        (seen,) = call.service.seen
    assert seen.headers[header] == value
    assert token not in seen.raw_path


async def test_a_key_of_the_query_is_sent_and_never_told() -> None:
    """A key in the query reaches the service, and neither result nor failure has it."""
    async with serving(secured({"type": "apiKey", "in": "query", "name": "k"}), token="s3cret/token") as call:
        call.service.answer = web.json_response({"you_sent": "s3cret/token", "url": "/x?k=s3cret%2Ftoken"})
        result = await call("x", q="1")
        assert call.service.seen[0].raw_path == "/x?q=1&k=s3cret%2Ftoken"
        assert "s3cret" not in result.text
        call.service.answer = web.json_response({"you_sent": "s3cret/token"}, status=403)
        with pytest.raises(ToolFailure) as caught:
            await call("x", q="1")
    assert caught.value.message == 'the service answered with status 403: {"you_sent":"************"}'


async def test_a_password_is_never_told() -> None:
    """Of USER:PASSWORD, a service may repeat the password alone."""
    async with serving(secured({"type": "http", "scheme": "basic"}), token="anna:s3cretword") as call:
        call.service.answer = web.json_response({"password": "s3cretword"})
        assert (await call("x")).text == '{"password":"**********"}'


@pytest.mark.parametrize("status", [200, 400])
async def test_json_that_is_nested_too_deeply_is_a_failure(status: int) -> None:
    """What can be read but not be written again is told to the model; nothing breaks."""
    async with serving(secured(KEY)) as call:
        deep = "[" * 1020 + "]" * 1020
        call.service.answer = web.Response(text=deep, content_type="application/json", status=status)
        with pytest.raises(ToolFailure, match="nested too deeply"):
            await call("x")


async def test_the_operator_s_headers_are_sent_and_never_told() -> None:
    """Headers of the configuration go along, replace parameters of their names, and are not repeated."""
    written = document({"/x": {"get": operation("x", parameter("X-Client", "header", required=True))}})
    async with serving(written, connection="", headers={"x-client": "the-client-secret"}) as call:
        assert call.specs["x"].parameters["properties"] == {}
        call.service.answer = web.json_response({"client": "the-client-secret"})
        result = await call("x")
        assert call.service.seen[0].headers["x-client"] == "the-client-secret"
    assert "the-client-secret" not in result.text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (web.Response(status=204), '{"status": 204}'),
        (web.Response(text="plain\u200b text"), "plain text"),
        (web.json_response({"ä": [1, None]}), '{"ä":[1,null]}'),
        (web.Response(body=b'{"a":1}', content_type="application/octet-stream"), '{"a":1}'),
        (
            web.Response(body=b"%PDF", content_type="application/pdf"),
            "[toolrelay: the answer was left out (application/pdf, 4 bytes)]",
        ),
    ],
)
async def test_an_answer_is_text_for_the_model(answer: web.Response, text: str) -> None:
    """JSON without spaces, text without invisible characters, and a note for anything else."""
    async with serving(secured(KEY)) as call:
        call.service.answer = answer
        assert (await call("x")).text == text


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 503])
async def test_a_failure_has_the_service_s_words(status: int) -> None:
    """A model reads the status and what the service says about it, on one line and bounded."""
    async with serving(secured(KEY)) as call:
        call.service.answer = web.json_response(
            {"error": "no\u202e such thing", "more": "x" * 5000}, status=status
        )
        with pytest.raises(ToolFailure) as caught:
            await call("x")
    assert caught.value.message.startswith(
        f'the service answered with status {status}: {{"error":"no such thing"'
    )
    assert len(caught.value.message) < 1000
    assert caught.value.transient == (status >= 500)


async def test_another_host_gets_nothing() -> None:
    """A redirect to another host is not followed, so that credentials stay at the document's server."""
    async with serving(secured(KEY)) as call:
        call.service.answer = web.Response(status=302, headers={"Location": "http://127.0.0.1:1/x"})
        with pytest.raises(ToolFailure, match="another host"):
            await call("x")


async def test_a_server_inside_is_not_reached() -> None:
    """What a document's server names is checked when it is called: no loopback by default."""
    async with serving(secured(KEY), networks=()) as call:
        with pytest.raises(ToolFailure, match="may not call that address"):
            await call("x")
        assert not call.service.seen


@pytest.mark.parametrize(
    "base", ["http://169.254.169.254", "http://localhost", "http://[::1]", "http://2130706433"]
)
async def test_no_document_leads_to_the_metadata_service(base: str) -> None:
    """Rule T6: the addresses of clouds' metadata and of this machine are refused in every spelling."""
    async with serving(secured(KEY), networks=(), base_url=base) as call:
        with pytest.raises(ToolFailure):
            await call("x")


async def test_what_an_operator_took_back_is_not_called() -> None:
    """A run that was offered an operation cannot call it after the pin has gone."""
    async with serving(secured(KEY)) as call:
        call.provider._source = GivenPins([])
        await call.provider.list_tools()
        with pytest.raises(ToolFailure) as caught:
            await call("x")
        assert caught.value.code == "policy_denied"
        assert not call.service.seen


@pytest.mark.parametrize(
    "change", [{"base_url": "https://other.example.com"}, {"connection": "another"}], ids=str
)
async def test_an_api_with_another_address_or_account_has_to_be_allowed_again(change: dict[str, Any]) -> None:
    """Pins belong to the operator's base_url, and to the account that its calls use."""
    async with serving(secured(KEY)) as call:
        own = call.provider._apis["shop"]
        pins = await call.provider._source.pins()
        for api, offers in ((own, True), (replace(own, **change), False)):
            provider = OpenApiProvider({"shop": api}, GivenPins(pins), None)
            await provider.begin()
            assert bool(await provider.list_tools()) is offers


async def test_effect_trust_and_place_are_the_operators() -> None:
    """The contract of a tool: effect by method or setting, untrusted results, egress, its own source."""
    async with serving(shop("https://api.example.com"), effects={"postNote": ToolEffect.READ_ONLY}) as call:
        specs = call.specs
    assert {name: str(spec.effect) for name, spec in specs.items()} == {
        "getItem": "read_only",
        "putItem": "external_side_effect",
        "postOrder": "external_side_effect",
        "postCharge": "external_side_effect",
        "postNote": "read_only",
    }
    for spec in specs.values():
        assert spec.untrusted_output
        assert spec.egress
        assert spec.source == "openapi__shop__*"
        assert spec.connection == "c"
        assert spec.retries == (1 if spec.effect == "read_only" else 0)
