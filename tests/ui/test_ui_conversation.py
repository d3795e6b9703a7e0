"""The conversation of a run: one form for all dialects, with what is missing and why a run failed."""

import json
import re
from typing import Any

import orjson
import pytest
from client_keys import bearer, declared
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from store_records import run
from structlog.testing import capture_logs
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, ui_proxy

from proxy.records.rows import MessageRecord
from proxy.store.base import RunDetail
from proxy.ui.error_help import help_with
from proxy.ui.runs.conversation import conversation_of
from proxy.ui.runs.texts import texts_of
from proxy.wires.registry.wires import built_in_wires

KEYS = {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT)}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
PICTURE = "iVBORw0KGgo="
WEATHER = [
    MessageRecord("r", 1, 0, "assistant", "Let me see.", tool_calls=json.dumps([CALL])),
    MessageRecord("r", 1, 1, "tool", '{"seen":true}', tool_call_id="c1"),
    MessageRecord("r", 2, 2, "assistant", "There it is."),
]
REQUESTS: dict[str, Any] = {
    "chat": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                ],
            },
        ]
    },
    "responses": {
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
                ],
            }
        ],
    },
    "anthropic": {
        "max_tokens": 9,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PICTURE},
                    },
                ],
            }
        ],
    },
    "ollama": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look.", "images": [PICTURE]},
        ]
    },
}


def conversation(wire: str, *rows: MessageRecord, request: Any = None) -> dict[str, Any]:
    """Return the conversation of a run with these messages."""
    first = [] if request is None else [MessageRecord("r", 0, 0, "request", content_json=json.dumps(request))]
    detail = RunDetail(run("r", wire=wire), (), [*first, *rows], ())
    return conversation_of(detail, built_in_wires()[wire].codec)


@pytest.mark.parametrize("wire", REQUESTS)
def test_each_dialect_has_the_same_conversation(wire: str) -> None:
    """Instructions, question, picture, call, result and answer have one form, whatever the dialect."""
    shown = conversation(wire, *WEATHER, request={"model": "m", **REQUESTS[wire]})
    assert [part["text"] for one in shown["system"] for part in one["parts"]] == ["Be brief."]
    question, first, second = shown["messages"]
    assert question["role"] == "user"
    kinds = {part["kind"]: part for part in question["parts"]}
    assert kinds["text"]["text"] == "Look."
    assert (kinds["image"]["media_type"], kinds["image"]["data"]) == ("image/png", PICTURE)
    text, called = first["parts"]
    assert (first["turn"], text["text"]) == (1, "Let me see.")
    assert (called["kind"], called["name"], called["arguments"]) == ("call", "look", '{"at":1}')
    assert called["result"]["parts"] == [{"kind": "text", "text": '{"seen":true}'}]
    assert (second["turn"], second["parts"][0]["text"]) == (2, "There it is.")
    assert shown["notes"] == []


