"""Responses that a dead process left in the store: the proxy runs them again, or ends them with a reason."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import responses_script
from client_keys import ALICE, bearer, declared
from msgspec.structs import replace
from own_servers import own_redis
from raw_upstream import RawUpstream
from responses_script import message
from running_proxy import Proxy, make_config, running
from store_records import invocation, run
from waiting import PATIENCE_S, until

from proxy.api.detached import background_reader, take_over
from proxy.api.detached.background import PREFIX, BackgroundRuns, EarlierAttempts
from proxy.api.detached.kept_states import KeptState, KeptStates, log_name
from proxy.api.detached.logs.redis_logs import RedisLogs
from proxy.api.detached.stored_request import StoredRequest, read_request
from proxy.app.app import _item_keys
from proxy.app.open_record import open_record
from proxy.config.load import Config
from proxy.records.background import BackgroundRecord, Lease
from proxy.records.effects import EffectClaim
from proxy.records.rows import ResponseRecord
from proxy.relay.ask import Ask
from proxy.relay.memory.idempotency import Attempt
from proxy.relay.offering.wanted import Wanted
from proxy.wires.responses.resource import queued
from proxy.wires.stream.sse import encode_event

ID = f"{PREFIX}1"
DIED = "The server process that ran this response ended before the response was finished."


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy find responses without a process at once."""
    monkeypatch.setattr(take_over, "_LOOK_EVERY_S", 0.05)


def config(folder: Path, upstream: str, **sections: Any) -> Config:
    """Return the configuration of a server whose store is a file that the dead process wrote, too."""
    return make_config(upstream, store={"url": f"sqlite:///{folder / 'r.db'}"}, **sections)


def request(**changes: Any) -> StoredRequest:
    """Return the request that the dead process ran."""
    body = b'{"model": "m", "input": "Do it.", "background": true}'
    return replace(
        StoredRequest(body=body, ticket={"open": "somebody"}, caller="open", request_id="req_1"), **changes
    )


@asynccontextmanager
async def left(
    folder: Path,
    wanted: StoredRequest,
    *,
    effect: bool = False,
    sections: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Proxy]:
    """Run a proxy that starts after another process has died in the middle of a response."""
    caller = wanted.caller or "open"
    record = replace(BackgroundRecord(ID, caller, "run_1", time.time()), **changes)
    async with RawUpstream(responses_script.stream(message("It is done."), id="resp_up1")) as upstream:
        settings = config(folder, upstream.url, **(sections or {}))
        dead = open_record(settings)
        await dead.start()
        dead.put_run(run("run_1", caller=caller))
        await dead.put_background(record, wanted.to_json())
        KeptStates(dead).put(
            Lease(ID, record.attempt), caller, KeptState(queued(ID, {}, record.asked_at), "run_1")
        )
        if effect:
            claim = EffectClaim("place:run_1:1:0", lease=record.lease)
            assert await dead.claim_effect(invocation("inv_1", "run_1"), claim) is None
        if changes.get("cancelled"):
            await dead.cancel_background(ID, caller)
        await dead.aclose()
        async with running(settings) as proxy:
            yield proxy


async def settled(proxy: Proxy, **headers: str) -> dict[str, Any]:
    """Wait until the response has ended, and return it."""
    found: dict[str, Any] = {}

    async def ended() -> bool:
        answer = await proxy.get(f"/v1/responses/{ID}", headers)
        found.update(answer.json)
        return found.get("status") in ("completed", "failed", "cancelled")

    await until(ended)
    return found


