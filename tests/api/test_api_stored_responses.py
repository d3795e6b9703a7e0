"""The proxy's stored responses over HTTP: what each path does, and what the upstream is asked to delete."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from proxy.api.stored.responses import StoredResponses
from proxy.base.errors import RequestError, StoreUnavailable, UpstreamUnreachable
from proxy.http.headers import Headers
from proxy.records.rows import ResponseRecord, RunRecord
from proxy.relay.memory import deletion as forgetting
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.deletion import UpstreamDeletion
from proxy.relay.routing.router import Router, ServedUpstream
from proxy.store.options import StoreOptions
from proxy.store.sqlite.memory import MemoryStore
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.dialect import Endpoint
from proxy.wires.registry.table import SERVED
from proxy.wires.responses.body import upstream_ids
from proxy.wires.responses.dialect import DELETE


def record_of(items: Sequence[dict[str, Any]] = (), chain: Sequence[str] = ()) -> ResponseRecord:
    """A response that the proxy stored."""
    continuation = json.dumps({"upstream_ids": list(chain)}).encode()
    return ResponseRecord(
        "resp_1", "run_1", "me", b'{"id":"resp_1"}', json.dumps(list(items)).encode(), continuation, 1e12
    )


def body_of(answer: web.Response | None) -> dict[str, Any]:
    """The object that an answer holds."""
    assert answer is not None
    assert isinstance(answer.body, bytes)
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def stored(*records: ResponseRecord) -> tuple[StoredResponses, list[ResponseRecord]]:
    """The HTTP side of a store with these records, and the list of records to delete upstream."""
    store = MemoryStore(StoreOptions(keep_days=36500))
    await store.start()
    for record in records:
        store.put_response(record)
    forgotten: list[ResponseRecord] = []

    async def forget(record: ResponseRecord, headers: Headers) -> None:
        forgotten.append(record)

    commits = CommitWaiter(store)
    return StoredResponses(store, commits, lambda response, after: b"%r" % after, forget), forgotten


STORED: dict[str, Endpoint] = {known.action: known for known in SERVED.endpoints if known.kind == "stored"}


@pytest.mark.parametrize("action", STORED)
async def test_what_is_another_callers(action: str) -> None:
    """The proxy has no answer for an unknown id and for another caller's id, and deletes nothing upstream."""
    responses, forgotten = await stored(record_of())
    assert await responses.answer(STORED[action], "resp_1", "", "you") is None
    assert await responses.answer(STORED[action], "resp_2", "", "me") is None
    assert forgotten == []
    assert await responses.answer(STORED["retrieve"], "resp_1", "", "me") is not None


async def test_a_number_is_a_number() -> None:
    """``starting_after`` must be a number of a few digits; anything else is an error that names it."""
    responses, _ = await stored(record_of())
    for query, told in (("stream=true", b"None"), ("stream=true&starting_after=12", b"12")):
        answer = await responses.answer(STORED["retrieve"], "resp_1", query, "me")
        assert answer is not None
        assert answer.body == told
        assert answer.headers["Cache-Control"] == "no-cache"
    for text in ("-1", "x", "1.5", "1" * 10):
        with pytest.raises(RequestError) as caught:
            await responses.answer(STORED["retrieve"], "resp_1", f"stream=true&starting_after={text}", "me")
        assert caught.value.param == "starting_after"


