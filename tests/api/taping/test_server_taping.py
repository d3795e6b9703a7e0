"""The bytes of runs: kept with each run if the operator keeps all content, bounded and without secrets."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from agents_rig import RESEARCHER, Models, Turn, agents
from chat_script import DONE, content, finish, role
from client_keys import bearer
from hypothesis import given
from hypothesis import strategies as st
from logged import logged_to
from raw_upstream import RawUpstream, chunked, whole
from running_proxy import make_config, running
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, ui_proxy

from proxy.api.taping import tape as taping
from proxy.api.taping.tape import Room, RunTape, read_tape
from proxy.base.chance import Draws, drawing, replayable
from proxy.config.secret import Secret
from proxy.http.secrets import Secrets
from proxy.store.base import RunFilter

ALL = {"content": "all"}
_OF_RUNS = ("toolrelay_runs", "toolrelay_turns", "toolrelay_tool", "toolrelay_tokens", "toolrelay_upstream")


def body_of(wire: dict[str, Any], leg: str) -> bytes:
    """Return the bytes of a leg."""
    return b"".join(base64.b64decode(chunk["data"]) for chunk in wire["chunks"] if chunk["leg"] == leg)


async def asked(browser: Browser, body: Any = QUESTION, **more: Any) -> tuple[str, bytes]:
    """Send a request, and return the run's id and the answer's bytes."""
    answer = await browser.proxy.ask(body, bearer(CLIENT), **more)
    assert answer.status == 200, answer.body
    return answer.header("x-toolrelay-run") or "", answer.body


async def test_the_bytes_of_every_run_are_kept() -> None:
    """A store that keeps all content has the bytes of every run on both sides, each piece with its time."""
    async with ui_proxy(store=ALL) as (browser, upstream):
        await browser.sign_in()
        assert (await browser.get("session")).json["capture"]["keeps"] is True
        raw = json.dumps(QUESTION, indent=1).encode()
        run_id, answer = await asked(browser, raw)
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        assert (wire["captured"], wire["truncated"]) == (True, False)
        assert body_of(wire, "client.request") == raw
        assert body_of(wire, "client.response") == answer
        assert [body_of(wire, f"upstream.{n}.request") for n in (1, 2)] == [r.body for r in upstream.requests]
        assert b"core__get_current_time" in body_of(wire, "upstream.1.response")
        times = [chunk["at_ms"] for chunk in wire["chunks"]]
        assert times == sorted(times)
        assert wire["alignment"]
        size = sum(leg["bytes"] for leg in wire["legs"])
        assert (await browser.get(f"runs/{run_id}")).json["wire"] == {"captured": True, "bytes": size}
        saved = await browser.get(f"runs/{run_id}/fixture")
        assert (saved.status, saved.header("content-type")) == (200, "application/zip")


@pytest.mark.parametrize("store", [{"content": "tools"}, {"content": "all", "wire_bytes": False}])
async def test_bytes_are_kept_only_where_the_operator_says_so(store: dict[str, Any]) -> None:
    """With other settings the store keeps no bytes, and the UI says which setting would keep them."""
    async with ui_proxy(store=store) as (browser, _):
        await browser.sign_in()
        run_id, _ = await asked(browser)
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        assert wire["captured"] is False
        assert 'store.content = "all"' in wire["reason"]
        session = (await browser.get("session")).json["capture"]
        assert (session["allowed"], session["keeps"]) == (True, False)
        assert session["not_kept"].startswith("store.")


async def test_bytes_are_not_kept_in_a_record_that_is_not_encrypted(tmp_path: Path) -> None:
    """A store without encryption keeps no bytes, since private arguments in them cannot be masked."""
    store = {**ALL, "url": f"sqlite:///{tmp_path / 'r.db'}", "seal": False}
    async with ui_proxy(store=store) as (browser, _):
        await browser.sign_in()
        run_id, _ = await asked(browser)
        assert (await browser.get(f"runs/{run_id}/wire")).json["captured"] is False
        refused = await browser.get(f"runs/{run_id}/fixture")
        assert "not encrypted" in refused.error["message"]


async def test_a_secret_that_an_upstream_repeats_is_not_kept() -> None:
    """If the upstream repeats the proxy's own key, the kept bytes have it blanked out."""
    key = "sk-upstream-0123456789abcdef"
    said = chunked(role(), content(f"your key is {key}"), finish(), DONE)
    async with RawUpstream(said) as upstream:
        served = {"base_url": upstream.url, "api_key": Secret("env:KEY", key)}
        async with running(make_config(served, allow=("core__*",), store=ALL)) as proxy:
            answer = await proxy.ask(QUESTION)
            run_id = answer.header("x-toolrelay-run") or ""
            wire = await proxy.services.store.find_wire(run_id)
    assert wire is not None
    assert key.encode() not in wire.payload
    assert read_tape(wire.payload).body("client.response") == answer.body


