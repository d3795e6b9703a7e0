"""The WebSocket mode of ``/v1/responses``: every message is a request like any other."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import responses_script as responses
from chat_script import call, content, finish, role, stream, usage
from client_keys import ALICE, BOB, bearer, key_config, made
from looping import ECHO
from raw_upstream import FIN, HANG, RawUpstream, whole
from running_proxy import ONLY_DEPARTURE, SERVER_KEY, Proxy, make_config, running
from waiting import PATIENCE_S, until
from websocket_client import connected
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = pytest.mark.both_loops

HELLO = stream(role(), content("Hel", "lo."), finish(), usage(3, 2))


@asynccontextmanager
async def proxied(
    *scripts: Any, wire: str = "chat", keyed: bool = False, **sections: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy in front of a scripted upstream of this dialect."""
    make = key_config if keyed else make_config
    async with (
        RawUpstream(*scripts) as upstream,
        running(make({"base_url": upstream.url, "wires": (wire,)}, **sections)) as proxy,
    ):
        yield proxy, upstream


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_message_is_answered_with_the_events_of_the_stream(wire: str) -> None:
    """Each event of an answer is one message of JSON, numbered from 0, and there is no end mark."""
    script = HELLO if wire == "chat" else responses.stream(responses.message("Hello."))
    async with proxied(script, wire=wire) as (proxy, upstream), connected(proxy) as client:
        turn = await client.ask(input="hi", stream=False)
        run = await proxy.only_run()
    assert (turn.text, turn.types[0], turn.last["type"]) == (
        "Hello.",
        "response.created",
        "response.completed",
    )
    assert [event["sequence_number"] for event in turn.events] == list(range(len(turn.events)))
    assert json.loads(upstream.requests[0].body)["stream"] is True
    assert (run.run.wire, run.run.status) == ("responses", "completed")


async def test_server_tools_run_behind_a_message() -> None:
    """The proxy makes a call of a server tool and hides it from the client, as over HTTP."""
    scripts = (stream(role(), call("call_1", ECHO, '{"text":"noon"}'), finish("tool_calls")), HELLO)
    async with proxied(*scripts, modules=("probe_tools",)) as (proxy, upstream), connected(proxy) as client:
        turn = await client.ask(input="hi")
        run = await proxy.only_run()
    assert turn.text == "Hello."
    assert [item["type"] for item in turn.response["output"]] == ["message"]
    assert [row.tool for row in run.invocations] == [ECHO]
    assert len(upstream.requests) == 2


async def test_a_connection_goes_on_from_what_is_not_stored() -> None:
    """Only the connection itself remembers a response with ``store: false``; others do not know it."""
    async with proxied(HELLO, HELLO) as (proxy, upstream):
        async with connected(proxy) as client:
            first = await client.ask(input="one", store=False)
            second = await client.ask(input="two", store=False, previous_response_id=first.response["id"])
            assert second.response["previous_response_id"] == first.response["id"]
        async with connected(proxy) as client:
            again = await client.ask(input="three", store=False, previous_response_id=second.response["id"])
        path = f"/v1/responses/{second.response['id']}"
        assert (await proxy.ask(method="GET", path=path)).status == 404
    assert (again.code, again.last["status"]) == ("previous_response_not_found", 400)
    said = [message["content"] for message in json.loads(upstream.requests[1].body)["messages"]]
    assert said == ["one", "Hello.", "two"]


async def test_a_responses_upstream_gets_the_whole_of_what_it_does_not_store() -> None:
    """The upstream stores nothing either, so the proxy sends the items again in place of the id."""
    scripts = [responses.stream(responses.message(text), id=f"resp_{text}") for text in ("a", "b")]
    async with proxied(*scripts, wire="responses", allow=()) as (proxy, upstream), connected(proxy) as client:
        first = await client.ask(input="one", store=False)
        second = await client.ask(input="two", store=False, previous_response_id=first.response["id"])
    body = json.loads(upstream.requests[1].body)
    assert second.text == "b"
    assert "previous_response_id" not in body
    assert [item.get("role") for item in body["input"]] == ["user", "assistant", "user"]


async def test_what_failed_is_not_gone_on_from() -> None:
    """After a failed continuation the connection forgets the earlier response; the client can begin anew."""
    async with proxied(HELLO, HELLO) as (proxy, _), connected(proxy) as client:
        first = (await client.ask(input="one", store=False)).response["id"]
        output = {"type": "function_call_output", "call_id": "call_none", "output": "x"}
        failed = await client.ask(input=[output], store=False, previous_response_id=first)
        again = await client.ask(input="two", store=False, previous_response_id=first)
        fresh = await client.ask(input="three", store=False)
    assert failed.last["error"]["param"].endswith("call_id")
    assert again.code == "previous_response_not_found"
    assert fresh.text == "Hello."


