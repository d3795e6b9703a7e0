"""Tokens and cost of requests, passed through or with tools: how the proxy counts and records them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import responses_script
from chat_script import DONE, call, chunk_of, content, finish, reply, role, stream, usage
from client_keys import ALICE, bearer, declared
from limits import parse
from metrics_page import scrape, value
from raw_upstream import FIN, HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, chunked, event, head, whole
from running_proxy import Proxy, make_config, running

from proxy.rights.limit_rules import KeyLimits
from proxy.store.base import UsageFilter

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
INPUT: dict[str, Any] = {"model": "m", "input": "hi"}
PRICE = {"input": 1.0, "output": 10.0}
PRICES = {"m": PRICE}
LIMITED = {"tokens": ["100/hour"]}
USED = {"input_tokens": 60, "output_tokens": 40, "total_tokens": 100}
MESSAGE = responses_script.message("Hi")
TIME = "core__get_current_time"
ARGUMENTS = '{"timezone":"UTC"}'


def reported(prompt: int, completion: int) -> list[Step]:
    """A stream as OpenAI sends it if the request asks for usage."""
    pieces = [role(usage=None), content("Hi", usage=None), finish(usage=None), usage(prompt, completion)]
    return stream(*pieces)


UNASKED = role() + content("Hi") + finish() + DONE


class AccessMiddleware:
    """A proxy before an upstream, as a context manager."""

    def __init__(self, *scripts: Sequence[Step], **config: Any) -> None:
        self._upstream = RawUpstream(*scripts)
        self._config = config

    async def __aenter__(self) -> tuple[Proxy, RawUpstream]:
        upstream = await self._upstream.__aenter__()
        self._running = running(make_config(upstream.url, **self._config))
        return await self._running.__aenter__(), upstream

    async def __aexit__(self, *error: Any) -> None:
        await self._running.__aexit__(*error)
        await self._upstream.__aexit__(*error)


def asked(upstream: RawUpstream, position: int = -1) -> dict[str, Any]:
    """The body of a request that the upstream got."""
    body: dict[str, Any] = json.loads(upstream.requests[position].body)
    return body


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_usage_that_only_we_asked_for_does_not_show(allow: tuple[str, ...]) -> None:
    """Rule W2: under a token limit the proxy asks the upstream for usage and hides it from the client."""
    async with AccessMiddleware(reported(60, 40), allow=allow, limits=LIMITED) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": True})
        assert answer.body == UNASKED
        assert asked(upstream)["stream_options"] == {"include_usage": True}
        assert answer.header("x-ratelimit-remaining-tokens") == "100"
        refused = await proxy.ask({**ASK, "stream": True})
        assert refused.status == 429
        assert "tokens: 100 per hour" in refused.error["message"]
        assert refused.header("x-ratelimit-remaining-tokens") == "0"


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_usage_that_the_client_asked_for_stays(allow: tuple[str, ...]) -> None:
    """Rule W2: a client that asks for usage gets the upstream's bytes, and the limit counts them, too."""
    async with AccessMiddleware(reported(60, 40), allow=allow, limits=LIMITED) as (proxy, upstream):
        body = {**ASK, "stream": True, "stream_options": {"include_usage": True, "x": 1}}
        answer = await proxy.ask(body)
        steps = role(usage=None), content("Hi", usage=None), finish(usage=None), usage(60, 40), DONE
        assert answer.body == b"".join(steps)
        assert asked(upstream)["stream_options"] == {"include_usage": True, "x": 1}
        assert (await proxy.ask(body)).status == 429


@pytest.mark.parametrize("label", ["Content-Type: application/json", "Content-Type: text/plain", "X-None: 1"])
@pytest.mark.parametrize("cut", [1, 10_000])
@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_a_stream_under_another_label_counts(allow: tuple[str, ...], label: str, cut: int) -> None:
    """Rule W2: the proxy counts a stream with another content type like any other, and hides its usage."""
    data = b"".join([role(usage=None), content("Hi", usage=None), finish(usage=None), usage(60, 40)]) + DONE
    pieces = [chunk(data[at : at + cut]) for at in range(0, len(data), cut)]
    script: list[Step] = [head(label, "Transfer-Encoding: chunked"), *pieces, LAST_CHUNK, KEEP]
    async with AccessMiddleware(script, allow=allow, limits=LIMITED) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": True})
        assert (answer.status, answer.body, answer.clean) == (200, UNASKED, True)
        assert (await proxy.ask({**ASK, "stream": True})).status == 429


