"""A background response is found from its first moment on, and right after its end, by every process."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import responses_script
from chat_script import content, finish, role
from chat_script import stream as chat_stream
from raw_upstream import RawRequest, RawUpstream, Step
from responses_script import message
from running_proxy import Answer, Proxy, make_config, running

from proxy.api.detached.background_stream import BackgroundStream
from proxy.api.detached.kept_states import first_number
from proxy.api.detached.logs.event_log import EventLog
from proxy.wires.responses.resource import queued

ASK: dict[str, Any] = {"model": "m", "input": "Say it.", "background": True}


def script(request: RawRequest) -> Sequence[Step]:
    """Answer with one text, in the dialect of the request."""
    if "messages" in json.loads(request.body):
        return chat_stream(role(), content("It is said."), finish())
    return responses_script.stream(message("It is said.", id="msg_1"), id="resp_up1")


async def get(proxy: Proxy, response_id: str) -> Answer:
    """Ask a proxy for a response by its id."""
    return await proxy.get(f"/v1/responses/{response_id}")


def last_of(body: bytes) -> dict[str, Any]:
    """Return the last event of a stream."""
    lines = [line for line in body.decode().splitlines() if line.startswith("data: {")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))
    return found


@pytest.mark.parametrize("wire", ["responses", "chat"])
async def test_another_process_finds_it_before_its_states_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """What a process stores after the response exists may come late: others say `queued`, then the answer."""
    exists, late = False, []
    async with RawUpstream(script) as upstream:
        config = make_config(
            {"base_url": upstream.url, "wires": (wire,)},
            store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
            server={"workers": 2},
            limits={"requests": (), "tool_calls": ()},
        )
        async with running(config) as owner, running(config) as other:
            store = owner.services.store
            put_background, put_result = store.put_background, store.put_result

            async def created(record: Any, request: bytes) -> None:
                nonlocal exists
                exists = True
                await put_background(record, request)

            def kept(record: Any) -> None:
                if exists:
                    late.append(record)
                else:
                    put_result(record)

            monkeypatch.setattr(store, "put_background", created)
            monkeypatch.setattr(store, "put_result", kept)
            first = (await owner.ask(ASK, path="/v1/responses")).json["id"]
            asked = await get(other, first)
            assert (asked.status, asked.json["id"]) == (200, first)
            exists = False
            streamed = await owner.ask({**ASK, "stream": True}, path="/v1/responses")
            end = last_of(streamed.body)
            assert end["type"] == "response.completed"
            found = await get(other, end["response"]["id"])
            assert (found.status, found.json["status"]) == (200, "completed")
            assert found.json["created_at"] == end["response"]["created_at"]
            assert found.json["output"][0]["content"][0]["text"] == "It is said."


@pytest.mark.parametrize("wire", ["responses", "chat"])
async def test_no_end_is_told_before_the_answer_is_on_record(
    monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """While the record is slow to take the answer, the response is in progress, and no 404."""
    ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    go_on = asyncio.Event()
    async with (
        RawUpstream(script) as upstream,
        running(make_config({"base_url": upstream.url, "wires": (wire,)})) as proxy,
    ):
        store = proxy.services.store
        end_background = store.end_background

        async def slow(lease: Any) -> bool:
            if not ending.done():
                ending.set_result(lease.response_id)
            await go_on.wait()
            return await end_background(lease)

        monkeypatch.setattr(store, "end_background", slow)
        streaming = asyncio.create_task(proxy.ask({**ASK, "stream": True}, path="/v1/responses"))
        response_id = await ending
        waiting = await get(proxy, response_id)
        go_on.set()
        assert (waiting.status, waiting.json["status"]) == (200, "in_progress")
        assert last_of((await streaming).body)["type"] == "response.completed"
        found = await get(proxy, response_id)
        assert (found.status, found.json["status"]) == (200, "completed")


def ended_stream() -> BackgroundStream:
    """Return a stream that has got its last event from the upstream."""
    stream = BackgroundStream(queued("resp_1", {}, 0.0), EventLog(), lambda: None)
    stream.start(200, [("Content-Type", "text/event-stream")])
    event = {"type": "response.completed", "sequence_number": 0, "response": {"status": "completed"}}
    stream.push(b"data: " + orjson.dumps(event) + b"\n\n")
    return stream


def test_an_end_waits_for_the_end_of_the_run() -> None:
    """The last event counts when the run has finished, and what comes between is dropped."""
    stream = ended_stream()
    assert (stream.ended, stream.log.end, len(stream.log.events)) == (False, None, 0)
    stream.push(b'data: {"type": "response.output_text.delta", "delta": "x"}\n\n')
    stream.finish()
    assert (stream.ended, stream.log.end, len(stream.log.events)) == (True, None, 0)
    stream.close()
    assert (stream.log.end, len(stream.log.events)) == (True, 1)
    assert stream.resource["status"] == "completed"


@pytest.mark.parametrize("broken", ["abort", "error", "failed"])
def test_a_run_that_breaks_after_its_last_event_has_failed(broken: str) -> None:
    """If the answer cannot be put on record, the response is no success."""
    stream = ended_stream()
    if broken == "error":
        stream.push(b'data: {"type": "error", "error": {"code": "lost", "message": "No record."}}\n\n')
    elif broken == "failed":
        stream.push(b'data: {"type": "response.failed", "response": {"status": "failed"}}\n\n')
    if broken == "abort":
        stream.abort()
    else:
        stream.finish()
    stream.close()
    assert (stream.resource["status"], len(stream.log.events)) == ("failed", 1)


@pytest.mark.parametrize("status", [None, 1, [], {}, "odd"])
def test_an_odd_status_is_no_end(status: Any) -> None:
    """A response with a status that is none goes on."""
    stream = BackgroundStream(queued("resp_1", {}, 0.0), EventLog(), lambda: None)
    stream.start(200, [("Content-Type", "text/event-stream")])
    event = {"type": "response.in_progress", "response": {"status": status}}
    stream.push(b"data: " + orjson.dumps(event) + b"\n\n")
    assert (stream.ended, stream.resource["status"]) == (False, "in_progress")


@pytest.mark.parametrize(
    "given",
    [[0, 0, 0], [-1, -1, -1], [0, 2**63, 2**64 - 1], [5, 4, 3], [None, None, None], [True, 1.5, "2"]],
)
@pytest.mark.parametrize("attempt", [1, 2])
def test_odd_numbers_of_an_upstream_lose_no_event(given: list[Any], attempt: int) -> None:
    """Readers skip what they have seen by its number, so each event has a higher one, which also fits."""
    stream = BackgroundStream(queued("resp_1", {}, 0.0), EventLog(), lambda: None, attempt)
    stream.start(200, [("Content-Type", "text/event-stream")])
    for number in given:
        event = {"type": "response.output_text.delta", "sequence_number": number, "delta": "x"}
        stream.push(b"data: " + orjson.dumps(event) + b"\n\n")
    numbers = [number for number, _ in stream.log.events]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 3
    first = first_number(attempt)
    assert first <= numbers[0] <= numbers[-1] < first + 1_000_000
    assert [last_of(event)["sequence_number"] for _, event in stream.log.events] == numbers


def test_sound_numbers_of_an_upstream_stay() -> None:
    """An upstream that leaves out numbers keeps its own, and its bytes."""
    stream = BackgroundStream(queued("resp_1", {}, 0.0), EventLog(), lambda: None)
    stream.start(200, [("Content-Type", "text/event-stream")])
    events = [b'data: {"type":"x",  "sequence_number":%d}\n\n' % number for number in (0, 1, 7)]
    for event in events:
        stream.push(event)
    assert stream.log.events == list(zip((0, 1, 7), events, strict=True))
