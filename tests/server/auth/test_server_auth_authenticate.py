"""Authentication, seen from a raw socket: keys, tokens and modes, and what reaches the upstream."""

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
import responses_script
from client_keys import ALICE, BOB, OK, bearer, declared, key_config, keyed, made
from logged import logged_to
from raw_upstream import RawUpstream, whole
from running_proxy import SERVER_KEY, Answer, make_config, running

from proxy.app.app import create_app
from proxy.base.errors import ConfigError
from proxy.rights.callers import Rights
from proxy.server.auth.authenticate import fixed_mode, may_call
from proxy.server.messages.target import Targets
from proxy.wires.registry.table import SERVED

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
START = "tr_" + "s7" * 21 + "A"
MODELS = whole(b'{"object":"list","data":[{"id":"gpt-4o"},{"id":"gpt-4o-mini"},{"id":"o9"}]}')


def told_apart(answer: Answer) -> tuple[int, dict[str, Any]]:
    """The parts of an answer by which a client could tell two refusals apart."""
    return answer.status, answer.error


# ---------------------------------------------------------------- keys

NO_KEY: list[Sequence[tuple[str, str]]] = [
    [],
    [("Authorization", "")],
    [("Authorization", "Bearer")],
    [("Authorization", "Bearer ")],
    [("Authorization", ALICE)],
    [("Authorization", f"Basic {ALICE}")],
    [("Authorization", f"Bearer {ALICE[:-1]}")],
    [("Authorization", f"Bearer {ALICE}x")],
    [("Authorization", f"Bearer {ALICE.upper()}")],
    [("Authorization", "Bearer tr_" + "A" * 43)],
    [("Authorization", "Bearer trt_config:alice.e30.AAAA")],
    [("Authorization", f"Bearer {'x' * 8000}")],
    [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {ALICE}")],
    [("Authorization", "Bearer nobody"), ("api-key", ALICE)],
    [("Authorization", f"Bearer \xff{ALICE}")],
    [("api-key", "")],
    [("Cookie", f"key={ALICE}")],
    [("x-toolrelay-key", ALICE)],
]


async def test_whoever_has_no_valid_key_gets_one_and_the_same_401() -> None:
    """A missing, malformed, unknown, expired or revoked key gets the same 401, and nothing goes upstream."""
    keys = {"alice": declared(ALICE), "late": declared(BOB, expires=1.0)}
    async with keyed(keys=keys) as (proxy, upstream):
        store = proxy.services.store
        gone = await made(store, "gone")
        await store.revoke_key((await store.read_keys()).keys[0].id)
        rest = [[("Authorization", f"Bearer {secret}")] for secret in (BOB, gone)]
        answers = [await proxy.ask(ASK, headers) for headers in [*NO_KEY, *rest]]
        first = answers[0]
        assert first.status == 401
        assert (first.error["code"], first.error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert "toolrelay keys create" in first.error["message"]
        assert first.header("www-authenticate") == "Bearer"
        assert [told_apart(answer) for answer in answers] == [told_apart(first)] * len(answers)
        assert upstream.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer  {ALICE} "},
        {"api-key": ALICE},
        {"x-api-key": ALICE},
        {"Authorization": f"Bearer {ALICE}", "api-key": "something else"},
    ],
)
async def test_keys_come_as_sdks_send_them(headers: dict[str, str]) -> None:
    """The proxy reads keys from OpenAI's, Azure's and Anthropic's headers and sends none upstream."""
    async with keyed() as (proxy, upstream):
        answer = await proxy.ask(ASK, headers)
        assert answer.status == 200
        (request,) = upstream.requests
        assert request.header("authorization") == f"Bearer {SERVER_KEY}"
        assert ALICE not in str(request.headers)
        assert {"api-key", "x-api-key"}.isdisjoint(request.names())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_key_of_the_store_comes_in_until_it_is_revoked(tmp_path: Any, kind: str) -> None:
    """A key that is made or revoked while the server runs is accepted or refused with the next request."""
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    async with keyed(store={"url": url}) as (proxy, upstream):
        assert (await proxy.ask(ASK, bearer(ALICE))).status == 200
        assert (await proxy.ask(ASK, bearer("nobody"))).status == 401
        store = proxy.services.store
        secret = await made(store)
        assert (await proxy.ask(ASK, bearer(secret))).status == 200
        (key,) = (await store.read_keys()).keys
        await store.revoke_key(key.id)
        assert (await proxy.ask(ASK, bearer(secret))).status == 401
        assert (await proxy.ask(ASK, bearer(ALICE))).status == 200
        assert len(upstream.requests) == 3