async def test_a_body_that_breaks_before_it_says_what_it_is() -> None:
    """If a body breaks off before the proxy knows whether it is a stream, the client gets a 502."""
    script = [head("Content-Type: text/plain", "Transfer-Encoding: chunked"), chunk(b"da")]
    async with AccessMiddleware(script, allow=(), limits=LIMITED) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": True})
        assert (answer.status, answer.error["code"]) == (502, "upstream_broken")


async def test_without_such_a_limit_nothing_is_asked_and_nothing_read() -> None:
    """Rule W1: without a limit of tokens or cost, the proxy sends a body upstream unchanged."""
    async with AccessMiddleware(stream(role(), finish()), allow=(), prices=PRICES) as (proxy, upstream):
        raw = json.dumps({**ASK, "stream": True}, indent=3).encode()
        assert (await proxy.ask(raw)).body == role() + finish() + DONE
        assert upstream.requests[0].body == raw


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_an_upstream_that_is_always_asked_for_usage(allow: tuple[str, ...]) -> None:
    """Rule W2: with ``force_usage`` the metrics have a stream's usage, and the client does not see it."""
    async with RawUpstream(reported(60, 40)) as upstream:
        served = {"base_url": upstream.url, "force_usage": True}
        async with running(make_config(served, allow=allow)) as proxy:
            answer = await proxy.ask({**ASK, "stream": True})
            assert answer.body == UNASKED
            assert asked(upstream)["stream_options"] == {"include_usage": True}
            page = (await proxy.get("/metrics")).body.decode()
    tokens = [line for line in page.splitlines() if line.startswith("gen_ai_client_token_usage_sum")]
    assert sorted(float(line.split()[-1]) for line in tokens) == [40, 60]


@pytest.mark.accepts("chat-required", why="only the options matter")
async def test_other_options_of_the_client_stay() -> None:
    """The proxy adds only include_usage to the client's stream_options, and keeps its other fields."""
    async with AccessMiddleware(reported(1, 1), allow=(), limits=LIMITED) as (proxy, upstream):
        raw = b'{"model":"m", "seed": 1.0e3, "stream":true,"stream_options":{"include_obfuscation":false}}'
        await proxy.ask(raw)
        assert upstream.requests[0].body.startswith(b'{"model":"m","seed":1.0e3,"stream":true')
        assert asked(upstream)["stream_options"] == {"include_obfuscation": False, "include_usage": True}


