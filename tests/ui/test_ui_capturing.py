"""Captures of bytes: only on an order of an administrator, bounded, and aligned afterwards."""

import base64
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from client_keys import bearer, declared
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import RawUpstream
from running_proxy import make_config, running
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, turns, ui_proxy
from waiting import until

from proxy.api.taping import tape as taping
from proxy.api.taping.taping import CAPTURES, Captures, Order
from proxy.server.peers import Peers
from proxy.ui.runs.aligning import aligned
from proxy.upstreams.recorded.fixtures import load_turns

_MINTED = re.compile(rb"chatcmpl-\w+")
"""The id that the proxy gives each composed stream."""


async def asked(browser: Browser, secret: str = CLIENT, **more: Any) -> tuple[str, bytes]:
    """Ask the question, and return the run's id and the answer's bytes."""
    answer = await browser.proxy.ask({**QUESTION, **more}, bearer(secret))
    assert answer.status == 200, answer.body
    return answer.header("x-toolrelay-run") or "", answer.body


def body_of(wire: dict[str, Any], leg: str) -> bytes:
    """Return the bytes of a leg."""
    return b"".join(base64.b64decode(chunk["data"]) for chunk in wire["chunks"] if chunk["leg"] == leg)


async def test_nothing_is_captured_until_somebody_asks() -> None:
    """Without an order no bytes are captured, and the page gets the reason."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        run_id, _ = await asked(browser)
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        assert (wire["captured"], wire["legs"]) == (False, [])
        assert wire["reason"]
        assert (await browser.get(f"runs/{run_id}")).json["wire"] == {"captured": False, "bytes": 0}


async def test_both_sides_of_a_run_are_captured_and_aligned() -> None:
    """A capture has the bytes of client and upstream, aligned in spans; untouched spans are equal."""
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        order = await browser.send("POST", "capture", {"runs": 1, "minutes": 5})
        assert (order.status, order.json["runs_left"]) == (200, 1)
        run_id, answer = await asked(browser)
        second, _ = await asked(browser)
        assert not (await browser.get(f"runs/{second}/wire")).json["captured"]
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        assert wire["captured"]
        assert {leg["id"] for leg in wire["legs"]} == {
            *("client.request", "upstream.1.request", "client.response", "upstream.1.response"),
            *("upstream.2.request", "upstream.2.response"),
        }
        assert body_of(wire, "client.response") == answer
        assert body_of(wire, "upstream.1.request") == upstream.requests[0].body
        assert body_of(wire, "upstream.2.request") == upstream.requests[1].body
        pairs = {tuple(pair["between"]): pair["spans"] for pair in wire["alignment"]}
        kinds = {span["kind"] for span in pairs["client.request", "upstream.1.request"]}
        assert {"untouched", "inserted"} <= kinds
        assert {span["kind"] for span in pairs["upstream.1.response", "client.response"]} & {"withheld"}
        for (left, right), spans in pairs.items():
            a, b = body_of(wire, left), body_of(wire, right)
            for span in spans:
                if span["kind"] == "untouched":
                    assert a[slice(*span["a"])] == b[slice(*span["b"])]
        assert (await browser.get(f"runs/{run_id}")).json["wire"]["captured"]
        (listed,) = (await browser.get("capture")).json["data"]
        assert (listed["runs_left"], listed["by"]) == (0, "boss")
        assert listed["bytes"] > 0


async def test_a_captured_run_is_a_fixture_that_can_be_replayed(tmp_path: Path) -> None:
    """The fixture has both sides byte for byte, and an upstream that replays it gives the same answer."""
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        early, _ = await asked(browser)
        refused = await browser.get(f"runs/{early}/fixture")
        assert (refused.status, refused.error["code"]) == (409, "cannot_save_fixture")
        assert "Capture the next run" in refused.error["message"]
    async with ui_proxy(ui={"capture": "off"}) as (browser, _):
        await browser.sign_in()
        run_id, _ = await asked(browser)
        refused = await browser.get(f"runs/{run_id}/fixture")
        assert 'ui.capture = "off"' in refused.error["message"]
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        await browser.send("POST", "capture", {"runs": 1, "minutes": 5})
        run_id, answer = await asked(browser)
        saved = await browser.get(f"runs/{run_id}/fixture")
        assert (saved.status, saved.header("content-type")) == (200, "application/zip")
        sent = [request.body for request in upstream.requests]
    with zipfile.ZipFile(io.BytesIO(saved.body)) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / run_id
    assert (folder / "client/response.sse").read_bytes() == answer
    assert [(folder / f"turn-{n}/request.json").read_bytes() for n in (1, 2)] == sent
    first, second = load_turns([tmp_path])
    assert (first.status, first.number, second.number) == (200, 1, 2)
    assert b"core__get_current_time" in (first.sse or b"")
    assert sum(size for _, size in second.chunks) == len(second.sse or b"")
    recorded = {"base_url": f"replay:{tmp_path}", "wires": ("chat",)}
    async with running(make_config(recorded, allow=("core__*",))) as proxy:
        replayed = await proxy.ask(QUESTION)
    assert replayed.status == 200
    assert _MINTED.sub(b"", replayed.body) == _MINTED.sub(b"", answer)


async def test_a_capture_is_for_one_key_and_can_be_ended() -> None:
    """A capture for one key captures no run of another key, and no run after its end."""
    tables = {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT)}
    async with ui_proxy(keys=tables) as (browser, _):
        await browser.sign_in()
        order = (await browser.send("POST", "capture", {"key": "webui", "runs": 5, "minutes": 5})).json
        other, _ = await asked(browser, ADMIN)
        mine, _ = await asked(browser)
        assert (await browser.send("DELETE", f"capture/{order['id']}")).status == 204
        later, _ = await asked(browser)
        found = [(await browser.get(f"runs/{one}/wire")).json["captured"] for one in (other, mine, later)]
        assert found == [False, True, False]
        assert (await browser.send("DELETE", "capture/cap_none")).status == 404


async def test_a_capture_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture is bounded in runs, minutes and bytes; a run with more bytes is marked as truncated."""
    monkeypatch.setattr(taping, "MAX_BYTES", 300)
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        for body in ({"runs": 0}, {"runs": 101}, {"minutes": 61}, {"minutes": 0}, {"runs": "x"}, {"a": 1}):
            assert (await browser.send("POST", "capture", body)).status == 400
        await browser.send("POST", "capture", {"runs": 1, "minutes": 1})
        run_id, _ = await asked(browser)
        wire = (await browser.get(f"runs/{run_id}/wire")).json
        assert wire["truncated"]
        assert sum(len(base64.b64decode(chunk["data"])) for chunk in wire["chunks"]) == 300
        assert any(leg["truncated"] for leg in wire["legs"])


