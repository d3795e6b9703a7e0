"""Azure's paths: the proxy maps each to a path below ``/v1``, and applies the rules of that path."""

import json
from typing import Any

import pytest
from chat_script import reply
from client_keys import ALICE, OK, bearer, declared, keyed
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import RawUpstream, whole
from running_proxy import Answer, make_config, running

from proxy.base.errors import RequestError
from proxy.server.messages.target import Targets
from proxy.wires.registry.table import SERVED

CHAT = "/openai/deployments/gpt-4o/chat/completions"
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
MODELS = whole(b'{"object":"list","data":[{"id":"gpt-4o"}]}')


@pytest.mark.parametrize(
    ("path", "below", "deployment"),
    [
        (CHAT, "/chat/completions", "gpt-4o"),
        ("/openai/deployments/a%2Fb%3Ac/embeddings?api-version=1", "/embeddings", "a/b:c"),
        ("/openai/deployments/x/audio/transcriptions", "/audio/transcriptions", "x"),
        ("/openai/v1/chat/completions", "/chat/completions", ""),
        ("/openai/v1/models/m", "/models/m", ""),
        ("/openai/models?api-version=1", "/models", ""),
        ("/openai/responses/resp_1", "/responses/resp_1", ""),
        ("/v1/openai/models", "/openai/models", ""),
        # Paths that Azure does not have.
        ("/openai", None, ""),
        ("/openai/", None, ""),
        ("/openai/v1", None, ""),
        ("/openai/v1/", None, ""),
        ("/openai/v1/v1/models", None, ""),
        ("/openai/v10/models", "/v10/models", ""),
        ("/openai/v1x", "/v1x", ""),
        ("/openai/v1;x/models", "/v1;x/models", ""),
        ("/openai/v1/deployments/x/chat/completions", None, ""),
        ("/openai/deployments/x/files", None, ""),
        ("/openai/deployments/x/y/chat/completions", None, ""),
        ("/openai/deployments", None, ""),
        ("/OpenAI/models", None, ""),
        ("/x/openai/models", None, ""),
    ],
)
def test_what_a_path_means(path: str, below: str | None, deployment: str) -> None:
    """Each path maps to at most one path below ``/v1``, and names a deployment only where Azure has one."""
    target = Targets(SERVED).read("POST", path)
    assert (target.below, target.deployment) == (below, deployment)
    assert below is None or below.startswith("/")


PIECES = ["openai", "v1", "v10", "deployments", "gpt-4o", "chat", "completions", "models", "a%2Fb", "..", ""]


@given(st.lists(st.sampled_from(PIECES), max_size=7))
def test_every_path_means_one_below_v1_or_none(pieces: list[str]) -> None:
    """The mapped path is the end of the path that was sent, from a slash on and without encoded slashes."""
    path = "/" + "/".join(pieces)
    try:
        target = Targets(SERVED).read("POST", path)
    except RequestError:
        return
    if target.below is not None:
        assert target.below.startswith("/")
        assert path.endswith(target.below)
        assert "%2F" not in target.below
    assert not target.deployment or target.below is not None