async def test_a_connection_is_not_one_callers() -> None:
    """The proxy checks each request's own key, whatever came before it on the connection."""
    async with keyed() as (proxy, upstream), proxy.connect() as conversation:

        async def status(headers: Any, **target: str) -> int:
            conversation.writer.write(proxy.request(ASK, headers, **target))
            return (await conversation.answer()).status

        for headers in NO_KEY:
            assert await status(bearer(ALICE)) == 200
            assert await status(headers) == 401
            assert await status(bearer(ALICE)) == 200
            assert await status(bearer(ALICE), path="/v1/files") == 403
            assert await status(bearer(ALICE), path=f"/v1/tr_{'A' * 43}") == 400
        assert len(upstream.requests) == 2 * len(NO_KEY)


async def test_a_revoked_key_is_out_on_an_open_connection() -> None:
    """The proxy refuses a revoked key, also on a connection on which it has accepted it before."""
    async with keyed() as (proxy, _), proxy.connect() as conversation:
        store = proxy.services.store
        secret = await made(store)

        async def status() -> int:
            conversation.writer.write(proxy.request(ASK, bearer(secret)))
            return (await conversation.answer()).status

        assert [await status(), await status()] == [200, 200]
        await made(store, name="other")  # A new key must not affect the one that is in use.
        assert [await status(), await status()] == [200, 200]
        for key in (await store.read_keys()).keys:
            await store.revoke_key(key.id)
        assert [await status(), await status()] == [401, 401]


async def test_without_a_valid_key_the_door_stays_shut() -> None:
    """If all keys are expired or revoked, the proxy answers 503 and says what to do, until a key is made."""
    async with keyed(keys={"a": declared(ALICE, expires=1.0)}) as (proxy, upstream):
        store, secret = proxy.services.store, "tr_nobody"
        for count in (1, 2):
            # The ring learns of a revocation from a request that has a key.
            for headers in (bearer(secret), bearer(ALICE), bearer(BOB), {}):
                answer = await proxy.ask(ASK, headers)
                assert (answer.status, answer.error["code"]) == (503, "no_client_keys")
                assert "toolrelay keys create" in answer.error["message"]
                assert answer.header("x-should-retry") == "false"
            secret = await made(store)
            assert (await proxy.ask(ASK, bearer(secret))).status == 200
            assert len(upstream.requests) == count
            for key in (await store.read_keys()).keys:
                await store.revoke_key(key.id)


async def test_a_key_in_an_address_is_refused() -> None:
    """A key or token in path or query is a 400, even beside a valid key, and nothing goes upstream."""
    async with keyed() as (proxy, upstream):
        for path in (
            "/v1/chat/completions?api_key=tr_" + "A" * 43,
            "/v1/models/tr_" + "b" * 43,
            "/v1/models?token=trt_key_0123456789abcdef.e30.AA",
        ):
            answer = await proxy.ask(ASK, bearer(ALICE), path=path)
            assert (answer.status, answer.error["code"]) == (400, "key_in_address")
        assert upstream.requests == []


async def test_a_declared_key_in_an_address_is_refused() -> None:
    """A configured key, which has no special form, is a 400 in path or query, too."""
    secret = "q7+Zt/4mXw9=" * 3
    quoted = secret.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    keys = {"alice": declared(ALICE), "own": declared(secret)}
    async with keyed(keys=keys) as (proxy, upstream), proxy.connect() as conversation:

        async def asked(headers: Any, path: str) -> Answer:
            conversation.writer.write(proxy.request(ASK, headers, path=path))
            return await conversation.answer()

        for path in (
            f"/v1/models?key={secret}",
            f"/v1/models?a=b&key={quoted}",
            f"/v1/models?{secret}",
            f"/v1/models/{ALICE}",
            f"/v1/chat/completions?api_key={ALICE}",
        ):
            # Authenticate the connection first: that must not let the address pass.
            assert (await asked(bearer(ALICE), "/v1/chat/completions?beta=" + "y" * 80)).status == 200
            for headers in (bearer(ALICE), {}):
                answer = await asked(headers, path)
                assert (answer.status, answer.error["code"]) == (400, "key_in_address"), path
        assert len(upstream.requests) == 5


@pytest.mark.parametrize("mode", ["open", "forward"])
async def test_a_key_in_an_address_is_refused_where_none_is_asked_for(mode: str) -> None:
    """A key of the proxy in path or query is a 400 also in modes in which clients need none."""
    async with keyed(auth={"mode": mode}) as (proxy, upstream):
        secret = await made(proxy.services.store, admin=True)
        for path in (f"/v1/models?key={ALICE}", f"/v1/models/{ALICE}", f"/v1/models?key={secret}"):
            answer = await proxy.ask(ASK, bearer("sk-of-the-provider"), path=path)
            assert (answer.status, answer.error["code"]) == (400, "key_in_address"), path
        assert upstream.requests == []
        path = "/v1/chat/completions?beta=" + "y" * 80
        assert (await proxy.ask(ASK, bearer("sk-of-the-provider"), path=path)).status == 200