async def test_input_items_have_types_and_ids() -> None:
    """Each input item has a type and a stable id, its own if it has one; an assistant's text is output."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"role": "user", "content": [{"type": "input_image"}], "id": "msg_own"},
    ]
    responses, _ = await stored(record_of(items))
    answers = [await responses.answer(STORED["input_items"], "resp_1", "order=asc", "me") for _ in range(2)]
    first, second = map(body_of, answers)
    assert first == second
    assert [item["type"] for item in first["data"]] == [
        "message",
        "message",
        "function_call_output",
        "message",
    ]
    assert [item["content"][0]["type"] for item in first["data"] if "content" in item] == [
        "input_text", "output_text", "input_image",
    ]  # fmt: skip
    ids = [item["id"] for item in first["data"]]
    assert len(set(ids)) == 4
    assert ids[3] == "msg_own"
    assert ids[0].startswith("msg_")


async def test_pages_are_bounded() -> None:
    """A page has 20 input items, or up to 100 if the client asks for them; a higher number is a 400."""
    responses, _ = await stored(record_of([{"role": "user", "content": str(n)} for n in range(120)]))
    for query, count in (("", 20), ("limit=100", 100), ("limit=1", 1)):
        answer = await responses.answer(STORED["input_items"], "resp_1", query, "me")
        page = body_of(answer)
        assert (len(page["data"]), page["has_more"]) == (count, True)
    for number in (101, 120, 999_999_999):
        with pytest.raises(RequestError) as caught:
            await responses.answer(STORED["input_items"], "resp_1", f"limit={number}", "me")
        assert (caught.value.status, caught.value.param) == (400, "limit")


async def test_deleting_forgets_upstream_too() -> None:
    """Deleting a stored response deletes its ids upstream, too, but only the first time."""
    responses, forgotten = await stored(record_of(chain=["resp_1", "resp_9"]))
    assert await responses.answer(STORED["delete"], "resp_1", "", "me") is not None
    assert [upstream_ids(record.continuation) for record in forgotten] == [["resp_1", "resp_9"]]
    assert await responses.answer(STORED["delete"], "resp_1", "", "me") is None


class Fake:
    """An upstream that records what it is asked to delete."""

    def __init__(self, name: str, status: int = 200) -> None:
        self.name = name
        self.status = status
        self.asked: list[tuple[str, str]] = []
        self.headers = ()
        self.content_type = ""
        self.closed = 0

    async def open(self, request: UpstreamRequest) -> Any:
        """Answer, fail or hang, as ``status`` says."""
        self.asked.append((request.method, request.path))
        if self.status == 0:
            raise UpstreamUnreachable("gone")
        if self.status == 1:
            await asyncio.Event().wait()
        return self

    async def aclose(self) -> None:
        """Count the closed responses."""
        self.closed += 1


def run_of(upstream: str) -> RunRecord:
    """The run that produced the response."""
    return RunRecord(
        id="run_1", request_id="r", caller="me", wire="responses", model="m", upstream=upstream, stream=True,
        status="completed", started_at=1e12,
    )  # fmt: skip


async def forget(*fakes: Fake, ran_at: str | None, chain: Sequence[str]) -> None:
    """Delete a response at the upstream that served its run; ``ran_at`` is ``None`` if no run is stored."""
    store = MemoryStore(StoreOptions(keep_days=36500))
    await store.start()
    if ran_at is not None:
        store.put_run(run_of(ran_at))
    router = Router([ServedUpstream(fake, frozenset({"responses"})) for fake in fakes])
    await UpstreamDeletion(store, router, upstream_ids, DELETE)(record_of(chain=chain))


async def test_the_upstream_that_served_a_run_forgets_it() -> None:
    """The proxy deletes each id at the upstream that served the run, or at the default one without a run."""
    first, second = Fake("a"), Fake("b", 404)
    await forget(first, second, ran_at="b", chain=["resp_1", "resp_2"])
    assert sorted(second.asked) == [("DELETE", "/responses/resp_1"), ("DELETE", "/responses/resp_2")]
    assert (first.asked, second.closed) == ([], 2)
    await forget(first, second, ran_at=None, chain=["resp_1"])
    assert first.asked == [("DELETE", "/responses/resp_1")]
    await forget(first, second, ran_at="a", chain=[])
    assert len(first.asked) == 1


async def test_an_id_that_is_a_path_deletes_nothing() -> None:
    """The proxy sends no malformed id upstream: with its own key, a path could delete something else."""
    fake = Fake("a")
    odd = ["../files/file-1", "resp_1/cancel", "resp_1?x=1", "..", "resp_\u00e9", "r HTTP/1.1\r\nx: y", ""]
    await forget(fake, ran_at=None, chain=[*odd, "resp_2"])
    assert fake.asked == [("DELETE", "/responses/resp_2")]


@pytest.mark.parametrize("status", [0, 1, 500])
async def test_an_upstream_that_forgets_nothing(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the upstream fails, hangs or refuses, the deletion ends after at most 64 requests."""
    monkeypatch.setattr(forgetting, "_PATIENCE_S", 0.05)
    fake = Fake("a", status)
    await forget(fake, ran_at="a", chain=[f"resp_{n}" for n in range(100)])
    assert len(fake.asked) == 64


@pytest.mark.parametrize("silent", [True, False])
async def test_a_record_that_forgets_who_served_is_said(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store cannot say which upstream served the run, the proxy asks none and logs the loss."""
    monkeypatch.setattr(forgetting, "_PATIENCE_S", 0.05)
    first, second, store = Fake("a"), Fake("b"), MemoryStore()
    await store.start()

    async def away(run_id: str) -> None:
        if not silent:
            raise StoreUnavailable("away")
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "get_run", away)
    router = Router([ServedUpstream(fake, frozenset({"responses"})) for fake in (first, second)])
    with capture_logs() as said:
        await UpstreamDeletion(store, router, upstream_ids, DELETE)(record_of(chain=["resp_1", "resp_2"]))
    assert [(line["event"], line["responses"]) for line in said] == [("responses_left_upstream", 2)]
    assert first.asked == second.asked == []