async def test_it_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy runs a request again under its response id, in the time that is left, and links the runs."""
    given: list[float] = []
    run_again = BackgroundRuns.run_again

    async def watched(
        self: BackgroundRuns, ask: Ask, record: BackgroundRecord, time_s: float, earlier: EarlierAttempts
    ) -> None:
        given.append(time_s)
        await run_again(self, ask, record, time_s, earlier)

    monkeypatch.setattr(BackgroundRuns, "run_again", watched)
    asked_at = time.time() - 600
    async with left(tmp_path, request(), asked_at=asked_at) as proxy:
        done = await settled(proxy)
        runs = await proxy.runs()
        detail = await proxy.services.store.get_run("run_1")
        assert await proxy.services.store.wait_until_visible(PATIENCE_S)
        stored = await proxy.services.store.find_response(ID, "open")
        metrics = (await proxy.get("/metrics")).body.decode()
    assert (done["id"], done["status"], done["created_at"]) == (ID, "completed", int(asked_at))
    assert stored is not None
    assert json.loads(stored.response)["created_at"] == int(asked_at)
    (time_s,) = given
    assert 0 < time_s <= 3000, "tools.background_s is 3600, and 600 s have passed"
    again = next(one for one in runs if one.id != "run_1")
    assert (again.takes_over, again.status) == ("run_1", "completed")
    assert detail is not None
    assert detail.taken_over_by == again.id
    assert 'toolrelay_background_orphans_total{outcome="taken_over"} 1' in metrics


async def test_an_answer_is_read_though_its_process_died_as_it_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a process died after it stored an answer, the client gets the answer with the request's time."""
    monkeypatch.setattr(background_reader, "_UNSEEN_S", -1.0)
    asked_at, lease = time.time() - 600, Lease(ID, 1)
    answer = {"id": ID, "created_at": 1700000000, "status": "completed", "output": []}
    async with running(config(tmp_path, "http://127.0.0.1:9/v1")) as proxy:
        store = proxy.services.store
        store.put_run(run("run_1", caller="open"))
        await store.put_background(BackgroundRecord(ID, "open", "run_1", asked_at), request().to_json())
        KeptStates(store).put(lease, "open", KeptState(queued(ID, {}, asked_at), "run_1"))
        store.put_response(
            ResponseRecord(ID, "run_1", "open", json.dumps(answer).encode(), b"[]", b"{}", time.time())
        )
        assert await store.end_background(lease)
        done = await settled(proxy)
    assert done == answer | {"created_at": int(asked_at)}


@pytest.mark.parametrize("words", [False, True], ids=["before its first word", "after it"])
async def test_a_reader_in_the_middle_is_told(tmp_path: Path, words: bool) -> None:
    """A client that streams a response of another process continues with the next attempt if the first sent
    no text; otherwise it is told that the response was restarted."""
    kinds = ["response.created", "response.in_progress", *["response.output_text.delta"] * words]
    events = [
        (number, encode_event(json.dumps({"type": kind, "sequence_number": number}).encode(), kind.encode()))
        for number, kind in enumerate(kinds)
    ]
    async with (
        own_redis(tmp_path) as (redis, _),
        RawUpstream(responses_script.stream(message("It is done."), id="resp_up1")) as upstream,
    ):
        limits = {"requests": (), "tool_calls": (), "storage": redis}
        settings = config(tmp_path, upstream.url, limits=limits)
        other, lease = open_record(settings), Lease(ID, 1)
        await other.start()
        _, hash_key = await other.hash_key()
        logs = RedisLogs(redis, await _item_keys(other, hash_key))
        try:
            other.put_run(run("run_1", caller="open"))
            await other.put_background(
                BackgroundRecord(ID, "open", "run_1", time.time()), request().to_json()
            )
            log = logs.open(log_name(lease, "open"))
            for number, event in events:
                log.put(number, event)
            state = KeptState(queued(ID, {}, time.time()), "run_1", leading=2)
            KeptStates(other).put(lease, "open", state)
            async with running(settings) as proxy:
                path = f"/v1/responses/{ID}"

                async def on_record() -> bool:
                    return (await proxy.ask(method="GET", path=path)).status == 200

                await until(on_record)
                async with proxy.sent(method="GET", path=f"{path}?stream=true") as reader:
                    answer, body = await reader.head(), b""
                    pieces = reader.pieces(answer)
                    while events[-1][1] not in body:
                        body += await anext(pieces)
                    assert await other.release_background(lease)
                    log.close(ended=False)
                    async for piece in pieces:
                        body += piece
                done = await settled(proxy)
        finally:
            await logs.aclose()
            await other.aclose()
    assert done["status"] == "completed"
    assert answer.clean
    assert body.count(b"event: response.created\n") == 1
    assert (b'"code":"response_restarted"' in body) == words
    assert (b"event: response.completed\n" in body) != words


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [
        (
            request(),
            {"effect": True},
            "A call of core__send had begun, and nobody knows whether it took effect. "
            "Therefore the request was not run again.",
        ),
        (
            StoredRequest("it is too large"),
            {},
            "The request cannot be run again: it is too large.",
        ),
        (
            request(ticket={"key": "key_0123"}),
            {},
            "The request cannot be run again: The credential that it came with is no longer valid.",
        ),
        (
            request(ticket={"start_token": "0123", "open": "somebody"}),
            {},
            "The request cannot be run again: The credential that it came with is no longer valid.",
        ),
    ],
)
async def test_why_it_is_not_run_again(
    tmp_path: Path, wanted: StoredRequest, given: dict[str, Any], words: str
) -> None:
    """A response that cannot be run again fails, its error has the reason, and its stream has the failure."""
    async with left(tmp_path, wanted, **given) as proxy:
        failed = await settled(proxy)
        stream = await proxy.get(f"/v1/responses/{ID}?stream=true")
        runs = await proxy.runs()
    assert failed["error"] == {"code": "server_error", "message": f"{DIED} {words}"}
    assert b"event: response.failed\n" in stream.body
    assert len(runs) == 1