# ---------------------------------------------------------------- paths

INFERENCE = [
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/images/edits",
    "/images/generations",
    "/images/variations",
    "/moderations",
    "/responses",
    "/responses/input_tokens",
]


@pytest.mark.parametrize("path", INFERENCE)
async def test_any_key_may_call_inference(path: str) -> None:
    """Every key may call completions, responses, embeddings, moderations, audio and images."""
    asked = (
        {"messages": [{"role": "user", "content": "x"}]} if path == "/chat/completions" else {"input": "x"}
    )
    async with keyed(allow=()) as (proxy, upstream):
        assert (await proxy.ask({"model": "m", **asked}, bearer(ALICE), path=f"/v1{path}")).status == 200
        assert upstream.requests[0].target == f"/v1{path}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/files"),
        ("POST", "/files"),
        ("GET", "/files/file-1/content"),
        ("POST", "/batches"),
        ("GET", "/conversations/conv_1"),
        ("GET", "/chat/completions"),
        ("GET", "/chat/completions/chatcmpl-1"),
        ("POST", "/fine_tuning/jobs"),
        ("GET", "/vector_stores"),
        ("DELETE", "/models/ft:gpt"),
        ("PUT", "/chat/completions"),
        ("POST", "/chat/completions/"),
        ("POST", "/Chat/Completions"),
        ("POST", "/realtime/client_secrets"),
        ("GET", "/toolrelay/tokens"),
        ("POST", "/responses/resp_1"),
    ],
)
async def test_all_else_needs_endpoints(method: str, path: str) -> None:
    """A path whose data all clients of the provider key share is a 403 that says what to do."""
    async with keyed() as (proxy, upstream):
        answer = await proxy.ask(
            {} if method == "POST" else None, bearer(ALICE), method=method, path=f"/v1{path}"
        )
        assert (answer.status, answer.error["code"]) == (403, "endpoint_not_allowed")
        assert "endpoints" in answer.error["message"]
        assert upstream.requests == []


async def test_endpoints_open_paths_for_one_key() -> None:
    """A key gets the paths that its endpoints name, and another key does not."""
    keys = {"alice": declared(ALICE, endpoints=("/v1/files*", "/batches/?")), "bob": declared(BOB)}
    async with keyed(keys=keys) as (proxy, upstream):
        for path in ("/v1/files", "/v1/files/file-1/content", "/v1/batches/7"):
            assert (await proxy.ask(None, bearer(ALICE), method="GET", path=path)).status == 200
            assert (await proxy.ask(None, bearer(BOB), method="GET", path=path)).status == 403
        assert (await proxy.get("/v1/batches/77", bearer(ALICE))).status == 403
        assert len(upstream.requests) == 3


# ---------------------------------------------------------------- models and upstreams

LIMITED = {"alice": declared(ALICE, models=("gpt-4o*",)), "bob": declared(BOB)}


async def test_models_of_a_key() -> None:
    """For a key with a list of models any other model is a 404, and a request without a model a 400."""
    async with keyed(OK, keys=LIMITED) as (proxy, upstream):
        assert (await proxy.ask({**ASK, "model": "gpt-4o-mini"}, bearer(ALICE))).status == 200
        answer = await proxy.ask({**ASK, "model": "o9"}, bearer(ALICE))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        answer = await proxy.ask({"messages": []}, bearer(ALICE))
        assert (answer.status, answer.error["param"]) == (400, "model")
        assert (await proxy.ask({**ASK, "model": "o9"}, bearer(BOB))).status == 200
        assert len(upstream.requests) == 2


async def test_the_list_of_models_is_the_keys() -> None:
    """GET /v1/models and /v1/models/NAME show a key only its own models."""
    async with keyed(MODELS, keys=LIMITED) as (proxy, _):
        listed = (await proxy.get("/v1/models", bearer(ALICE))).json
        assert [model["id"] for model in listed["data"]] == ["gpt-4o", "gpt-4o-mini"]
        listed = (await proxy.get("/v1/models", bearer(BOB))).json
        assert len(listed["data"]) == 3
        assert (await proxy.get("/v1/models/gpt-4o", bearer(ALICE))).status == 200
        assert (await proxy.get("/v1/models/o9", bearer(ALICE))).status == 404