@pytest.mark.parametrize(
    "config", [{"ui": {"capture": "off"}}, {"store": {"content": "none"}}], ids=["off", "no content"]
)
async def test_nothing_is_captured_where_content_is_not_kept(config: dict[str, Any]) -> None:
    """The proxy refuses captures if they are turned off, or if the store keeps no content."""
    async with ui_proxy(**config) as (browser, _):
        await browser.sign_in()
        answer = await browser.send("POST", "capture", {"runs": 1})
        assert (answer.status, answer.error["code"]) == (403, "capture_off")
        assert not (await browser.get("session")).json["capture"]["allowed"]


async def test_a_client_that_wants_nothing_kept_is_not_captured() -> None:
    """A request with ``store: false`` uses up no order, and no bytes of it are kept with its run."""
    nothing = {"model": "m", "input": "hi", "store": False}
    async with ui_proxy(store={"content": "all"}) as (browser, _):
        await browser.sign_in()
        order = (await browser.send("POST", "capture", {"runs": 2, "minutes": 5})).json
        answer = await browser.proxy.ask(nothing, bearer(CLIENT), path="/v1/responses")
        run_id = answer.header("x-toolrelay-run") or ""
        assert run_id
        assert not (await browser.get(f"runs/{run_id}/wire")).json["captured"]
        (listed,) = (await browser.get("capture")).json["data"]
        assert (listed["id"], listed["runs_left"]) == (order["id"], 2)


async def test_an_order_ends_with_its_time_and_its_runs() -> None:
    """An order captures its number of runs and no more, and none after its time, even if runs are left."""
    now = [1000.0]
    async with ui_proxy() as (browser, _):
        captures = Captures(browser.proxy.services.store, None, now=lambda: now[0])
        order = Order("cap_1", "", 2, 1060.0, "boss", left=2)
        await captures.ask(order)
        for left in (1, 0):
            assert captures.take("key_a") is order
            assert order.left == left
        assert captures.take("key_a") is None
        assert (order.left, captures.orders) == (0, (order,)), "until its time is over, the page lists it"
        other = Order("cap_2", "", 2, 1120.0, "boss", left=2)
        await captures.ask(other)
        assert captures.take("key_a") is other
        now[0] = 1060.0
        assert captures.live() == [other]
        now[0] = 1120.0
        assert captures.take("key_a") is None
        assert (other.left, captures.orders) == (1, ())


async def test_other_workers_are_told_and_read_the_order(tmp_path: Path) -> None:
    """Another worker on the same store captures once it is told, and the first one can read the bytes."""
    keys = {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT)}
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    told = Peers()
    async with RawUpstream(*turns()) as upstream:
        config = make_config(upstream.url, keys=keys, store=store)
        async with running(config) as one, running(config, peers=told) as two:
            browser = await Browser(one).sign_in()
            order = (await browser.send("POST", "capture", {"runs": 2, "key": "webui"})).json
            other = Browser(two, browser.cookie)
            assert (await other.get("capture")).json["data"] == []
            assert told.own_answer(CAPTURES) == b"{}"

            async def read() -> bool:
                return bool((await other.get("capture")).json["data"])

            await until(read)
            (listed,) = (await other.get("capture")).json["data"]
            assert listed["id"] == order["id"]
            run_id, _ = await asked(other)

            async def there() -> bool:
                return bool((await browser.get(f"runs/{run_id}/wire")).json.get("captured"))

            await until(there)


PIECES = st.lists(st.sampled_from([b"data: a\n\n", b"data: b\n\n", b"data: c\n\n", b": x\n\n"]), max_size=12)


@given(PIECES, PIECES)
def test_spans_cover_each_side_once_and_in_order(a: list[bytes], b: list[bytes]) -> None:
    """Each byte of either side is in one span, and untouched spans are equal on both sides."""
    bodies = {"upstream.1.response": b"".join(a), "client.response": b"".join(b)}
    legs = [{"id": name, "content_type": "text/event-stream"} for name in bodies]
    chunks = [{"leg": name, "data": base64.b64encode(body).decode()} for name, body in bodies.items()]
    (pair,) = aligned(legs, chunks)
    for side, name in (("a", "upstream.1.response"), ("b", "client.response")):
        at = 0
        for span in pair["spans"] if a or side == "a" else ():
            assert span[side][0] == at
            at = span[side][1]
        assert not pair["spans"] or not a or at == len(bodies[name])
    for span in pair["spans"]:
        if span["kind"] == "untouched":
            one, other = (bodies[name][slice(*span[side])] for side, name in zip("ab", bodies, strict=True))
            assert one == other