async def test_a_stored_response_is_found_from_everywhere() -> None:
    """A client can continue a stored response over HTTP and on another connection."""
    async with proxied(HELLO, HELLO, HELLO) as (proxy, upstream):
        async with connected(proxy) as client:
            first = (await client.ask(input="one")).response["id"]
        async with connected(proxy) as client:
            await client.ask(input="two", previous_response_id=first)
        body = {"model": "m", "input": "three", "previous_response_id": first}
        answer = await proxy.ask({**body, "stream": True}, path="/v1/responses")
    assert answer.status == 200
    said = [json.loads(request.body)["messages"] for request in upstream.requests]
    assert [len(messages) for messages in said] == [1, 3, 3]


async def test_a_warm_up_asks_nobody() -> None:
    """``generate: false`` asks no upstream but gives an id; its input goes before the next message's."""
    async with proxied(HELLO) as (proxy, upstream), connected(proxy) as client:
        warm = await client.ask(input="first", generate=False, store=False)
        assert (warm.response["output"], upstream.requests) == ([], [])
        turn = await client.ask(input="second", store=False, previous_response_id=warm.response["id"])
    assert turn.text == "Hello."
    said = [message["content"] for message in json.loads(upstream.requests[0].body)["messages"]]
    assert said == ["first", "second"]


async def test_messages_are_answered_one_after_the_other() -> None:
    """A message waits until the one before it is answered; each event has its message's ``stream_id``."""
    async with proxied(HELLO, HELLO) as (proxy, _), connected(proxy) as client:
        await client.send(input="one", stream_id="a")
        await client.send(input="two", stream_id="b")
        turns = [await client.turn(), await client.turn()]
    for turn, lane in zip(turns, "ab", strict=True):
        assert {event["stream_id"] for event in turn.events} == {lane}
        assert turn.text == "Hello."


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ('{"type":"response.steer"}', "type"),
        ('{"model":"m"}', "type"),
        ('{"type":"response.create","model":"m","background":true}', "background"),
        ('{"type":"response.create","model":"m","generate":0}', "generate"),
        ('{"type":"response.create","model":"m","stream_id":"a b"}', "stream_id"),
        ('{"type":"response.create","input":"hi"}', "model"),
        ('{"type":"response.create","model":"m","model":"n"}', "model"),
        ("[1]", None),
        ("not json", None),
        ("\\xff", None),
    ],
)
async def test_a_message_that_makes_no_sense_is_refused(said: str, param: str | None) -> None:
    """An invalid message gets an error that names the parameter, and the connection goes on."""
    async with proxied(HELLO) as (proxy, _), connected(proxy) as client:
        await client.connection.send(said)
        turn = await client.turn()
        assert (turn.last["type"], turn.last["status"], turn.last["error"]["param"]) == ("error", 400, param)
        assert turn.last["error"]["type"] == "invalid_request_error"
        assert (await client.ask(input="hi")).text == "Hello."


async def test_an_upstreams_refusal_is_an_error_with_its_status() -> None:
    """An upstream's HTTP error becomes an error event with its status, and the next message is answered."""
    error = b'{"error":{"message":"No such model.","code":"model_not_found"}}'
    refused = whole(error, status="404 Not Found")
    async with proxied(refused, HELLO) as (proxy, _), connected(proxy) as client:
        turn = await client.ask(input="hi")
        assert (turn.types, turn.last["status"]) == (["error"], 404)
        assert "No such model." in turn.last["error"]["message"]
        assert (await client.ask(input="hi")).text == "Hello."


async def test_a_refusal_of_any_length_is_one_error() -> None:
    """An upstream's error that is too long for the proxy loses its message, but not its status."""
    error = b'{"error":{"message":"%b","code":"server_error"}}' % (2**20 * b"x")
    refused = whole(error, status="500 Internal Server Error")
    script = responses.stream(responses.message("Hello."))
    async with (
        proxied(refused, script, wire="responses") as (proxy, _),
        connected(proxy) as client,
    ):
        turn = await client.ask(input="hi")
        assert (turn.types, turn.last["status"]) == (["error"], 500)
        assert turn.last["error"]["message"] == "The upstream answered with an error."
        assert (await client.ask(input="hi")).text == "Hello."


async def test_a_stream_that_breaks_ends_in_a_failed_response() -> None:
    """If an upstream's stream breaks, the client gets a failed response or an error, and can go on."""
    async with proxied([*HELLO[:2], FIN], HELLO) as (proxy, _), connected(proxy) as client:
        turn = await client.ask(input="hi")
        assert turn.last["type"] in ("response.failed", "error")
        assert (await client.ask(input="hi")).text == "Hello."