@pytest.mark.parametrize(
    ("wire", "content"),
    [
        (
            "anthropic",
            [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Yes."}],
        ),
        (
            "responses",
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        ),
        ("ollama", {"thinking": "Hm."}),
    ],
)
def test_reasoning_is_a_part_of_its_own(wire: str, content: Any) -> None:
    """Reasoning that the record has is told apart from the answer."""
    row = MessageRecord("r", 1, 0, "assistant", "Yes.", content_json=json.dumps(content))
    (message,) = conversation(wire, row)["messages"]
    reasoning = next(part for part in message["parts"] if part["kind"] == "reasoning")
    assert reasoning["text"] == "Hm."


def test_what_cannot_be_read_is_shown_as_it_came() -> None:
    """A request of another form, and content of an unknown kind, are shown as JSON, with a note."""
    row = MessageRecord("r", 1, 0, "assistant", "Hi.", content_json='{"type": "novelty", "x": 1}')
    shown = conversation("responses", row, request={"input": 7})
    assert shown["messages"][0]["parts"][0]["value"] == {"input": 7}
    assert "does not have the form" in shown["notes"][0]
    assert any(part["kind"] == "native" for part in shown["messages"][1]["parts"])


async def asked(browser: Browser) -> str:
    """Ask the question with the client's key, and return the run's id."""
    answer = await browser.proxy.ask(QUESTION, bearer(CLIENT))
    return answer.header("x-toolrelay-run") or ""


@pytest.mark.parametrize("content", ["all", "tools", "none"])
async def test_the_page_says_what_was_not_kept(content: str) -> None:
    """Calls are shown whatever is kept, from their rows if need be; a note names the setting to keep more."""
    async with ui_proxy(store={"content": content}) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        await browser.proxy.run_reaches("completed")
        with capture_logs() as logs:
            shown = (await browser.get(f"runs/{run_id}/conversation")).json
        read = [line for line in logs if line["event"] == "content_read"]
        assert len(read) == (0 if content == "none" else 1)
        calls = [part for one in shown["messages"] for part in one["parts"] if part["kind"] == "call"]
        (row,) = (await browser.get(f"runs/{run_id}")).json["invocations"]
        assert [one["invocation"] for one in calls] == [row["id"]]
        texts = [part["text"] for one in shown["messages"] for part in one["parts"] if part["kind"] == "text"]
        known = {"all": ["What time is it?", "It is noon."], "tools": ["It is noon."], "none": []}
        assert texts == known[content]
        assert [("store.content" in note) for note in shown["notes"]] == [True] * (content != "all")


@pytest.mark.parametrize("content", ["tools", "none"])
async def test_a_refusal_is_kept_in_the_upstreams_words(content: str) -> None:
    """The message with which an upstream refused a request is content: kept as store.content says."""
    refusal = {"error": {"message": "The model `m` does not exist", "type": "x", "code": "y"}}
    steps = whole(json.dumps(refusal).encode(), content_type="application/json", status="404 Not Found")
    async with (
        RawUpstream(steps) as upstream,
        running(make_config(upstream.url, keys=KEYS, store={"content": content})) as proxy,
    ):
        browser = await Browser(proxy).sign_in()
        run_id = await asked(browser)
        await proxy.run_reaches("failed")
        shown = (await browser.get(f"runs/{run_id}/conversation")).json
        assert shown["failure"] == (None if content == "none" else "The model `m` does not exist")
        detail = (await browser.get(f"runs/{run_id}")).json
        assert detail["errors"]["http_404"]["when"] == "The upstream answered with HTTP status 404."


async def test_a_failure_within_a_run_is_kept_too() -> None:
    """If a later turn fails, the record has the message that the client was told."""
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        refusal = {"error": {"message": "no credit left", "type": "x", "code": "insufficient_quota"}}
        steps = whole(
            json.dumps(refusal).encode(), content_type="application/json", status="402 Payment Required"
        )
        upstream.scripts = (upstream.scripts[0], steps)
        run_id = await asked(browser)
        await browser.proxy.run_reaches("failed")
        shown = (await browser.get(f"runs/{run_id}/conversation")).json
        assert "no credit left" in shown["failure"]


def test_each_error_has_a_page() -> None:
    """Codes of the proxy lead to their own page, those of tools and upstreams to the page of all."""
    known = help_with(["model_not_found", "timeout", "http_429", "never_heard", None])
    assert known["model_not_found"]["page"] == "/docs/errors/model_not_found"
    assert {known[code]["page"] for code in ("timeout", "http_429", "never_heard")} == {"/docs/errors"}
    assert "timeout_s" in known["timeout"]["remedy"]
    assert list(known) == ["model_not_found", "timeout", "http_429", "never_heard"]


_WORDS = """messages input role user assistant content type text tool_calls function custom name arguments id
call_id tool_use tool_result input_text image_url url source data media_type thinking images summary
annotations function_call function_call_output output tools system instructions citations
url_citation title"""
_NAMES = st.sampled_from(re.split(r"\s", _WORDS)) | st.text(max_size=4)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_ODD = _JSON.map(json.dumps) | st.text(max_size=20)
_ROWS = st.builds(
    MessageRecord,
    st.just("r"),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from(["request", "assistant", "tool", "function", "program", "output", "error", "other"]),
    content=st.none() | st.text(max_size=20),
    content_json=st.none() | _ODD,
    tool_calls=st.none() | _ODD,
    function_call=st.none() | _ODD,
    tool_call_id=st.none() | st.text(max_size=4),
)


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic", "ollama"])
@given(rows=st.lists(_ROWS, max_size=4))
def test_no_recorded_shape_fails(wire: str, rows: list[MessageRecord]) -> None:
    """Whatever stands in the record, the conversation and its line in the list are JSON."""
    codec = built_in_wires()[wire].codec
    shown = conversation_of(RunDetail(run("r"), [], rows, []), codec)
    assert orjson.loads(orjson.dumps(shown))["object"] == "ui.conversation"
    assert set(texts_of(rows, codec)) == {"question", "answer"}


@pytest.mark.parametrize("calls", ["7", '"text"', '{"id":"c"}', '[{"function":"look"}]', '[[{"id":1}]]', "{"])
def test_what_is_no_call_is_shown_as_it_is(calls: str) -> None:
    """A recorded value in the place of calls that has not their form does not hide the text of its turn."""
    rows = [MessageRecord("r", 1, 0, "assistant", "Hello.", tool_calls=calls)]
    shown = conversation_of(RunDetail(run("r"), [], rows, []), None)
    assert [part["kind"] for part in shown["messages"][0]["parts"]] == ["text", "native"]