@pytest.mark.parametrize(
    "more",
    [
        {"models": ["gpt-4o", "o9"]},
        {"models": "o9"},
        {"fallbacks": ["o9"]},
        {"fallbacks": [{"model": "gpt-4o"}, {"model": "o9"}]},
        {"moderation": {"model": "o9"}},
        {"svg": {"model": "o9"}},
        {"tools": [{"type": "image_generation", "model": "o9"}]},
        {"tools": [{"type": "image_generation", "model": "gpt-4o", "svg": {"model": "o9"}}]},
        {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "o9"}]},
        {"tools": [{"type": "namespace", "tools": [{"type": "image_generation", "model": "o9"}]}]},
        {"input": [{"type": "additional_tools", "tools": [{"type": "image_generation", "model": "o9"}]}]},
        {
            "input": [
                {"type": "tool_search_output", "tools": [{"type": "namespace", "tools": [{"model": "o9"}]}]}
            ]
        },
    ],
)
async def test_further_models_in_a_body_count_too(more: dict[str, Any]) -> None:
    """A request is a 404 if its fallbacks or hosted tools name a model that the key may not use."""
    async with keyed(keys=LIMITED) as (proxy, upstream):
        body = {"model": "gpt-4o", "input": "x", **more}
        for path in ("/v1/responses", "/v1/moderations"):
            assert (await proxy.ask(body, bearer(ALICE), path=path)).status == 404
        assert upstream.requests == []
        assert (await proxy.ask(body, bearer(BOB), path="/v1/moderations")).status == 200


IMAGE: dict[str, Any] = {"type": "image_generation"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"plugins": [{"id": "fusion", "model": "o9"}]}, "plugins"),
        ({"preset": "mine"}, "preset"),
        ({"model": "gpt-4o@preset/mine"}, "model"),
        ({"models": ["gpt-4o@preset/mine"]}, "models"),
        ({"route": "fallback"}, "route"),
        ({"fallbacks": "default"}, "fallbacks"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "function", "name": "f"}, IMAGE]}, "tools[1].model"),
        ({"tools": [{"type": "advisor_20260301", "name": "advisor"}]}, "tools[0].model"),
        ({"tools": [{"type": "openrouter:fusion"}]}, "tools[0].type"),
        ({"tools": [{"type": "openrouter:advisor", "parameters": {"model": "o9"}}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "tools": [IMAGE]}]}, "tools[0].tools[0].model"),
        ({"input": ["x", {"type": "additional_tools", "tools": [IMAGE]}]}, "input[1].tools[0].model"),
    ],
)
async def test_a_model_that_a_provider_would_choose_is_refused(more: dict[str, Any], param: str) -> None:
    """A key limited to models gets a 403 that names the field by which a provider would choose a model."""
    async with keyed(keys=LIMITED) as (proxy, upstream):
        body = {"model": "gpt-4o", "input": "x", **more}
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/messages"):
            answer = await proxy.ask(body, bearer(ALICE), path=path)
            assert answer.status == 403
            assert param in answer.json["error"]["message"]
        assert (await proxy.ask(body, bearer(ALICE), path="/v1/moderations")).error["param"] == param
        assert upstream.requests == []
        assert (await proxy.ask(body, bearer(BOB), path="/v1/moderations")).status == 200


@pytest.mark.parametrize(
    "more",
    [
        {"models": ["gpt-4o-mini"], "provider": {"order": ["x"]}},
        {"fallbacks": [{"model": "gpt-4o-mini"}]},
        {"prompt": "a text"},
        {"tools": [{**IMAGE, "model": "gpt-4o-image"}, {"type": "openrouter:web_search"}]},
        {"tools": [{"type": "function", "name": "f", "parameters": {"properties": {"model": {}}}}]},
        {"input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}, "x", 1]},
    ],
)
async def test_what_names_only_models_of_the_key_is_served(more: dict[str, Any]) -> None:
    """A key limited to models may name its own models in every field."""
    async with keyed(keys=LIMITED) as (proxy, _):
        body = {"model": "gpt-4o", "input": "x", **more}
        assert (await proxy.ask(body, bearer(ALICE), path="/v1/moderations")).status == 200


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/v1/moderations", {"Plugins": []}, "Plugins"),
        ("/v1/moderations", {"moderation": {"Model": "o9"}}, "Model"),
        ("/v1/moderations", {"fallbacks": [{"Model": "o9", "model": "gpt-4o"}]}, "Model"),
        ("/v1/responses", {"input": [{"tools": [{"tools": [{"Model": "o9"}]}]}]}, "Model"),
        ("/v1/chat/completions", {"Model": "o9"}, "Model"),
        ("/v1/chat/completions", {"Stream": True}, "Stream"),
        ("/v1/moderations", {"MODEL": "o9"}, "MODEL"),
        ("/v1/moderations", {"model\u017f": ["o9"]}, "model\u017f"),
        ("/v1/responses", {"tools": [{"type": "image_generation", "Model": "o9"}]}, "Model"),
        ("/v1/responses", {"Previous_Response_ID": "resp_of_bob"}, "Previous_Response_ID"),
    ],
)
async def test_a_field_is_not_said_twice_in_two_cases(path: str, more: dict[str, Any], param: str) -> None:
    """A field that differs only in case from one that limits a key is a 400: an upstream may ignore case."""
    async with keyed(keys=LIMITED) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "model": "gpt-4o", "input": "x", **more}, bearer(ALICE), path=path)
        assert (answer.status, answer.error["param"]) == (400, param)
        assert upstream.requests == []