async def test_a_client_that_leaves_ends_its_run() -> None:
    """Rule E4: if a client leaves, the proxy ends its upstream call and records its run as cancelled."""
    async with proxied([*HELLO[:2], HANG], **ONLY_DEPARTURE) as (proxy, upstream):
        async with connected(proxy) as client:
            await client.send(input="hi")
            await client.connection.recv()
            assert upstream.open_connections == 1
            client.connection.transport.abort()
        await upstream.all_closed()
        run = await proxy.run_reaches("cancelled")
    assert run.run.error_code == "client_gone"


async def test_a_message_needs_its_key_and_counts_against_limits() -> None:
    """A connection needs a valid key, each message counts against limits, and one too many gets an error."""
    limits = {"requests": ("2/minute",)}
    async with proxied(HELLO, HELLO, keyed=True, allow=(), limits=limits) as (proxy, _):
        for headers in ({}, bearer("wrong")):
            with pytest.raises(InvalidStatus) as refused:
                async with connected(proxy, headers):
                    pass
            assert refused.value.response.status_code == 401
        async with connected(proxy, bearer(ALICE)) as client:
            assert [(await client.ask(input="hi")).text for _ in range(2)] == ["Hello.", "Hello."]
            over = await client.ask(input="hi")
            assert (over.last["status"], over.code) == (429, "rate_limit_exceeded")
            assert "retry-after" in over.last["error"]["headers"]


async def test_a_connection_knows_its_own_callers_responses_alone() -> None:
    """With client keys a connection cannot continue the response of another caller."""
    async with proxied(HELLO, keyed=True, allow=()) as (proxy, upstream):
        async with connected(proxy, bearer(ALICE)) as client:
            first = (await client.ask(input="one")).response["id"]
        async with connected(proxy, bearer(BOB)) as client:
            turn = await client.ask(input="two", previous_response_id=first)
    assert (turn.code, len(upstream.requests)) == ("previous_response_not_found", 1)


async def test_a_revoked_key_ends_with_the_next_message() -> None:
    """The proxy checks the key for each message, not only for the handshake."""
    async with proxied(HELLO, HELLO, keyed=True, allow=()) as (proxy, _):
        store = proxy.services.store
        secret = await made(store)
        async with connected(proxy, bearer(secret)) as client:
            assert (await client.ask(input="hi")).text == "Hello."
            for key in (await store.read_keys()).keys:
                await store.revoke_key(key.id)
            turn = await client.ask(input="hi")
            assert (turn.last["type"], turn.last["status"]) == ("error", 401)


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_foreign_page_opens_no_connection(keyed: bool) -> None:
    """A page of another origin opens no connection, with a key or without: WebSockets have no preflight."""
    async with proxied(keyed=keyed, allow=()) as (proxy, upstream):
        for origin in ("https://evil.example", "null"):
            with pytest.raises(InvalidStatus) as refused:
                async with connected(proxy, {**bearer(ALICE), "Origin": origin}):
                    pass
            assert refused.value.response.status_code == 403
    assert upstream.requests == []


async def test_connections_are_bounded() -> None:
    """One connection too many of a caller gets a 429, and there is room again once one has closed."""
    limits = {"websockets": 2, "websockets_per_caller": 1}
    async with proxied(HELLO, HELLO, keyed=True, allow=(), limits=limits) as (proxy, _):
        async with connected(proxy, bearer(ALICE)) as client:
            assert (await client.ask(input="hi")).text == "Hello."
            with pytest.raises(InvalidStatus) as refused:
                async with connected(proxy, bearer(ALICE)):
                    pass
            assert refused.value.response.status_code == 429
            async with connected(proxy, bearer(BOB)):
                pass

        async def again() -> bool:
            try:
                async with connected(proxy, bearer(ALICE)) as client:
                    return (await client.ask(input="hi")).text == "Hello."
            except InvalidStatus:
                return False

        await until(again)


async def test_a_large_message_ends_the_connection() -> None:
    """A message over ``server.max_body_bytes`` closes the connection with code 1009."""
    async with proxied(server={"max_body_bytes": 2000}) as (proxy, upstream), connected(proxy) as client:
        await client.send(input="x" * 3000)
        with pytest.raises(ConnectionClosed) as closed:
            await client.turn()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    assert upstream.requests == []