async def test_an_agents_run_has_bytes_of_its_own() -> None:
    """The requests of an agent's run are kept with that run, not with the run that called the agent."""
    models = Models(
        {
            "m": lambda asked: (
                Turn("Done.") if asked.results else Turn(calls=[(RESEARCHER, {"task": "look"})])
            ),
            "small": lambda asked: Turn("Found."),
        }
    )
    async with RawUpstream(models) as upstream:
        config = make_config(upstream.url, allow=("agent__*",), agents=agents(), store=ALL)
        async with running(config) as proxy:
            answer = await proxy.ask(QUESTION)
            store = proxy.services.store
            runs = {run.agent: run.id for run in await store.list_runs(RunFilter())}
            found = {name: await store.find_wire(run_id) for name, run_id in runs.items()}
    outer, inner = found[""], found["researcher"]
    assert outer is not None
    assert inner is not None
    taped = read_tape(outer.payload)
    assert taped.body("client.response") == answer.body
    assert [json.loads(taped.body(f"upstream.{n}.request"))["model"] for n in (1, 2)] == ["m", "m"]
    assert json.loads(read_tape(inner.payload).body("upstream.1.request"))["model"] == "small"


async def test_what_was_refused_and_asked_again_is_one_turn() -> None:
    """A refused request and its repetition belong to the same turn, each with its own answer."""
    refusal = whole(b'{"error":{"message":"tools are not supported"}}', status="400 Bad Request")
    async with ui_proxy(store=ALL) as (browser, upstream):
        upstream.scripts = (refusal, chunked(role(), content("Hi."), finish(), DONE))
        await browser.sign_in()
        run_id, _ = await asked(browser)
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        answers = [(leg["turn"], leg["status"]) for leg in wire["legs"] if leg["id"].startswith("upstream.")]
        assert answers == [(1, None), (1, 400), (1, None), (1, 200)]


def test_runs_that_go_on_share_their_room() -> None:
    """Runs share a bounded room: bytes that do not fit are cut, and a closed tape frees its part."""
    room = Room(200 << 10)
    first, second = RunTape("run_1", room, Draws()), RunTape("run_2", room, Draws())
    for tape in (first, second):
        leg = tape.leg("client.response", 0, 200, "text/event-stream")
        for _ in range(150):
            tape.record(leg, b"x" * 1024)
    assert (first.cut, second.cut) == (False, True)
    assert room.held <= room.most
    kept = read_tape(second.encoded())
    assert kept.cut
    assert len(kept.body("client.response")) < 150 << 10
    first.close()
    second.close()
    assert room.held == 0


PIECES = st.lists(st.binary(max_size=40), max_size=20)