READ = [
    "/audio/speech",
    "/completions",
    "/embeddings",
    "/images/generations",
    "/moderations",
    "/rerank",
    "/responses/compact",
    "/responses/input_tokens",
    "/score",
]


@pytest.mark.parametrize("path", READ)
async def test_a_limited_key_has_its_model_read_on_every_path(path: str) -> None:
    """On every path with JSON the proxy reads a limited key's model, and refuses a body without one."""
    keys = {"alice": declared(ALICE, models=("gpt-4o*",), endpoints=("/rerank", "/score"))}
    async with keyed(keys=keys) as (proxy, upstream):
        for body, status in (({"model": "gpt-4o"}, 200), ({"model": "o9"}, 404), ({"input": "x"}, 400)):
            assert (await proxy.ask(body, bearer(ALICE), path=f"/v1{path}")).status == status
        assert len(upstream.requests) == 1


UNREAD: list[tuple[str, dict[str, Any]]] = [
    ("/assistants", {}),
    ("/audio/transcriptions", {}),
    ("/batches", {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h"}),
    ("/batches/batch_1/cancel", {}),
    ("/chat/completions/chatcmpl-1", {"metadata": {}}),
    ("/chatkit/sessions", {"workflow": {"id": "wf_1"}}),
    ("/containers", {"name": "c"}),
    ("/conversations", {"items": []}),
    ("/evals", {"testing_criteria": [{"type": "label_model", "model": "o9"}]}),
    ("/evals/eval_1/runs", {"data_source": {"type": "responses", "model": "o9"}}),
    ("/files", {}),
    ("/fine_tuning/alpha/graders/run", {"grader": {"type": "score_model", "model": "o9"}}),
    ("/fine_tuning/jobs", {"training_file": "file-1", "method": {"type": "reinforcement"}}),
    ("/realtime/client_secrets", {"session": {"type": "realtime", "model": "o9"}}),
    ("/realtime/calls/call_1/refer", {"target_uri": "tel:+1"}),
    ("/threads/runs", {"assistant_id": "asst_1"}),
    ("/threads/thread_1/runs/run_1/submit_tool_outputs", {"tool_outputs": []}),
    ("/uploads", {"filename": "f"}),
    ("/vector_stores", {"file_ids": []}),
    ("/videos/video_1/remix", {"prompt": "x"}),
    ("/what/is/new", {}),
]


@pytest.mark.parametrize(("path", "body"), UNREAD)
async def test_a_model_beside_the_one_that_counts_does_not_help(path: str, body: dict[str, Any]) -> None:
    """Where the body's ``model`` does not decide which model answers, a key limited to models gets a 403."""
    keys = {
        "alice": declared(ALICE, models=("gpt-4o*",), endpoints=("/*",)),
        "bob": declared(BOB, endpoints=("/*",)),
    }
    async with keyed(keys=keys) as (proxy, upstream):
        answer = await proxy.ask({"model": "gpt-4o", **body}, bearer(ALICE), path=f"/v1{path}")
        assert (answer.status, answer.error["code"]) == (403, "model_not_readable")
        assert upstream.requests == []
        assert (await proxy.ask(body, bearer(BOB), path=f"/v1{path}")).status == 200


async def test_a_limited_key_gets_nothing_whose_model_cannot_be_read() -> None:
    """A key limited to models gets a 403 for forms that name no model and for requests without a body."""
    keys = {"alice": declared(ALICE, models=("gpt-4o*",), endpoints=("/files*", "/rerank"))}
    async with keyed(keys=keys) as (proxy, upstream):
        form = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\ngpt-4o\r\n--b--\r\n'
        for method, path, body in (
            ("POST", "/v1/audio/transcriptions", form),
            ("POST", "/v1/images/edits", form),
            ("GET", "/v1/files", None),
        ):
            async with proxy.connect() as conversation:
                request = proxy.request(body, bearer(ALICE), method=method, path=path)
                conversation.writer.write(
                    request.replace(b"application/json", b"multipart/form-data; boundary=b")
                )
                answer = await conversation.answer()
            assert (answer.status, answer.error["code"]) == (403, "model_not_readable")
        assert (await proxy.ask({"model": "gpt-4o"}, bearer(ALICE), path="/v1/rerank")).status == 200
        assert len(upstream.requests) == 1


async def test_upstreams_of_a_key() -> None:
    """A key reaches only its own upstreams: with a model, without one and in the list of models."""
    first = whole(b'{"object":"list","data":[{"id":"one"}]}')
    second = whole(b'{"object":"list","data":[{"id":"two"}]}')
    async with RawUpstream(first) as a, RawUpstream(second) as b:
        keys = {"alice": declared(ALICE, upstreams=("u1",)), "bob": declared(BOB)}
        async with running(key_config(a.url, b.url, keys=keys)) as proxy:
            await proxy.ask(ASK, bearer(ALICE))
            await proxy.ask(ASK, bearer(ALICE), path="/v1/audio/speech")
            listed = (await proxy.get("/v1/models", bearer(ALICE))).json
            assert [model["id"] for model in listed["data"]] == ["two"]
            assert (len(a.requests), len(b.requests)) == (0, 3)
            await proxy.ask(ASK, bearer(BOB))
            assert len(a.requests) == 1


async def test_an_upstream_that_is_no_more_serves_nobody() -> None:
    """A stored key whose upstream was taken out of the configuration gets a 404, never another upstream."""
    async with keyed() as (proxy, upstream):
        secret = await made(proxy.services.store, upstreams=["gone"])
        for path in ("/v1/chat/completions", "/v1/audio/speech"):
            assert (await proxy.ask(ASK, bearer(secret), path=path)).status == 404
        listed = await proxy.get("/v1/models", bearer(secret))
        assert listed.json["data"] == []
        assert upstream.requests == []


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize(
    ("wanted", "keys", "loopback", "mode"),
    [
        ("auto", False, True, "start_token"),
        ("auto", True, True, "keys"),
        ("auto", True, False, "keys"),
        ("open", True, False, "open"),
        ("start_token", True, False, "start_token"),
        ("keys", False, False, "keys"),
        ("forward", True, False, "forward"),
    ],
)
def test_the_mode_is_fixed_by_keys_that_ever_were(wanted: Any, keys: bool, loopback: bool, mode: str) -> None:
    """Mode auto becomes keys if there ever was a key, else start_token; the other modes stay as they are."""
    assert fixed_mode(wanted, keys=keys, loopback=loopback) == mode


async def test_auto_does_not_open_the_door_to_other_machines() -> None:
    """Without keys mode auto starts only on loopback; otherwise the error says what to do."""
    keys: dict[str, Any]
    for keys in ({}, {"keys": {"alice": declared(ALICE)}}):
        sections: dict[str, Any] = {"auth": {"mode": "auto"}, "server": {"host": "0.0.0.0"}, **keys}
        config = make_config("http://127.0.0.1:9/v1", **sections)
        if "keys" in sections:
            app = await create_app(config)
            assert app.authentication.mode == "keys"
            await app.aclose()
            continue
        with pytest.raises(ConfigError, match="toolrelay keys create NAME") as caught:
            await create_app(config)
        assert caught.value.setting == "auth.mode"
        assert "TOOLRELAY_AUTH__MODE=start_token" in str(caught.value)
        assert 'auth.mode = "open"' in str(caught.value)


async def test_a_server_without_authentication_stays_so_until_the_next_start() -> None:
    """An open server stays open when the first key is made while it runs."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        await made(proxy.services.store)
        assert (await proxy.ask(ASK)).status == 200
        assert (await proxy.get("/v1/files")).status == 200


async def test_a_lost_record_does_not_open_the_door(tmp_path: Any) -> None:
    """If the database is lost, mode auto still asks for keys: every request gets a 503."""
    async with RawUpstream(OK) as upstream:
        sections: dict[str, Any] = {
            "store": {"url": f"sqlite:///{tmp_path / 'r.db'}"},
            "auth": {"mode": "auto"},
        }
        config = make_config(upstream.url, **sections).with_start_token(START)
        async with running(config) as proxy:
            assert (await proxy.ask(ASK, bearer(START))).status == 200
            secret = await made(proxy.services.store)
        async with running(config) as proxy:
            assert (await proxy.ask(ASK, bearer(START))).status == 401
            assert (await proxy.ask(ASK, bearer(secret))).status == 200
        for path in tmp_path.iterdir():
            if path.is_file() and path.suffix != ".keys":
                path.unlink()
        async with running(config) as proxy:
            for headers in ({}, bearer(START), bearer(secret)):
                answer = await proxy.ask(ASK, headers)
                assert (answer.status, answer.error["code"]) == (503, "no_client_keys")
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
async def test_keys_taken_out_of_the_configuration_open_nothing(tmp_path: Any, lost: bool) -> None:
    """If all configured keys are removed, mode auto still asks for keys, even if the database is lost."""
    sections: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path / 'r.db'}"}, "auth": {"mode": "auto"}}
    async with RawUpstream(OK) as upstream:
        async with running(key_config(upstream.url, **sections)) as proxy:
            assert (await proxy.ask(ASK, bearer(ALICE))).status == 200
        for path in tmp_path.iterdir():
            if lost and path.is_file() and path.suffix != ".keys":
                path.unlink()
        async with running(make_config(upstream.url, **sections)) as proxy:
            for headers in ({}, bearer(ALICE)):
                answer = await proxy.ask(ASK, headers)
                assert (answer.status, answer.error["code"]) == (503, "no_client_keys")
        assert len(upstream.requests) == 1


async def test_forward_sends_the_clients_key_in_place_of_ours() -> None:
    """In mode forward the upstream gets the client's Authorization unchanged and never the proxy's own."""
    async with RawUpstream(OK) as upstream:
        async with running(make_config(upstream.url, auth={"mode": "forward"})) as proxy:
            for headers in ({}, {"Authorization": ""}, {"api-key": "sk-client"}):
                answer = await proxy.ask(ASK, headers)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert upstream.requests == []
            assert (await proxy.ask(ASK, bearer("sk-client"))).status == 200
            assert (await proxy.get("/v1/files", bearer("sk-client"))).status == 200
        assert [request.header("authorization") for request in upstream.requests] == ["Bearer sk-client"] * 2
        assert SERVER_KEY not in str([request.headers for request in upstream.requests])


async def test_forward_does_not_send_a_key_of_the_proxy_up() -> None:
    """In mode forward the proxy refuses its own keys and tokens, which would go to the provider."""
    keys = {"admin": declared(ALICE, admin=True)}
    async with RawUpstream(OK) as upstream:
        config = key_config(upstream.url, auth={"mode": "forward"}, keys=keys)
        async with running(config) as proxy:
            stored = await made(proxy.services.store)
            for secret in (ALICE, stored, "trt_key_1.e30.AA"):
                for value in (f"Bearer {secret}", secret, f"Token {secret}", f"Bearer  x {secret}"):
                    answer = await proxy.ask(ASK, {"Authorization": value})
                    assert (answer.status, "key of the proxy" in answer.error["message"]) == (401, True)
            revoked = "tr_" + "A" * 43
            answer = await proxy.ask(ASK, {"Authorization": f'ApiKey key="{revoked}"'})
            assert answer.status == 401
        assert upstream.requests == []


async def test_forward_tells_callers_apart(tmp_path: Any) -> None:
    """In mode forward one client key is one caller, also after a restart; the name does not show the key."""
    names = []
    async with RawUpstream(OK) as upstream:
        url = f"sqlite:///{tmp_path / 'r.db'}"
        config = make_config(upstream.url, auth={"mode": "forward"}, store={"url": url})
        for secret in ("sk-one", "sk-one", "sk-two"):
            async with running(config) as proxy:
                await proxy.ask(ASK, bearer(secret))
                names.append((await proxy.runs())[0].caller)
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("forward:")
    assert "sk-one" not in str(names)


@pytest.mark.parametrize("mode", ["open", "start_token", "keys", "forward", "auto"])
async def test_administrators_come_with_a_key_in_every_mode(mode: str) -> None:
    """In every mode /admin needs a configured or stored key with ``admin``; all others get the same 401."""
    keys = {"alice": declared(ALICE, admin=True), "bob": declared(BOB, mint=True)}
    async with keyed(keys=keys, auth={"mode": mode}) as (proxy, upstream):
        store = proxy.services.store
        stored = await made(store, "root", admin=True)
        for secret in (ALICE, stored):
            answer = await proxy.get("/admin/tools", bearer(secret))
            assert answer.status == 200
        await store.revoke_key((await store.read_keys()).keys[0].id)
        refused = [None, BOB, stored, "sk-somebody", "trt_config:alice.e30.AA"]
        if mode in ("start_token", "keys", "auto"):
            token = await proxy.ask({}, bearer(BOB), path="/v1/toolrelay/tokens")
            refused.append(token.json["token"])
        for one in refused:
            headers = bearer(one) if one else {}
            answer = await proxy.get("/admin/tools", headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert "--admin" in answer.error["message"]
        assert upstream.requests == []


# ---------------------------------------------------------------- secrets and rights


async def test_secrets_are_nowhere_but_with_their_owner(tmp_path: Any) -> None:
    """Client keys and tokens appear in no line of the log, stored file, upstream request or answer."""
    log = io.StringIO()
    async with RawUpstream(OK) as upstream:
        url = f"sqlite:///{tmp_path / 'r.db'}"
        config = key_config(
            upstream.url, store={"url": url, "content": "all"}, keys={"alice": declared(ALICE, mint=True)}
        )
        with logged_to(log, level="debug", secrets=config.secrets()):
            async with running(config) as proxy:
                secret = await made(proxy.services.store, mint=True)
                minted = [
                    (await proxy.ask({"subject": "ann"}, bearer(one), path="/v1/toolrelay/tokens")).json[
                        "token"
                    ]
                    for one in (ALICE, secret)
                ]
                secrets = [ALICE, secret, *minted]
                shown = b""
                for one in secrets:
                    for headers in (bearer(one), {"api-key": one}, {"Authorization": one}):
                        shown += (await proxy.ask(ASK, headers)).body
                    # The parser quotes the line in its answer to the sender; the log must not.
                    await proxy.ask(ASK, [("X-Bad\x01", one)])
                    await proxy.ask(ASK, bearer(ALICE), path=f"/v1/{one}")
                assert await proxy.runs()
        sent = str([(request.headers, request.body) for request in upstream.requests]).encode()
        kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert len(log.getvalue().splitlines()) > 10
    assert "INSERT" not in log.getvalue()
    for one in secrets:
        for place, found in (
            ("log", log.getvalue().encode()),
            ("store", kept),
            ("up", sent),
            ("down", shown),
        ):
            assert one.encode() not in found, place
            assert one.removeprefix("tr_")[:30].encode() not in found, place


def test_what_rights_open() -> None:
    """Rights that are not a key's allow every path; a key's allow its own responses and endpoints."""
    read = Targets(SERVED).read
    assert may_call(Rights(), "PATCH", read("PATCH", "/v1/anything"))
    key = Rights(isolated=True, endpoints=("/files/*",))
    assert may_call(key, "DELETE", read("DELETE", "/v1/responses/resp_1"))
    assert may_call(key, "GET", read("GET", "/v1/files/x/content"))
    for method, path in (
        ("GET", "/files"),
        ("DELETE", "/responses"),
        ("POST", "/models"),
        ("GET", "/modelsx"),
    ):
        assert not may_call(key, method, read(method, f"/v1{path}"))


async def test_tools_and_trace_of_a_key() -> None:
    """Rule T2: a key gets only tools that both it and the policy allow, and its trace_max caps the trace."""
    keys = {
        "alice": declared(ALICE, tools=("core__get_current_time", "core__nothing"), trace_max="silent"),
        "bob": declared(BOB),
    }
    async with keyed(OK, keys=keys, allow=("core__get_current_time", "core__calculate")) as (proxy, upstream):
        for secret in (ALICE, BOB):
            await proxy.ask(ASK, {**bearer(secret), "x-toolrelay-trace": "status"})
        offered = [
            [tool["function"]["name"] for tool in json.loads(request.body)["tools"]]
            for request in upstream.requests
        ]
        assert offered == [["core__get_current_time"], ["core__calculate", "core__get_current_time"]]
        bob, alice = await proxy.runs()
        assert (alice.trace, bob.trace) == ("silent", "status")
        assert (alice.caller, bob.caller) == ("config:alice", "config:bob")
        assert alice.withheld["core__calculate"] == 'keys.alice.tools lacks "core__calculate"'
        answer = await proxy.ask(ASK, {**bearer(ALICE), "x-toolrelay-tools": "core__calculate"})
        assert answer.status == 400


async def test_forward_deletes_upstream_with_the_clients_key() -> None:
    """A client that deletes a response deletes it at the provider, too, with the client's own key."""
    call = responses_script.function_call("c1", "core__get_current_time", '{"timezone":"UTC"}')
    scripts = [
        responses_script.reply(call, store=True),
        responses_script.reply(responses_script.message("noon"), id="resp_2", store=True),
    ]
    async with RawUpstream(*scripts, whole(b"{}")) as upstream:
        async with running(make_config(upstream.url, auth={"mode": "forward"})) as proxy:
            answer = await proxy.ask({"model": "m", "input": "hi"}, bearer("sk-client"), path="/v1/responses")
            path = f"/v1/responses/{answer.json['id']}"
            other = await proxy.ask(None, bearer("sk-other"), method="GET", path=path)
            assert other.json == {}, "another key's question goes to the provider, which knows whose it is"
            assert (await proxy.ask(None, bearer("sk-client"), method="DELETE", path=path)).json["deleted"]
        deleted = [request for request in upstream.requests if request.method == "DELETE"]
        assert deleted
        assert {request.header("authorization") for request in deleted} == {"Bearer sk-client"}


async def test_a_list_of_models_may_be_odd() -> None:
    """For a key limited to models, the list leaves out the upstream's entries without a name."""
    listed = {"data": [{"object": "model"}, {"id": 7}, {"id": None}, {"id": "m", "object": "model"}]}
    keys = {"alice": declared(ALICE, models=["m", "None"])}
    async with keyed(whole(json.dumps(listed).encode()), keys=keys) as (proxy, _):
        answer = await proxy.get("/v1/models", bearer(ALICE))
        assert [model["id"] for model in answer.json["data"]] == ["m"]