async def test_messages_that_wait_are_bounded() -> None:
    """While a message is answered, a bounded number of others may wait; each further one gets an error."""
    release = asyncio.Event()
    async with (
        proxied([*HELLO[:2], release, *HELLO[2:]], *[HELLO] * 8) as (proxy, _),
        connected(proxy) as client,
    ):
        await client.send(input="first")
        await client.connection.recv()
        for number in range(10):
            await client.send(input=str(number))
        # A pong comes when all that was sent before its ping has been read.
        await (await client.connection.ping())
        release.set()
        turns = [await client.turn() for _ in range(11)]
    codes = [turn.code for turn in turns if turn.last["type"] == "error"]
    assert codes == ["too_many_messages"] * 2


async def test_an_idle_connection_is_closed() -> None:
    """The proxy closes a connection that is idle for ``server.websocket_idle_s`` seconds."""
    async with proxied(server={"websocket_idle_s": 0.2}) as (proxy, _), connected(proxy) as client:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(client.connection.recv(), PATIENCE_S)


async def test_a_connection_has_an_age() -> None:
    """After ``server.websocket_lifetime_s`` seconds a connection gets an error and is closed."""
    async with proxied(server={"websocket_lifetime_s": 0.2}) as (proxy, _), connected(proxy) as client:
        turn = await asyncio.wait_for(client.turn(), PATIENCE_S)
        assert turn.code == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(client.connection.recv(), PATIENCE_S)


async def test_an_operator_may_serve_none() -> None:
    """With ``limits.websockets = 0`` a handshake gets a 426, so that the client uses HTTP."""
    async with proxied(limits={"websockets": 0}) as (proxy, _):
        with pytest.raises(InvalidStatus) as refused:
            async with connected(proxy):
                pass
    assert refused.value.response.status_code == 426


async def test_a_server_that_stops_ends_its_connections() -> None:
    """A server that stops closes idle connections with code 1012, and busy ones after their response."""
    release = asyncio.Event()
    async with (
        proxied([*HELLO[:2], release, *HELLO[2:]]) as (proxy, _),
        connected(proxy) as busy,
        connected(proxy) as idle,
    ):
        await busy.send(input="hi")
        await busy.connection.recv()
        proxy.draining.refuse()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.connection.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        release.set()
        assert (await busy.turn()).text == "Hello."
        with pytest.raises(ConnectionClosed):
            await busy.connection.recv()


async def test_what_is_no_handshake_is_refused() -> None:
    """A handshake of another version than 13, or with a key that has not 16 bytes, gets a 400 in JSON."""
    whole = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with proxied() as (proxy, _):
        for name, value in (("Sec-WebSocket-Version", "8"), ("Sec-WebSocket-Key", "c2hvcnQ=")):
            answer = await proxy.get("/v1/responses", {**whole, name: value})
            assert (answer.status, answer.error["code"]) == (400, "invalid_handshake")


async def test_frames_that_break_the_protocol_end_the_connection() -> None:
    """A frame of a client that is not masked closes the connection with code 1002."""
    async with proxied() as (proxy, _), connected(proxy) as client:
        client.connection.transport.write(b"\x81\x02{}")
        with pytest.raises(ConnectionClosed) as closed:
            await client.connection.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1002


async def test_the_headers_of_the_handshake_are_those_of_each_message() -> None:
    """The handshake's headers hold for each message, but each has its own request id and idempotency key."""
    headers = {"x-toolrelay-tools": "none", "Idempotency-Key": "k", "x-request-id": "mine"}
    async with proxied(HELLO, HELLO) as (proxy, upstream), connected(proxy, headers) as client:
        for text in ("one", "two"):
            assert (await client.ask(input=text)).text == "Hello."
        runs = await proxy.runs()
    assert "tools" not in json.loads(upstream.requests[0].body)
    assert len({run.request_id for run in runs} | {"mine"}) == 3


async def test_pings_without_measure() -> None:
    """The proxy drops a client that sends pings without end and does not read the answers."""
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    # Each ping has a mask of zeros and 125 bytes.
    pings = 512 * (b"\x89\xfd\0\0\0\0" + bytes(125))
    async with proxied() as (proxy, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1024)
        writer.write(proxy.request(None, handshake, method="GET", path="/v1/responses"))
        assert b" 101 " in await reader.readline()
        gone = False
        try:
            for _ in range(1000):
                writer.write(pings)
                await asyncio.wait_for(writer.drain(), PATIENCE_S)
        except ConnectionError:
            gone = True
        finally:
            writer.transport.abort()
        assert gone


async def test_a_secret_of_the_upstream_is_blanked_out() -> None:
    """If the upstream repeats the operator's key, the events for the client do not have it."""
    told = stream(role(), content(f"The key is {SERVER_KEY}."), finish())
    async with proxied(told) as (proxy, _), connected(proxy) as client:
        turn = await client.ask(input="hi")
    assert SERVER_KEY not in json.dumps(turn.events)