async def test_after_three_deaths_it_is_over(tmp_path: Path) -> None:
    """A response fails after three server processes that ran it have died."""
    async with left(tmp_path, request(), attempt=3, deaths=2) as proxy:
        failed = await settled(proxy)
    assert failed["error"]["message"] == (
        "The 3 server processes that ran this response ended before it was finished."
    )


async def test_its_time_is_not_begun_anew(tmp_path: Path) -> None:
    """A response whose time limit has passed since the client asked for it fails instead of running again."""
    async with left(tmp_path, request(), asked_at=time.time() - 7200) as proxy:
        failed = await settled(proxy)
    assert "tools.background_s" in failed["error"]["message"]


async def test_it_is_cancelled_though_nobody_runs_it(tmp_path: Path) -> None:
    """If a client cancelled the response of the dead process, it ends as cancelled, without a new run."""
    async with left(tmp_path, request(), cancelled=True) as proxy:
        assert (await settled(proxy))["status"] == "cancelled"
        assert len(await proxy.runs()) == 1


async def test_a_revoked_keys_response_is_not_run_again(tmp_path: Path) -> None:
    """The proxy runs a response again if its key is still valid, and lets it fail if the key is gone."""
    keys = {"alice": declared(ALICE)}
    wanted = request(caller="config:alice", key="config:alice", ticket={"key": "config:alice"})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with left(tmp_path / "a", wanted, sections={"keys": keys}) as proxy:
        assert (await settled(proxy, **bearer(ALICE)))["status"] == "completed"
    async with left(
        tmp_path / "b", replace(wanted, ticket={"key": "config:bob"}), sections={"keys": keys}
    ) as proxy:
        failed = await settled(proxy, **bearer(ALICE))
    assert failed["error"]["message"].endswith("The credential that it came with is no longer valid.")


async def test_a_key_without_the_model_any_more(tmp_path: Path) -> None:
    """The proxy checks the key's current rights: a response fails if its key may no longer use the model."""
    keys = {"alice": declared(ALICE, models=["other"])}
    wanted = request(caller="config:alice", key="config:alice", ticket={"key": "config:alice"})
    async with left(tmp_path, wanted, sections={"keys": keys}) as proxy:
        failed = await settled(proxy, **bearer(ALICE))
    assert "The request cannot be run again: " in failed["error"]["message"]
    assert "does not exist" in failed["error"]["message"]


async def test_a_stored_request_has_no_credential() -> None:
    """Rule R3: the store has the body, the caller and the forwarded headers of a request, but no key."""
    body = b'{"model": "m", "input": "Do it.", "background": true}'
    secrets = {**bearer(ALICE), "api-key": ALICE, "Cookie": f"key={ALICE}", "X-Vault-Token": ALICE}
    forwarded = {"OpenAI-Beta": "x", "X-Tenant": "y"}
    go_on = asyncio.Event()
    script = [go_on, *responses_script.stream(message("It is done."), id="resp_up1")]
    async with RawUpstream(script) as upstream:
        table = {"base_url": upstream.url, "forward_headers": ("x-tenant",)}
        async with running(make_config(table, keys={"alice": declared(ALICE)})) as proxy:
            answer = await proxy.ask(body, {**secrets, **forwarded}, path="/v1/responses")
            response_id = answer.json["id"]
            data = await proxy.services.store.background_request(response_id)
            go_on.set()
    assert data is not None
    assert ALICE.encode() not in data
    kept = read_request(data)
    assert (kept.body, kept.caller, kept.ticket) == (body, "config:alice", {"key": "config:alice"})
    assert set(forwarded.items()) <= set(kept.headers)


def test_a_request_is_read_as_it_was_written() -> None:
    """A stored request is read back exactly as it was written."""
    wanted = request(
        headers=(("OpenAI-Beta", "x"),),
        query="a=b",
        wanted=Wanted(names=("core__send",)),
        trace="events",
        history=False,
        attempt=Attempt("key", ("1",), "session"),
        asks_by_call=True,
    )
    assert read_request(wanted.to_json()) == wanted
