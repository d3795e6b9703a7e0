"""Ownership of responses: behind one provider key, each response id belongs to one client key."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from client_keys import ALICE, BOB, bearer, declared, keyed
from edge_requests import edge_request
from raw_upstream import KEEP, Step, chunked, event, head, whole
from responses_script import function_call, message, reply, stream
from running_proxy import Answer

from proxy.api.generate.owned_stream import OwnedClientStream
from proxy.wires.openai.dialect import FRAMING

ASK: dict[str, Any] = {"model": "m", "input": "hi"}
RESPONSES = "/v1/responses"
DELETED = whole(b'{"deleted":true}')


def error_of(answer: Answer, response_id: str) -> tuple[int, str]:
    """An answer's status and message, without the id that was asked for."""
    return answer.status, answer.error["message"].replace(response_id, "ID")


BODIES: dict[str, list[Step]] = {
    "stream": stream(message("hello")),
    "reply": reply(message("hello")),
    "spaced": whole(b'{"object": "response",\n "output": [{"id":"x"}],\n "id" : "resp_1" }\n'),
    "pieces": chunked(b'{"id":"res', b'p_1","output":[{}', b"]}", content_type="application/json"),
    "cut event": chunked(b': hello\n\ndata: {"type":"response.created","response":{"id":"resp', b'_1"}}\n\n'),
    "crlf": chunked(b'data: {"response":{"id":"resp_1"}}\r\n\r\n'),
    "large event": chunked(event('{"response":{"instructions":"%s","id":"resp_1"}}' % ("x" * 200_000))),
    "large reply": whole(b'{"output":[{"x":"%s"}],"id":"resp_1"}' % (b"y" * 200_000)),
    "large pieces": chunked(
        b'{"output":[{"x":"' + b"z" * 200_000, b'"}],"id":"resp_1"}', content_type="application/json"
    ),
}
STREAMS = ("stream", "cut event", "crlf", "large event")


@pytest.mark.parametrize("kind", sorted(BODIES))
@pytest.mark.parametrize("allow", [(), ("core__*",)])
@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_response_is_its_askers(tmp_path: Any, kind: str, allow: tuple[str, ...], url: str) -> None:
    """Only the client that got a response may use its id; all others get the 404 of an unknown id."""
    url = url if url == "memory:" else f"sqlite:///{tmp_path / 'r.db'}"
    async with keyed(BODIES[kind], DELETED, allow=allow, store={"url": url}) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": kind in STREAMS}, bearer(ALICE), path=RESPONSES)
        assert answer.status == 200
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            path = f"{RESPONSES}/resp_1{rest}"
            foreign = await proxy.ask(None, bearer(BOB), method=method, path=path)
            unknown = await proxy.ask(None, bearer(BOB), method=method, path=path.replace("resp_1", "resp_9"))
            assert error_of(foreign, "resp_1") == error_of(unknown, "resp_9")
            assert foreign.status == 404
        assert len(upstream.requests) == 1
        for method in ("GET", "DELETE"):
            assert (
                await proxy.ask(None, bearer(ALICE), method=method, path=f"{RESPONSES}/resp_1")
            ).status == 200
        assert [request.method for request in upstream.requests] == ["POST", "GET", "DELETE"]


@pytest.mark.parametrize("path", [RESPONSES, f"{RESPONSES}/compact", f"{RESPONSES}/input_tokens"])
@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_nobody_goes_on_from_anothers_response(path: str, allow: tuple[str, ...]) -> None:
    """``previous_response_id`` must be the caller's own; another's id gets the 404 of an unknown one."""
    async with keyed(reply(message("hello")), allow=allow) as (proxy, upstream):
        await proxy.ask(ASK, bearer(ALICE), path=RESPONSES)
        body = {**ASK, "previous_response_id": "resp_1"}
        foreign = await proxy.ask(body, bearer(BOB), path=path)
        assert (foreign.status, foreign.error["code"]) == (404, "previous_response_not_found")
        assert foreign.error["param"] == "previous_response_id"
        unknown = await proxy.ask({**body, "previous_response_id": "resp_9"}, bearer(BOB), path=path)
        assert error_of(foreign, "resp_1") == error_of(unknown, "resp_9")
        odd = await proxy.ask({**body, "previous_response_id": ["resp_1"]}, bearer(BOB), path=path)
        assert odd.status == 404
        assert len(upstream.requests) == 1
        assert (await proxy.ask(body, bearer(ALICE), path=path)).status == 200


async def test_a_response_with_hidden_turns_is_gone_on_from() -> None:
    """The caller can continue a response that the proxy stored with hidden turns; nobody else can."""
    call = reply(function_call("c1", "core__get_current_time", '{"timezone":"UTC"}'))
    async with keyed(call, reply(message("noon")), reply(message("on"))) as (proxy, upstream):
        answer = await proxy.ask(ASK, bearer(ALICE), path=RESPONSES)
        body = {**ASK, "previous_response_id": answer.json["id"]}
        assert (await proxy.ask(body, bearer(BOB), path=RESPONSES)).status == 404
        assert (await proxy.ask(body, bearer(ALICE), path=RESPONSES)).status == 200
        assert len(upstream.requests) == 3