@pytest.mark.parametrize(
    "path",
    [
        "/openai/deployments/../chat/completions",
        "/openai/deployments/%2e%2e/chat/completions",
        "/openai/deployments//chat/completions",
        "/openai/deployments/a%5Cb/chat/completions",
        "/openai/deployments/a%00/chat/completions",
        "/openai/deployments/a%ff/chat/completions",
        "/openai/deployments/a%/chat/completions",
        "/openai/deployments/a%2Fb/files",
        "/openai/files/a%2Fb",
        "/openai/../v1/models",
    ],
)
def test_a_path_that_two_could_read_in_two_ways_is_refused(path: str) -> None:
    """An ambiguous path gets a 400; an encoded slash is allowed only in the name of a deployment."""
    with pytest.raises(RequestError) as refused:
        Targets(SERVED).read("POST", path)
    assert (refused.value.status, refused.value.code) == (400, "invalid_path")


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passed", "with tools"])
@pytest.mark.parametrize(
    "more", [b"", b',"model":null', b',"model":"gpt-4o"', b',"mod\\u0065l":null', b',"mod\\u0065l":"gpt-4o"']
)
async def test_the_deployment_is_the_model(more: bytes, allow: tuple[str, ...]) -> None:
    """The upstream gets the deployment as the only model of the body, and ``api-version`` in the query."""
    body = json.dumps(SAY).encode()[:-1] + more + b"}"
    async with (
        RawUpstream(reply("Hello.")) as upstream,
        running(make_config(upstream.url, allow=allow)) as proxy,
    ):
        answer = await proxy.ask(body, path=f"{CHAT}?api-version=2025-01-01")
        assert answer.status == 200
        (request,) = upstream.requests
    assert request.target == "/v1/chat/completions?api-version=2025-01-01"
    pairs = json.loads(request.body, object_pairs_hook=list)
    assert [value for name, value in pairs if name == "model"] == ["gpt-4o"]
    assert "messages" in dict(pairs)


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passed", "with tools"])
@pytest.mark.parametrize("model", ["gpt-4o-mini", "", 7, ["gpt-4o"]])
async def test_two_names_are_a_conflict(model: object, allow: tuple[str, ...]) -> None:
    """If the body names another model than the path, the proxy refuses it and names field and deployment."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url, allow=allow)) as proxy:
        for path in (
            CHAT,
            "/openai/deployments/gpt-4o/embeddings",
            "/openai/deployments/gpt-4o/audio/speech",
        ):
            error = (await proxy.ask({**SAY, "model": model}, path=path)).error
            assert (error["code"], error["param"]) == ("model_conflict", "model")
            assert "'gpt-4o'" in error["message"]
        assert upstream.requests == []


def shown(answer: Answer) -> tuple[int, Any]:
    """Return the status and the error code."""
    return answer.status, answer.error["code"]


async def test_a_keys_models_hold_for_the_deployment() -> None:
    """The models of a key hold for the deployment, whichever path and header the client uses."""
    keys = {"alice": declared(ALICE, models=["gpt-4o-mini"])}
    async with keyed(reply("Hello."), keys=keys) as (proxy, upstream):
        for headers in (bearer(ALICE), {"api-key": ALICE}):
            assert shown(await proxy.ask(SAY, headers, path=CHAT)) == (404, "model_not_found")
            named = {**SAY, "model": "gpt-4o-mini"}
            assert shown(await proxy.ask(named, headers, path=CHAT)) == (400, "model_conflict")
            for path in (
                "/openai/deployments/gpt-4o/embeddings",
                "/openai/deployments/gpt-4o/images/generations",
            ):
                assert shown(await proxy.ask({"input": "x"}, headers, path=path)) == (404, "model_not_found")
            form = [*headers.items(), ("Content-Type", "multipart/form-data; boundary=x")]
            path = "/openai/deployments/gpt-4o-mini/audio/transcriptions"
            assert shown(await proxy.ask(b"--x--\r\n", form, path=path)) == (403, "model_not_readable")
            path = f"{CHAT}?model=gpt-4o-mini"
            assert (await proxy.ask(SAY, headers, path=path)).status == 404
            allowed = CHAT.replace("gpt-4o", "gpt-4o-mini")
            assert shown(await proxy.ask(SAY, headers, path=f"{allowed}?model=gpt-4o")) == (
                400, "unknown_query_parameter",
            )  # fmt: skip
            assert upstream.requests == []
            assert (await proxy.ask(SAY, headers, path=allowed)).status == 200
            assert json.loads(upstream.requests.pop().body)["model"] == "gpt-4o-mini"


async def test_the_door_is_that_of_the_path_it_means() -> None:
    """An Azure path has the access rules of the path that it maps to: it needs a key; files are closed."""
    async with keyed(MODELS) as (proxy, upstream):
        for path in (CHAT, "/openai/v1/chat/completions", "/openai/models"):
            assert shown(await proxy.ask(SAY, path=path)) == (401, "invalid_api_key")
        for path in ("/openai/files", "/openai/v1/files"):
            assert (await proxy.ask(None, bearer(ALICE), method="GET", path=path)).status == 403
        for path in (CHAT, "/openai/deployments/x/files", "/openai/deployments"):
            assert (await proxy.ask(None, bearer(ALICE), method="GET", path=path)).status in (403, 404)
        path = f"/openai/deployments/tr_{'A' * 43}/chat/completions"
        assert (await proxy.ask(SAY, bearer(ALICE), path=path)).status == 400
        assert upstream.requests == []
        for path in ("/openai/models", "/openai/v1/models"):
            answer = await proxy.ask(None, {"api-key": ALICE}, method="GET", path=path)
            assert answer.json["data"][0]["id"] == "gpt-4o"
        assert [request.target for request in upstream.requests] == ["/v1/models"] * 2


async def test_a_renamed_model_is_renamed() -> None:
    """The proxy maps a deployment's name to the upstream's model, like the name of a model in the body."""
    async with RawUpstream(reply("Hello.")) as upstream:
        table = {"base_url": upstream.url, "models": {"fast": "gpt-4o-mini"}}
        async with running(make_config(table)) as proxy:
            path = "/openai/deployments/fast/chat/completions"
            assert (await proxy.ask(SAY, path=path)).status == 200
            assert json.loads(upstream.requests[0].body)["model"] == "gpt-4o-mini"
            assert (await proxy.ask(SAY, path=CHAT)).status == 404


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [
        "/openai",
        "/openai/",
        "/openai/v1",
        "/openai/v1/",
        "/openai/v1?x=1",
        "/openai/v1x",
        "/openai/deployments",
    ],
)
async def test_a_path_that_means_nothing_is_no_fault_of_ours(method: str, path: str) -> None:
    """A path that maps to nothing causes no server error, with any method and with a key or without."""
    async with keyed() as (proxy, _):
        for headers in ({}, bearer(ALICE), {"Origin": "http://a.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await proxy.ask(None, headers, method=method, path=path)).status < 500