@given(PIECES, PIECES)
def test_a_tape_is_read_as_it_was_noted(came: list[bytes], went: list[bytes]) -> None:
    """However bodies were cut into pieces, a tape gives back each byte in its body and its piece."""
    clock = iter(range(10_000))
    tape = RunTape("run_1", Room(1 << 20), Draws(), now=lambda: float(next(clock)))
    number = tape.asked("up", "/chat/completions", b"{}")
    legs = (tape.answered(number, 200, "text/event-stream"), tape.leg("client.response", 0, 200, "text/x"))
    for leg, pieces in zip(legs, (came, went), strict=True):
        for piece in pieces:
            tape.record(leg, piece)
    read = read_tape(tape.encoded())
    assert read.body("upstream.1.response") == b"".join(came)
    assert read.body("client.response") == b"".join(went)
    assert [data for _, data in read.legs["client.response"].pieces] == [piece for piece in went if piece]
    assert (read.upstream, read.path, read.cut) == ("up", "/chat/completions", False)


@given(st.integers(min_value=1, max_value=40), st.binary(max_size=30))
def test_a_secret_is_blanked_out_wherever_it_is_cut(cut: int, before: bytes) -> None:
    """A secret is blanked out wherever it is cut into pieces, and the body keeps its length."""
    secret = b"sk-0123456789abcdef"
    tape = RunTape("run_1", Room(1 << 20), Draws())
    tape.secrets = Secrets([secret])
    leg = tape.answered(tape.asked("up", "/x", None), 200, "text/event-stream")
    body = before + secret + b" and " + secret
    for start in range(0, len(body), cut):
        tape.record(leg, body[start : start + cut])
    read = read_tape(tape.encoded())
    assert secret not in read.body("upstream.1.response")
    assert len(read.body("upstream.1.response")) == len(body)


def test_many_pieces_are_kept_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the largest number of pieces the last ones become one, and no byte is lost."""
    monkeypatch.setattr(taping, "_MAX_PIECES", 10)
    tape = RunTape("run_1", Room(1 << 20), Draws())
    leg = tape.leg("client.response", 0, 200, "text/event-stream")
    for number in range(50):
        tape.record(leg, b"%d " % number)
    read = read_tape(tape.encoded())
    assert len(read.legs["client.response"].pieces) == 10
    assert read.body("client.response") == b"".join(b"%d " % number for number in range(50))


def test_values_are_drawn_again_in_their_order() -> None:
    """A replay takes the old values of each kind in order, then new ones, and none of another type."""
    first = Draws()
    with drawing(first):
        assert [
            replayable("id", lambda: "a"),
            replayable("time", lambda: 1),
            replayable("id", lambda: "b"),
        ] == ["a", 1, "b"]
        with drawing(None):
            assert replayable("id", lambda: "not noted") == "not noted"
    again = Draws({**first.taken, "other": ["text"]})
    with drawing(again):
        assert replayable("time", lambda: 2) == 1
        assert [replayable("id", lambda: "c") for _ in range(3)] == ["a", "b", "c"]
        assert replayable("other", lambda: 7) == 7
    assert replayable("id", lambda: "outside") == "outside"
    assert first.taken == {"id": ["a", "b"], "time": [1]}


async def counted(browser: Browser) -> list[str]:
    """Return the metrics of runs, turns, tokens, tool calls and upstreams."""
    page = await browser.proxy.get("/metrics", bearer(ADMIN))
    assert page.status == 200
    lines = page.body.decode().splitlines()
    return [line for line in lines if line.startswith(_OF_RUNS)]


async def test_a_replay_looks_like_nobodys_request() -> None:
    """A replay adds no request to the log or the metrics, but the log says that content was read."""
    sink = io.StringIO()
    with logged_to(sink, level="debug"):
        async with ui_proxy(store=ALL) as (browser, _):
            await browser.sign_in()
            run_id, _ = await asked(browser)
            before = await counted(browser)
            said = (await browser.send("POST", f"runs/{run_id}/replay", {})).json
            assert said["same"] is True
            assert await counted(browser) == before
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    paths = [line.get("path") for line in lines if line["event"] == "request"]
    assert (paths.count("/v1/chat/completions"), paths.count(f"/ui/api/runs/{run_id}/replay")) == (1, 1)
    assert {line["run_id"] for line in lines if "run_id" in line} == {run_id}
    assert [line["event"] for line in lines if "replay_of" in line] == []
    assert "content_read" in {line["event"] for line in lines}