@pytest.mark.parametrize("path", ["compact", "input_tokens"])
async def test_no_other_method_gets_around_ownership(path: str) -> None:
    """For GET and DELETE the name of a POST operation is an unknown response id, so the client gets a 404."""
    async with keyed(DELETED) as (proxy, upstream):
        for method in ("GET", "DELETE"):
            answer = await proxy.ask(None, bearer(ALICE), method=method, path=f"{RESPONSES}/{path}")
            assert answer.status == 404
        assert upstream.requests == []


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
async def test_conversations_are_for_keys_that_may_have_them(conversation: Any) -> None:
    """All keys share the provider's conversations, so a key may use them only if its endpoints say so."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB, endpoints=("/conversations*",))}
    async with keyed(reply(message("hello")), keys=keys, allow=()) as (proxy, upstream):
        body = {**ASK, "conversation": conversation}
        answer = await proxy.ask(body, bearer(ALICE), path=RESPONSES)
        assert (answer.status, answer.error["param"]) == (404, "conversation")
        assert (await proxy.ask(body, bearer(BOB), path=RESPONSES)).status == 200
        assert len(upstream.requests) == 1


async def test_end_users_of_one_key_are_told_apart() -> None:
    """With auth.end_user a response belongs to one end user, not to everybody who shares the key."""
    async with keyed(reply(message("hello")), allow=(), auth={"end_user": "header:x-user"}) as (proxy, _):
        await proxy.ask(ASK, {**bearer(ALICE), "x-user": "ann"}, path=RESPONSES)
        for user, status in (("ann", 200), ("bea", 404), ("", 404), ("\xff", 404)):
            headers = {**bearer(ALICE), "x-user": user}
            answer = await proxy.ask(None, headers, method="GET", path=f"{RESPONSES}/resp_1")
            assert answer.status == status


async def test_an_end_user_may_be_named_in_any_bytes() -> None:
    """An end user's name that is not UTF-8 works like any other and causes no server error."""
    async with keyed(reply(message("hello")), allow=(), auth={"end_user": "header:x-user"}) as (proxy, _):
        odd, other = {**bearer(ALICE), "x-user": "\xff"}, {**bearer(ALICE), "x-user": "\xfe"}
        assert (await proxy.ask(ASK, odd, path=RESPONSES)).status == 200
        for headers, status in ((odd, 200), (other, 404)):
            answer = await proxy.ask(None, headers, method="GET", path=f"{RESPONSES}/resp_1")
            assert answer.status == status


LONG = json.dumps({"output": [{"n": n} for n in range(60)], "id": "resp_1"}).encode()
PIECES = [piece + b"}" for piece in LONG[:-1].split(b"}")]


@pytest.mark.parametrize("framed", ["chunks", "a length"])
async def test_an_object_in_pieces_is_its_callers(framed: str) -> None:
    """The proxy finds the id in a body whose pieces each end like an object, with or without a length."""
    whole_one: list[Step] = [
        head("Content-Type: application/json", f"Content-Length: {len(LONG)}"),
        *PIECES,
        KEEP,
    ]
    script = chunked(*PIECES, content_type="application/json") if framed == "chunks" else whole_one
    async with keyed(script, allow=()) as (proxy, _):
        assert (await proxy.ask(ASK, bearer(ALICE), path=RESPONSES)).body == LONG
        for secret, status in ((ALICE, 200), (BOB, 404)):
            answer = await proxy.ask(None, bearer(secret), method="GET", path=f"{RESPONSES}/resp_1")
            assert answer.status == status


async def test_an_object_in_pieces_is_not_read_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the id, the proxy parses at most three times the body's size, however many pieces come."""
    read: list[int] = []

    def loads(text: bytes) -> Any:
        read.append(len(text))
        return json.loads(text)

    monkeypatch.setattr(
        "proxy.api.generate.owned_stream.orjson", SimpleNamespace(loads=loads, JSONDecodeError=ValueError)
    )
    steps = [step for piece in PIECES for step in (piece, 0.002)]
    script = [head("Content-Type: application/json", f"Content-Length: {len(LONG)}"), *steps, KEEP]
    async with keyed(script, allow=()) as (proxy, _):
        assert (await proxy.ask(ASK, bearer(ALICE), path=RESPONSES)).body == LONG
    assert read[-1] == len(LONG)
    assert sum(read) <= 3 * len(LONG)


ODD: dict[str, list[Step]] = {
    "an error": whole(b'{"id":"resp_1","error":{}}', status="400 Bad Request"),
    "no object": whole(b'["resp_1"]'),
    "no id": whole(b'{"response":{"id":7},"id":"resp_1"}'),
    "no JSON": whole(b"{resp_1}"),
    "odd events": chunked(event("{"), event('{"response":[]}'), event("[DONE]")),
    "a huge event": chunked(*[b"x" * (1 << 20)] * 20),
}


def test_an_object_in_many_pieces_is_not_parsed_at_each() -> None:
    """If each piece looks like the end of an object, the proxy still parses less than 64 MiB in all."""
    parsed = 0

    class Counted(OwnedClientStream):
        def _read(self, text: bytes) -> None:
            nonlocal parsed
            parsed += len(text) if self._looking else 0
            super()._read(text)

    stream = Counted(edge_request("POST"), {}, lambda found, noted: None, framing=FRAMING)
    stream._looking = True
    for _ in range(4000):
        stream._look(b'{"a":{}' + b" " * 1000 + b"}")
    assert parsed < 64 << 20


@pytest.mark.parametrize("kind", sorted(ODD))
async def test_what_has_no_id_is_nobodys(kind: str) -> None:
    """The client gets an upstream's answer without a response id, and nobody comes to own an id."""
    async with keyed(ODD[kind], allow=()) as (proxy, _):
        answer = await proxy.ask(ASK, bearer(ALICE), path=RESPONSES)
        assert answer.clean or kind == "a huge event"
        gone = await proxy.ask(None, bearer(ALICE), method="GET", path=f"{RESPONSES}/resp_1")
        assert gone.status == 404
