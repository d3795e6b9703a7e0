"""A dialect that only these tests have: the proxy treats a request by the table of endpoints alone."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client_keys import ALICE, BOB, bearer, declared
from msgspec.structs import replace
from raw_upstream import RawUpstream, whole
from running_proxy import Answer, Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.wires.dialect import Credential, Endpoint, Errors
from proxy.wires.openai.dialect import OPENAI, error_event, read_error
from proxy.wires.registry.table import EndpointTable

SAID = {"model": "m", "say": "hi"}
LIMITED = {"cost": ("1/day",)}


def oops(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, Any]:
    """Return an error in the toy dialect's format."""
    return {"oops": message, "why": code or type}


TOY = replace(
    OPENAI,
    name="toy",
    prefix="/toy",
    errors=Errors(oops, error_event, read_error),
    credentials=(Credential("x-toy-key", ""),),
    query=frozenset({"mode"}),
    families=frozenset({"speak"}),
    takes_files=frozenset({"voices"}),
)
SPEAK = Endpoint(
    TOY, "POST", "/speak", "infer", body="routed", model="named", refers=True, operation="text_completion"
)
TABLE = EndpointTable((SPEAK,), OPENAI)


@asynccontextmanager
async def toy(**config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy that serves only the toy dialect, in front of an upstream."""
    async with (
        RawUpstream(whole(b'{"said":"hi"}')) as upstream,
        running(make_config(upstream.url, allow=(), **config), Overrides(endpoints=TABLE)) as proxy,
    ):
        yield proxy, upstream


def shown(secret: str) -> Mapping[str, str]:
    """Return a key in the header of the toy dialect."""
    return {"x-toy-key": secret}


def refused(answer: Answer, status: int, why: str) -> None:
    """Assert that an answer is that error, in the toy dialect's format."""
    assert (answer.status, answer.json.get("why")) == (status, why), answer.body
    assert set(answer.json) == {"oops", "why"}


async def test_a_path_is_served_below_its_own_prefix() -> None:
    """The upstream gets the path below the dialect's prefix; a path without the prefix is unknown."""
    async with toy() as (proxy, upstream):
        assert (await proxy.ask(SAID, path="/toy/speak?mode=loud")).status == 200
        assert [request.target for request in upstream.requests] == ["/v1/speak?mode=loud"]
        assert (await proxy.ask(SAID, path="/speak")).status == 404


async def test_a_key_is_where_the_dialect_has_it() -> None:
    """A key counts only in the dialect's own header, and does not reach the upstream."""
    async with toy(keys={"alice": declared(ALICE)}) as (proxy, upstream):
        refused(await proxy.ask(SAID, path="/toy/speak"), 401, "invalid_api_key")
        refused(await proxy.ask(SAID, bearer(ALICE), path="/toy/speak"), 401, "invalid_api_key")
        assert upstream.requests == []
        assert (await proxy.ask(SAID, shown(ALICE), path="/toy/speak")).status == 200
        assert ALICE.encode() not in str(upstream.requests[0].headers).encode()


async def test_what_the_dialect_does_not_have_is_closed_to_keys() -> None:
    """A key may call only paths that an endpoint declares as inference."""
    async with toy(keys={"alice": declared(ALICE)}) as (proxy, upstream):
        for path in ("/v1/shout", "/v1/chat/completions"):
            answer = await proxy.ask(SAID, bearer(ALICE), path=path)
            assert answer.error["code"] == "endpoint_not_allowed"
        assert upstream.requests == []


@pytest.mark.parametrize(
    ("more", "status", "why"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"previous_response_id": "x"}, 404, "previous_response_not_found"),
    ],
)
async def test_what_a_body_asks_for_is_held_to_rights(more: dict[str, Any], status: int, why: str) -> None:
    """A model that a key may not use, or a response that is not its own, looks as if it did not exist."""
    async with toy(keys={"bob": declared(BOB, models=("m",))}) as (proxy, upstream):
        refused(await proxy.ask({**SAID, **more}, shown(BOB), path="/toy/speak"), status, why)
        assert upstream.requests == []


async def test_a_body_is_read_strictly_and_so_is_a_query() -> None:
    """A body with a duplicate name, or a query with an unknown parameter, is refused."""
    async with toy() as (proxy, upstream):
        refused(await proxy.ask(b'{"model":"m","model":"n"}', path="/toy/speak"), 400, "duplicate_key")
        refused(await proxy.ask(SAID, path="/toy/speak?beta=1"), 400, "unknown_query_parameter")
        assert upstream.requests == []


async def test_what_it_costs_is_limited() -> None:
    """Where cost is limited, a request for a model without a price is refused."""
    async with toy(limits=LIMITED) as (proxy, upstream):
        refused(await proxy.ask(SAID, path="/toy/speak"), 400, "model_not_priced")
        assert upstream.requests == []


async def test_a_page_cannot_send_what_the_dialect_takes_no_files_for() -> None:
    """A form with files is refused at a path where the dialect takes no files."""
    form = {"Content-Type": "multipart/form-data; boundary=x", "Authorization": "Bearer unused"}
    async with toy() as (proxy, upstream):
        refused(await proxy.ask(b"--x--", form, path="/toy/speak"), 415, "content_type_not_allowed")
        assert upstream.requests == []


async def test_it_is_counted_under_its_own_name() -> None:
    """Metrics have the path as a label and the operation of its endpoint."""
    async with toy() as (proxy, _):
        await proxy.ask(SAID, path="/toy/speak")
        told = (await proxy.get("/metrics")).body.decode()
    assert 'endpoint="/toy/speak"' in told
    assert 'gen_ai_operation_name="text_completion"' in told


def test_two_endpoints_are_told_apart() -> None:
    """A table refuses two endpoints of the same method and path, as it could serve only one of them."""
    with pytest.raises(ValueError, match="same method and path"):
        EndpointTable((SPEAK, replace(SPEAK, body="opaque")), OPENAI)