EMBEDDED = {"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 100, "total_tokens": 100}}
LEGACY = {
    "choices": [{"text": "x"}],
    "usage": {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100},
}
IMAGES = json.dumps({"usage": USED, "data": [{"b64_json": "x" * (2 << 20)}]}).encode()
PASSED: list[Any] = [
    ("/v1/chat/completions", ASK, reply("Hi", used=(60, 40))),
    ("/v1/completions", {"model": "m", "prompt": "x"}, whole(json.dumps(LEGACY).encode())),
    ("/v1/embeddings", {"model": "m", "input": "x"}, whole(json.dumps(EMBEDDED).encode())),
    ("/v1/responses", INPUT, responses_script.reply(MESSAGE, usage=USED)),
    ("/v1/responses", {**INPUT, "stream": True}, responses_script.stream(MESSAGE, usage=USED)),
    ("/v1/responses/compact", INPUT, whole(json.dumps({"output": [], "usage": USED}).encode())),
    ("/v1/images/generations", {"model": "m", "prompt": "x"}, whole(json.dumps({"usage": USED}).encode())),
    ("/v1/images/generations", {"model": "m", "prompt": "x"}, whole(IMAGES)),
    (
        "/v1/images/generations",
        {"model": "m", "prompt": "x", "stream": True},
        chunked(event(json.dumps({"type": "image_generation.completed", "usage": USED}))),
    ),
    (
        "/v1/audio/speech",
        {"model": "m", "input": "x", "stream_format": "sse"},
        chunked(event(json.dumps({"type": "speech.audio.done", "usage": USED}))),
    ),
    (
        "/v1/completions",
        {"model": "m", "prompt": "x", "stream": True},
        chunked(event(json.dumps({"choices": [], "usage": LEGACY["usage"]})), DONE),
    ),
]


@pytest.mark.parametrize(("path", "body", "script"), PASSED, ids=range(len(PASSED)))
async def test_what_passes_through_counts(path: str, body: Any, script: list[Step]) -> None:
    """Every path whose answers report tokens counts them, streamed or not, in both dialects."""
    async with AccessMiddleware(script, allow=(), limits=LIMITED) as (proxy, upstream):
        first = await proxy.ask(body, path=path)
        assert first.status == 200
        assert first.header("x-ratelimit-remaining-tokens") == "100"
        assert upstream.requests[0].header("accept-encoding") in (None, "identity")
        assert asked(upstream).items() >= body.items()
        assert (await proxy.ask(body, path=path)).status == 429


@pytest.mark.parametrize(("path", "body", "script"), PASSED, ids=range(len(PASSED)))
async def test_what_passes_through_costs(path: str, body: Any, script: list[Step]) -> None:
    """A limit of cost counts each answer by the price of its model, and refuses a model without a price."""
    limits = {"cost": ["0.000001/hour"]}
    async with AccessMiddleware(script, allow=(), limits=limits, prices=PRICES) as (proxy, upstream):
        unpriced = await proxy.ask({**body, "model": "other"}, path=path)
        assert (unpriced.status, unpriced.error["code"]) == (400, "model_not_priced")
        assert upstream.requests == []
        assert (await proxy.ask(body, path=path)).status == 200
        refused = await proxy.ask(body, path=path)
        assert refused.status == 429
        assert "limits.cost" in refused.error["message"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_forms_count_the_tokens_that_their_answers_report(streamed: bool) -> None:
    """A transcription counts the tokens that its answer reports, as an object or in its last event."""
    said = json.dumps({"type": "transcript.text.done", "text": "x", "usage": USED})
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Authorization": "Bearer unused"}
    script = chunked(event(said)) if streamed else whole(said.encode())
    async with AccessMiddleware(script, allow=(), limits=LIMITED) as (proxy, upstream):
        for status in (200, 429):
            answer = await proxy.ask(form, headers, path="/v1/audio/transcriptions")
            assert answer.status == status
        assert upstream.requests[0].body == form


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/moderations"])
async def test_what_costs_nothing_is_not_counted(path: str) -> None:
    """Counting the tokens of an input and moderating it are free, and the proxy does not estimate them."""
    limits = {"tokens": ["1/hour"], "cost": ["0.000001/hour"]}
    script = whole(b'{"input_tokens": 5000}')
    async with AccessMiddleware(script, allow=(), limits=limits, prices=PRICES) as (proxy, _):
        body = {"model": "unpriced", "input": "x" * 4000}
        assert [(await proxy.ask(body, path=path)).status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses/input_tokens"])
async def test_what_is_about_a_response_goes_where_its_model_is(path: str) -> None:
    """Requests to compact or count go to the upstream of the model, under its name there, else unchanged."""
    async with RawUpstream(whole(b"{}")) as one, RawUpstream(whole(b"{}")) as two:
        upstreams: list[dict[str, Any]] = [
            {"base_url": one.url, "models": ["a"]},
            {"base_url": two.url, "models": {"b": "big"}},
        ]
        async with running(make_config(*upstreams)) as proxy:
            raw = b'{"seed": 1.0e3,  "model":"a"}'
            assert (await proxy.ask(raw, path=path)).status == 200
            assert (await proxy.ask({"model": "b"}, path=path)).status == 200
    assert [request.body for request in one.requests] == [raw]
    assert [asked(two)] == [{"model": "big"}]


async def test_counting_an_input_needs_no_model() -> None:
    """A request to count tokens may leave out the model; then the first upstream answers."""
    async with RawUpstream(whole(b"{}")) as one, RawUpstream(whole(b"{}")) as two:
        upstreams = [{"base_url": one.url, "models": ["a"]}, {"base_url": two.url, "models": ["b"]}]
        async with running(make_config(*upstreams)) as proxy:
            for body in ({"input": "hi"}, {"input": "hi", "model": None}):
                answer = await proxy.ask(body, path="/v1/responses/input_tokens")
                assert answer.status == 200
            assert (await proxy.ask({"input": "hi"}, path="/v1/responses/compact")).status == 400
    assert (len(one.requests), len(two.requests)) == (2, 0)


@pytest.mark.parametrize(
    "path",
    ["/v1/images/generations", "/v1/images/edits", "/v1/audio/speech", "/v1/moderations", "/v1/rerank"],
)
@pytest.mark.parametrize("limits", [{}, {"tokens": ["1000000/hour"]}], ids=["free", "limited"])
@pytest.mark.parametrize(
    ("named", "answers"),
    [({"model": "b"}, "two"), ({"model": "a"}, "one"), ({"model": "other"}, "one"), ({}, "one")],
    ids=str,
)
async def test_the_model_of_an_image_or_a_speech_chooses_the_upstream(
    path: str, limits: Any, named: Any, answers: str
) -> None:
    """Bodies go unchanged to the upstream of their model, or to the first one, with and without a limit."""
    raw = json.dumps({"seed": 1.0e3, "input": "hi", **named}, indent=1).encode()
    async with RawUpstream(whole(b"{}")) as one, RawUpstream(whole(b"{}")) as two:
        upstreams = [{"base_url": one.url, "models": ["a"]}, {"base_url": two.url, "models": ["b"]}]
        async with running(make_config(*upstreams, limits=limits)) as proxy:
            assert (await proxy.ask(raw, path=path)).status == 200
    got = {"one": one.requests, "two": two.requests}
    assert [request.body for request in got.pop(answers)] == [raw]
    assert list(got.values()) == [[]]


async def test_an_image_is_asked_for_by_the_upstreams_own_name() -> None:
    """An upstream gets its own name of an image's model. If it fails, the next one is asked."""
    broken = whole(b"{}", status="503 Busy")
    async with RawUpstream(broken) as one, RawUpstream(whole(b"{}")) as two:
        upstreams = [
            {"base_url": one.url, "models": {"pictures": "gpt-image-1"}},
            {"base_url": two.url, "models": {"pictures": "flux"}},
        ]
        async with running(make_config(*upstreams)) as proxy:
            answer = await proxy.ask({"model": "pictures", "prompt": "x"}, path="/v1/images/generations")
            assert answer.status == 200
    assert [asked(one)["model"], asked(two)["model"]] == ["gpt-image-1", "flux"]


@pytest.mark.parametrize(("model", "status"), [("b", 200), ("unserved", 404), ("a", 404), (None, 400)])
async def test_a_key_reaches_images_of_its_models_only(model: str | None, status: int) -> None:
    """If a key is limited to models, no other upstream gets an image's body in place of the model's."""
    keys = {"alice": declared(ALICE, models=("b", "unserved"))}
    async with RawUpstream(whole(b"{}")) as one, RawUpstream(whole(b"{}")) as two:
        upstreams = [{"base_url": one.url, "models": ["a"]}, {"base_url": two.url, "models": ["b"]}]
        async with running(make_config(*upstreams, keys=keys)) as proxy:
            body = {"prompt": "x"} if model is None else {"prompt": "x", "model": model}
            answer = await proxy.ask(body, bearer(ALICE), path="/v1/images/generations")
    assert answer.status == status
    assert (len(one.requests), len(two.requests)) == (0, status == 200)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/chatcmpl-1", "/v1/responses/resp_1/cancel", "/v1/batches/batch_1/cancel"]
)
async def test_what_was_answered_before_is_not_counted_again(path: str) -> None:
    """A stored answer that is changed or cancelled has been counted before, and is not counted again."""
    script = whole(json.dumps({"usage": USED}).encode())
    async with AccessMiddleware(script, allow=(), limits=LIMITED) as (proxy, _):
        for _ in range(3):
            answer = await proxy.ask({"metadata": {"a": "b"}}, path=path)
            assert (answer.status, answer.header("x-ratelimit-remaining-tokens")) == (200, "100")


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
@pytest.mark.parametrize("field", ["Include_Usage", "include_u\u017fage"])
async def test_no_other_spelling_takes_usage_away(allow: tuple[str, ...], field: str) -> None:
    """The proxy refuses a field that a reader in Go takes for include_usage, since usage could be missing."""
    async with AccessMiddleware(reported(60, 40), allow=allow, limits=LIMITED) as (proxy, upstream):
        options = {"include_usage": True, field: False}
        answer = await proxy.ask({**ASK, "stream": True, "stream_options": options})
        assert (answer.status, answer.error["param"]) == (400, field)
        assert upstream.requests == []


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_every_turn_of_a_run_counts(wire: str, streamed: bool) -> None:
    """A run with a tool counts both of its turns, on record and against the limits."""
    first: list[Step]
    second: list[Step]
    if wire == "chat":
        path, body = "/v1/chat/completions", ASK
        if streamed:
            first = stream(role(), call("c1", TIME, ARGUMENTS), finish("tool_calls"), usage(30, 10))
            second = reported(50, 10)
        else:
            first = reply(None, ("c1", TIME, ARGUMENTS), used=(30, 10))
            second = reply("Noon", used=(50, 10))
    else:
        path, body = "/v1/responses", INPUT
        answer = responses_script.stream if streamed else responses_script.reply
        one = {"input_tokens": 30, "output_tokens": 10, "total_tokens": 40}
        two = {"input_tokens": 50, "output_tokens": 10, "total_tokens": 60}
        first = answer(responses_script.function_call("c1", TIME, ARGUMENTS), usage=one)
        second = answer(MESSAGE, id="resp_2", usage=two)
    limits = {"tokens": ["100/hour"], "cost": ["1/hour"]}
    async with AccessMiddleware(first, second, limits=limits, prices=PRICES) as (proxy, upstream):
        assert (await proxy.ask({**body, "stream": streamed}, path=path)).status == 200
        assert len(upstream.requests) == 2
        assert "tokens: 100 per hour" in (await proxy.ask(body, path=path)).error["message"]
        detail = await proxy.only_run()
        assert (detail.run.status, detail.run.total_tokens) == ("completed", 100)
        assert detail.run.cost == 80 * 1000 + 20 * 10_000
        assert [turn.cost for turn in detail.turns] == [130_000, 150_000]
        (row,) = await proxy.services.store.usage(UsageFilter())
        assert row.cost == 280_000


@pytest.mark.parametrize("comes", [True, False], ids=["answered", "refused"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_retries_count_as_what_they_used(comes: bool, streamed: bool) -> None:
    """A turn with retries counts as one turn of one request; a refused attempt counts as no tokens."""
    first = reply(None, ("c1", TIME, ARGUMENTS), used=(30, 10))
    second = reply("Noon", used=(50, 10))
    if streamed:
        first = stream(role(), call("c1", TIME, ARGUMENTS), finish("tool_calls"), usage(30, 10))
        second = reported(50, 10)
    refusal = b'{"error":{"message":"no"},"usage":{"prompt_tokens":500,"total_tokens":500}}'
    slow = whole(refusal, "Retry-After-Ms: 1", status="429 Slow")
    down = whole(refusal, "Retry-After-Ms: 1", status="503 Down")
    scripts = [first, slow, down, second if comes else slow]
    used, known = (100, {"429": 1, "503": 1, "200": 2}) if comes else (40, {"429": 2, "503": 1, "200": 1})
    limits = {"requests": ["2/hour"], "tokens": [f"{used}/hour"], "cost": ["1/hour"]}
    async with AccessMiddleware(*scripts, limits=limits, prices=PRICES) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": streamed})
        assert answer.status == (200 if comes or streamed else 429)
        assert len(upstream.requests) == 4
        detail = await proxy.only_run()
        assert (detail.run.status, detail.run.total_tokens) == ("completed" if comes else "failed", used)
        assert detail.run.cost == (280_000 if comes else 130_000)
        assert [turn.total_tokens for turn in detail.turns] == ([40, 60] if comes else [40, None])
        seen = await scrape(proxy)
        refused = await proxy.ask(ASK)
        assert f"tokens: {used} per hour" in refused.error["message"]
        assert refused.header("x-ratelimit-remaining-requests") == "1"
    for status in ("200", "429", "503"):
        tries = value(seen, "toolrelay_upstream_requests_total", upstream="default", status=status)
        assert tries == known[status]
    tokens = [n for (name, _), n in seen.items() if name == "gen_ai_client_token_usage_sum"]
    assert sum(tokens) == used


async def test_cost_is_limited_in_the_currency_of_the_prices() -> None:
    """A request below the limit of cost is accepted and may exceed it; the next one is refused."""
    script = reply("Hi", used=(30_000, 1000))
    async with AccessMiddleware(script, allow=(), limits={"cost": ["0.05/hour"]}, prices=PRICES) as (
        proxy,
        _,
    ):
        assert [(await proxy.ask(ASK)).status for _ in range(2)] == [200, 200]
        refused = await proxy.ask(ASK)
        assert refused.status == 429
        assert "cost: 0.05 per hour (limits.cost)" in refused.error["message"]
        assert refused.header("x-ratelimit-limit-tokens") is None


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_a_model_without_a_price_is_not_free(allow: tuple[str, ...]) -> None:
    """Rule E1: under a limit of cost, the proxy refuses a model without a price and names the field."""
    async with AccessMiddleware(reply("Hi"), allow=allow, limits={"cost": ["1/hour"]}, prices=PRICES) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask({**ASK, "model": "other"})
        assert answer.status == 400
        assert (answer.error["param"], answer.error["code"]) == ("model", "model_not_priced")
        assert upstream.requests == []


async def test_an_answer_that_comes_later_cannot_be_counted() -> None:
    """Rule E1: under a token limit the proxy refuses a background response of the upstream, because it would
    never see its usage."""
    async with AccessMiddleware(responses_script.reply(), allow=(), limits=LIMITED) as (proxy, upstream):
        answer = await proxy.ask({**INPUT, "background": True}, path="/v1/responses")
        assert (answer.status, answer.error["param"]) == (400, "background")
        assert upstream.requests == []


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
@pytest.mark.parametrize("odd", [{"stream": 1}, {"stream": "true"}, {"background": 1}])
async def test_what_an_upstream_may_take_for_true_is_refused(
    allow: tuple[str, ...], odd: dict[str, Any]
) -> None:
    """Rule E1: under a limit the proxy refuses a value that only the upstream may take for true."""
    async with AccessMiddleware(reply("Hi"), allow=allow, limits=LIMITED) as (proxy, upstream):
        answer = await proxy.ask({**ASK, **odd})
        assert (answer.status, answer.error["param"]) == (400, next(iter(odd)))
        assert upstream.requests == []


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "responses"])
@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
@pytest.mark.parametrize("odd", [{"Model": "dear"}, {"STREAM": True}])
async def test_a_second_reader_cannot_be_told_otherwise(
    allow: tuple[str, ...], path: str, odd: dict[str, Any]
) -> None:
    """Rule E1: the proxy refuses a second spelling of a field, since an upstream may ignore the case."""
    async with AccessMiddleware(reply("Hi"), allow=allow, limits={"cost": ["1/hour"]}, prices=PRICES) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask({**ASK, "input": "x", "prompt": None, **odd}, path=f"/v1/{path}")
        assert (answer.status, answer.error["param"]) == (400, next(iter(odd)))
        assert upstream.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/generate", "/v1/engines/m/completions"])
async def test_tokens_count_on_whatever_path_they_are_reported(path: str) -> None:
    """Usage in an answer counts against the limit, also on a path that the proxy does not know."""
    async with AccessMiddleware(whole(json.dumps({"usage": USED}).encode()), allow=(), limits=LIMITED) as (
        proxy,
        _,
    ):
        assert [(await proxy.ask(ASK, path=path)).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("field", ["models", "fallbacks"])
async def test_under_a_limit_of_cost_one_model_answers(field: str) -> None:
    """Rule E1: under a limit of cost the proxy refuses fallback models, since it knows no price for them."""
    model = next(iter(PRICES))
    async with AccessMiddleware(reply("Hi"), reply("Hi"), limits={"cost": ["1/hour"]}, prices=PRICES) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask({**ASK, "model": model, field: ["dear"]})
        assert (answer.status, answer.error["param"]) == (400, field)
        assert upstream.requests == []
        assert (await proxy.ask({**ASK, "model": model})).status == 200


async def test_a_renamed_model_has_the_price_of_either_name() -> None:
    """The price of a renamed model is that of the client's name, or else that of the upstream's."""
    for prices, cost in (({"big": PRICE}, 20_000), ({"fast": {"input": 3.0}, "big": PRICE}, 3000 * 10)):
        async with (
            RawUpstream(reply("Hi", used=(10, 1))) as upstream,
            running(
                make_config({"base_url": upstream.url, "models": {"fast": "big"}}, prices=prices)
            ) as proxy,
        ):
            assert (await proxy.ask({**ASK, "model": "fast"})).status == 200
            assert (await proxy.only_run()).run.cost == cost


async def test_a_model_without_a_price_has_no_cost() -> None:
    """A model without a price has no cost, neither on the run nor in the usage report."""
    async with AccessMiddleware(reply("Hi", used=(10, 1)), prices={"other": PRICE}) as (proxy, _):
        await proxy.ask(ASK)
        assert (await proxy.only_run()).run.cost is None
        (row,) = await proxy.services.store.usage(UsageFilter(by=("model",)))
        assert (row.cost, row.total_tokens) == (None, 11)


async def test_a_spent_budget_of_cost_ends_in_an_answer() -> None:
    """Rule T7: above tools.max_cost no more calls run, and the model is asked for a last answer."""
    turn = stream(role(), call("c1", TIME, ARGUMENTS), finish("tool_calls"), usage(1000, 100))
    last = reported(10, 5)
    tools = {"max_cost": 0.002}
    async with AccessMiddleware(turn, last, tools=tools, prices=PRICES) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": True})
        assert b"Hi" in answer.body
        assert b'"usage"' not in answer.body
        assert asked(upstream)["tool_choice"] == "none"
        assert "budget_exhausted" in str(asked(upstream)["messages"])
        assert (await proxy.only_run()).run.tool_calls == 0


async def test_a_run_that_fails_costs_what_is_known() -> None:
    """If a stream breaks after it reported usage, the usage counts, on record and against the limit."""
    broken: list[Step] = chunked(role(), content("Hi"), usage(60, 40))[:-2]
    async with AccessMiddleware(broken, limits=LIMITED, prices=PRICES) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": True})
        assert b"upstream_broken" in answer.body
        detail = await proxy.run_reaches("failed")
        assert (detail.run.total_tokens, detail.run.cost) == (100, 60_000 + 400_000)
        assert detail.turns[0].cost == detail.run.cost
        assert (await proxy.ask({**ASK, "stream": True})).status == 429


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_a_client_that_leaves_pays_what_is_known(allow: tuple[str, ...]) -> None:
    """Usage that came before the client left counts."""
    steps: list[Step] = [*chunked(role(), content("Hi"), usage(60, 40))[:-2], HANG]
    async with AccessMiddleware(steps, reported(1, 1), allow=allow, limits=LIMITED) as (proxy, upstream):
        body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
        async with proxy.sent(body) as conversation:
            answer = await conversation.head()
            seen = b""
            async for piece in conversation.pieces(answer):
                seen += piece
                if b"total_tokens" in seen:
                    break
            conversation.leave()
        await upstream.all_closed()
        assert (await proxy.ask(body)).status == 429


SILENT = stream(role(), *[content("word ")] * 40, finish())


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
@pytest.mark.parametrize("leaves", [True, False], ids=["its client leaves", "it says nothing of usage"])
async def test_a_turn_without_usage_is_estimated(allow: tuple[str, ...], leaves: bool) -> None:
    """If no usage came, even because the client left, each event counts as a token against the limit."""
    steps: list[Step] = [*SILENT[:-2], HANG] if leaves else [*SILENT[:-1], FIN]
    limits = {"tokens": ["60/hour"]}
    async with AccessMiddleware(steps, reported(1, 1), allow=allow, limits=limits, prices=PRICES) as (
        proxy,
        upstream,
    ):
        body = {**ASK, "stream": True}
        async with proxy.sent(body) as conversation:
            answer = await conversation.head()
            seen = b""
            async for piece in conversation.pieces(answer):
                seen += piece
                if seen.count(b"word") == 40 and leaves:
                    break
            conversation.leave()
        await upstream.all_closed()
        assert (await proxy.ask(body)).status == 429
        if allow:
            detail = await proxy.run_reaches("cancelled" if leaves else "completed")
            assert (detail.run.total_tokens, detail.run.cost) == (0, 0)


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_a_reply_without_usage_is_estimated(allow: tuple[str, ...]) -> None:
    """If an upstream reports no usage, the limit counts an estimate of the request."""
    said = whole(json.dumps({"id": "c", "object": "chat.completion", "choices": []}).encode())
    long = {**ASK, "messages": [{"role": "user", "content": "some words " * 40}]}
    async with AccessMiddleware(said, said, allow=allow, limits=LIMITED) as (proxy, _):
        assert (await proxy.ask(long)).status == 200
        assert (await proxy.ask(long)).status == 429


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_what_was_refused_upstream_is_not_estimated(allow: tuple[str, ...]) -> None:
    """A request that the upstream refused is not estimated."""
    refusal = whole(b'{"error":{"message":"no","code":"bad"}}', status="400 Bad Request")
    long = {**ASK, "messages": [{"role": "user", "content": "some words " * 40}]}
    async with AccessMiddleware(refusal, reported(1, 1), allow=allow, limits=LIMITED) as (proxy, _):
        assert (await proxy.ask(long)).status == 400
        assert (await proxy.ask({**ASK, "stream": True})).status == 200


async def test_tool_calls_are_counted_for_the_address() -> None:
    """The model is told of a call beyond limits.tool_calls, and the run goes on."""
    turn = stream(role(), call("c1", TIME, ARGUMENTS), call("c2", TIME, ARGUMENTS, 1), finish("tool_calls"))
    async with AccessMiddleware(turn, reported(1, 1), limits={"tool_calls": ["1/hour"]}) as (proxy, upstream):
        assert b"Hi" in (await proxy.ask({**ASK, "stream": True})).body
        results = [json.loads(m["content"]) for m in asked(upstream)["messages"] if m["role"] == "tool"]
        assert [result.get("error_code") for result in results].count("rate_limited") == 1


async def test_a_limit_of_one_key_asks_for_usage_for_that_key() -> None:
    """A token limit of one key makes the proxy ask for usage for that key only."""
    from proxy.rights.callers import Caller
    from proxy.server.limits.counters import Counters
    from proxy.server.limits.limiter import RateLimiter

    made = RateLimiter(KeyLimits(), Counters(), on_error="open")
    own = KeyLimits(tokens=(parse("5/hour"),))
    assert (await made.admit(Caller("a", "a", own))).counts_usage
    assert not (await made.admit(Caller("b", "b"))).counts_usage


async def test_usage_inside_a_text_is_text() -> None:
    """Rule W2: a text that looks like usage stays in the answer."""
    text = 'x,"usage":null,"usage":{}'
    script = stream(role(usage=None), chunk_of({"content": text}, usage=None), usage(1, 1))
    async with AccessMiddleware(script, allow=(), limits=LIMITED) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": True})
        assert answer.body == role() + chunk_of({"content": text}) + DONE


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_a_free_upstream_costs_nothing_and_is_no_fault(allow: tuple[str, ...]) -> None:
    """Under a limit of cost the models of a free upstream are answered without a price, and cost 0."""
    async with RawUpstream(reported(60, 40)) as upstream:
        served = {"base_url": upstream.url, "free": True}
        config = make_config(served, allow=allow, prices=PRICES, limits={"cost": ["0.000001/hour"]})
        async with running(config) as proxy:
            for _ in range(3):
                assert (await proxy.ask({**ASK, "model": "own", "stream": True})).status == 200
            await proxy.services.instruments.close_requests()
            (row,) = await proxy.services.store.usage(UsageFilter(by=("model",)))
    assert (row.group, row.requests, row.total_tokens, row.cost) == (("own",), 3, 300, 0)
