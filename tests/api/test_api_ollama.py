"""Ollama's API beside chat: models, the version, embeddings, and requests that may change a server."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client_keys import ALICE, bearer, declared
from ollama_script import LINES, user
from raw_upstream import RawUpstream, Step, chunked, whole
from running_proxy import Proxy, make_config, running

TAG: dict[str, Any] = {
    "name": "llama3.2:latest", "model": "llama3.2:latest", "modified_at": "2026-01-01T00:00:00Z", "size": 7,
    "digest": "ab" * 32, "details": {"family": "llama"},
}  # fmt: skip
TAGS = json.dumps({"models": [TAG, {**TAG, "name": "odd:1b", "model": "odd:1b"}]}).encode()
LIST = json.dumps({"object": "list", "data": [{"id": "gpt-4o", "object": "model", "context_length": 128}]})
KEYED = {"Authorization": f"Bearer {ALICE}"}


def reply(body: bytes | str) -> list[Step]:
    """One object of JSON."""
    return whole(body if isinstance(body, bytes) else body.encode())


@asynccontextmanager
async def two(
    ollama: Any, chat: Any, ollama_models: Any = ("*",), **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream, RawUpstream]]:
    """A proxy in front of an Ollama server, which serves ``ollama_models``, and another provider."""
    async with RawUpstream(*ollama) as one, RawUpstream(*chat) as other:
        local = {"name": "local", "base_url": one.url, "wires": ("ollama",), "models": ollama_models}
        cloud = {"name": "cloud", "base_url": other.url, "wires": ("chat",), "models": ("gpt-*",)}
        async with running(make_config(local, cloud, **config)) as proxy:
            yield proxy, one, other


async def get(proxy: Proxy, path: str, headers: Any = ()) -> Any:
    """Send a GET and return the answer."""
    return await proxy.ask(None, headers, method="GET", path=path)


async def test_tags_are_of_all_upstreams() -> None:
    """/api/tags lists the models of all upstreams in Ollama's format, those of Ollama itself unchanged."""
    async with two([reply(TAGS)], [reply(LIST)], ("llama*",)) as (proxy, local, cloud):
        answer = await get(proxy, "/api/tags")
        assert [request.target for request in local.requests] == ["/api/tags"]
        assert [request.target for request in cloud.requests] == ["/v1/models"]
    models = answer.json["models"]
    assert [one["model"] for one in models] == ["llama3.2:latest", "gpt-4o"]
    assert models[0] == TAG
    assert models[1].keys() == TAG.keys()
    assert len(models[1]["digest"]) == 64


async def test_a_list_in_the_other_form_has_ollamas_models() -> None:
    """/v1/models lists an Ollama server's models in OpenAI's format, also if it is the only upstream."""
    async with two([reply(TAGS)], [reply(LIST)]) as (proxy, _, _):
        models = (await get(proxy, "/v1/models")).json["data"]
    assert [one["id"] for one in models] == ["llama3.2:latest", "odd:1b", "gpt-4o"]
    assert models[0]["object"] == "model"
    async with RawUpstream(reply(TAGS)) as upstream:
        served = {"base_url": upstream.url, "wires": ("ollama",)}
        async with running(make_config(served)) as proxy:
            answer = await get(proxy, "/v1/models")
    assert [one["id"] for one in answer.json["data"]] == ["llama3.2:latest", "odd:1b"]


async def test_a_key_sees_its_own_models() -> None:
    """Each of Ollama's lists shows a key only its own models; /api/show of another model is a 404."""
    keys = {"alice": declared(ALICE, models=("gpt-*",))}
    running_now = json.dumps({"models": [TAG]})
    async with two([reply(TAGS), reply(running_now)], [reply(LIST)], keys=keys) as (proxy, _, _):
        assert (await get(proxy, "/api/tags")).status == 401
        tags = (await get(proxy, "/api/tags", KEYED)).json["models"]
        assert [one["name"] for one in tags] == ["gpt-4o"]
        assert (await get(proxy, "/api/ps", KEYED)).json == {"models": []}
        shown = await proxy.ask({"model": "odd:1b"}, KEYED, path="/api/show")
        assert (shown.status, list(shown.json)) == (404, ["error"])


async def test_one_ollama_server_answers_for_itself() -> None:
    """With one Ollama server as the only upstream, its lists and its version pass byte for byte."""
    asked = ("/api/tags", "/api/ps", "/api/version")
    bodies = [TAGS, b'{"models": [] }', b'{"version":"0.99"}']
    async with RawUpstream(*map(reply, bodies)) as upstream:
        served = {"base_url": upstream.url, "wires": ("ollama",)}
        async with running(make_config(served)) as proxy:
            assert [(await get(proxy, path)).body for path in asked] == bodies
        assert [request.target for request in upstream.requests] == list(asked)


async def test_a_version_is_told_where_there_is_none() -> None:
    """With several upstreams the proxy itself gives a version, since Open WebUI asks for it first."""
    async with two([], []) as (proxy, _, _):
        assert (await get(proxy, "/api/version")).json["version"].count(".") == 2


@pytest.mark.parametrize("asked", [{"model": "llama3.2"}, {"name": "llama3.2"}])
async def test_a_model_of_ollamas_is_shown_by_its_server(asked: dict[str, Any]) -> None:
    """The Ollama server answers /api/show for its models, also to older clients, which send ``name``."""
    body = b'{"capabilities":["completion","tools"]}'
    async with two([reply(body)], []) as (proxy, local, _):
        answer = await proxy.ask(asked, path="/api/show")
        assert answer.body == body
        assert json.loads(local.requests[0].body)["model"] == "llama3.2"


async def test_another_model_is_shown_from_what_is_known() -> None:
    """For another provider's model /api/show has the capabilities and context length that clients need."""
    async with two([], [reply(LIST)], ("llama*",)) as (proxy, _, _):
        shown = (await proxy.ask({"model": "gpt-4o:latest"}, path="/api/show")).json
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert shown["model_info"]["cloud.context_length"] == 128
    assert shown["details"]["family"] == "cloud"


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_what_has_no_tools_passes_to_an_ollama_server(path: str) -> None:
    """The proxy passes embeddings byte for byte; a model that no Ollama server serves is a 404."""
    body = b'{"model":"m","embeddings":[[0.5]],"prompt_eval_count":3}'
    async with two([reply(body)], [], ("m",)) as (proxy, local, _):
        asked = {"model": "m", "input": "hi", "keep_alive": 0}
        answer = await proxy.ask(asked, path=path)
        assert (answer.status, answer.body) == (200, body)
        assert local.requests[0].target == path
        assert json.loads(local.requests[0].body) == asked
        missing = await proxy.ask({**asked, "model": "gpt-4o"}, path=path)
        assert missing.status == 404
        assert "ollama" in missing.json["error"]


async def test_a_completion_that_merely_ends_is_an_error() -> None:
    """Rule E1: a completion without its last line ends with an error; the tokens of a whole one count."""
    piece = b'{"model":"m","created_at":"c","response":"It","done":false}\n'
    last = b'{"model":"m","response":"","done":true,"context":[1,2,3],"prompt_eval_count":9,"eval_count":8}\n'
    async with two(
        [chunked(piece, content_type=LINES), chunked(piece + last, content_type=LINES)],
        [],
        ("m",),
        limits={"tokens": ["15/hour"]},
    ) as (proxy, _, _):
        answer = await proxy.ask({"model": "m", "prompt": "hi"}, path="/api/generate")
        assert answer.body.startswith(piece)
        assert b'"error"' in answer.body
        answer = await proxy.ask({"model": "m", "prompt": "hi"}, path="/api/generate")
        assert answer.body == piece + last
        assert (await proxy.ask({"model": "m", "prompt": "hi"}, path="/api/generate")).status == 429


CHANGES = [
    *(("POST", f"/api/{word}") for word in ("pull", "push", "create", "copy", "blobs/sha256:1", "odd")),
    ("DELETE", "/api/delete"),
    ("GET", "/api/chat"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("keyed", [True, False])
async def test_what_may_change_a_server_is_refused(method: str, path: str, keyed: bool) -> None:
    """The proxy refuses requests that may change a server, unless a key's endpoints allow them."""
    keys = {"keys": {"alice": declared(ALICE)}} if keyed else {}
    async with two([], [], **keys) as (proxy, local, _):
        body = {"model": "m"} if method == "POST" else None
        answer = await proxy.ask(body, KEYED if keyed else (), method=method, path=path)
        assert answer.status == 403
        assert "endpoints" in answer.json["error"]
        assert not local.requests


async def test_a_key_may_be_allowed_to_pull() -> None:
    """A key whose endpoints have /api/pull may pull; the request goes to the Ollama server."""
    keys = {"alice": declared(ALICE, endpoints=("/api/pull",))}
    async with RawUpstream() as cloud, RawUpstream(reply(b'{"status":"success"}')) as local:
        first = {"name": "cloud", "base_url": cloud.url, "wires": ("chat",)}
        second = {"name": "local", "base_url": local.url, "wires": ("ollama",)}
        async with running(make_config(first, second, keys=keys)) as proxy:
            answer = await proxy.ask({"model": "m"}, KEYED, path="/api/pull")
            assert answer.json == {"status": "success"}
            assert (await proxy.ask({"model": "m"}, KEYED, path="/api/push")).status == 403
        assert local.requests[0].target == "/api/pull"
        assert not cloud.requests


@pytest.mark.parametrize(
    "headers",
    [{"User-Agent": "ollama-python/0.6.3 (x86_64 linux) Python/3.11"}, {"Accept": "text/plain"}],
)
async def test_the_root_tells_ollamas_clients_what_they_look_for(headers: dict[str, str]) -> None:
    """At the root Ollama's clients get the text that they look for, and others the usual object."""
    async with two([], []) as (proxy, _, _):
        assert (await get(proxy, "/", headers)).body == b"Ollama is running"
        assert (await get(proxy, "/")).json["name"] == "toolrelay"
        async with proxy.sent(method="HEAD", path="/") as asked:
            assert (await asked.head()).status == 200


async def test_a_form_is_refused_in_words_that_help() -> None:
    """A form, which is what curl sends by default, is a 415 that says which Content-Type to set."""
    async with two([], [], ("m",)) as (proxy, _, _):
        headers = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "curl/8.5"}
        answer = await proxy.ask({"model": "m", "messages": [user("hi")]}, headers, path="/api/chat")
    assert answer.status == 415
    assert "Content-Type: application/json" in answer.json["error"]


BELOW = ("/v1", "/openai", "/openai/v1", "/openai/deployments/m", "/v1/v1", "/openai/v1/v1")
SPELLINGS = (
    *("/api/pull", "/API/pull", "/Api/Pull", "/api;a=1/pull", "/api/pull/", "/api/pull?x=1", "/api%3B/pull"),
    *(
        "/api%2Fpull",
        "/api%2fpull",
        "/%61pi/pull",
        "//api/pull",
        "/api//pull",
        "/./api/pull",
        "/x/../api/pull",
    ),
    *(
        "/x/..;/api/pull",
        "/%2e%2e/api/pull",
        "/api\\pull",
        "/api/blobs/cancel",
        "/pull",
        "/pull/",
        "/blobs/cancel",
    ),
    *("/api/delete", "/delete"),
)
ODD_TARGETS = ("http://other.example/v1/api/pull", "http://127.0.0.1/api/pull", "*", "/v1/models/../api/pull")


ENDS = [(wires, end) for wires in (("ollama",), ("chat", "ollama")) for end in ("", "/", "/v1", "/api")]
MODES = [("open", *served) for served in ENDS] + [(mode, *ENDS[0]) for mode in ("start_token", "forward")]


async def refused_at(proxy: Proxy, targets: Iterable[str], headers: Any) -> None:
    """Assert that the proxy refuses a request that could change a server at each of these targets."""
    for target in targets:
        method = "DELETE" if "delete" in target else "POST"
        async with proxy.sent({"model": "m"}, headers, method=method, path=target) as asked:
            assert (await asked.head()).status in (400, 403, 404), (method, target)


@pytest.mark.parametrize(("mode", "wires", "end"), MODES)
async def test_no_spelling_of_a_path_changes_an_ollama_server(
    mode: str, wires: tuple[str, ...], end: str
) -> None:
    """No spelling of Ollama's paths below another prefix, and no unknown path, reaches an Ollama server."""
    targets = [*(below + spelling for below in BELOW for spelling in SPELLINGS), *ODD_TARGETS]
    async with RawUpstream() as upstream:
        served = {"base_url": upstream.url.removesuffix("/v1") + end, "wires": wires}
        config = make_config(served, auth={"mode": mode})
        if mode == "start_token":
            config = config.with_start_token(ALICE)
        async with running(config) as proxy:
            await refused_at(proxy, targets, KEYED if mode == "start_token" else bearer("sk-theirs"))
        assert upstream.requests == []


async def test_a_path_of_one_dialect_below_the_prefix_of_another_says_where_it_is() -> None:
    """A client whose host ends in /v1 is told that Ollama's paths begin at the root."""
    async with two([], [], ("m",)) as (proxy, local, cloud):
        answer = await proxy.ask({"model": "m", "messages": [user("hi")]}, path="/v1/api/chat")
        assert (answer.status, answer.error["code"]) == (404, "not_found")
        assert "/api/chat begin at the root" in answer.error["message"]
        assert not local.requests
        assert not cloud.requests


async def test_unknown_paths_go_past_an_ollama_server() -> None:
    """An unknown path goes to the first upstream that does not speak Ollama's dialect."""
    async with two([], [reply("{}")]) as (proxy, local, cloud):
        assert (await proxy.get("/v1/files")).json == {}
        assert not local.requests
        assert [request.target for request in cloud.requests] == ["/v1/files"]


async def test_an_unknown_path_is_a_404_where_every_upstream_speaks_ollamas_dialect() -> None:
    """Without another upstream an unknown path is a 404 that says why."""
    async with (
        RawUpstream() as upstream,
        running(make_config({"base_url": upstream.url, "wires": ("ollama",)})) as proxy,
    ):
        answer = await proxy.get("/v1/files")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert '"ollama" among its wires' in answer.error["message"]


async def test_a_key_that_may_pull_does_so_at_the_root_only() -> None:
    """A key whose endpoints have Ollama's paths reaches them by no other prefix."""
    keys = {"alice": declared(ALICE, endpoints=("/api/*", "/pull"))}
    async with RawUpstream() as upstream:
        served = {"base_url": f"{upstream.url.removesuffix('/v1')}/api", "wires": ("ollama",)}
        async with running(make_config(served, keys=keys)) as proxy:
            await refused_at(proxy, ("/v1/api/pull", "/v1/pull", "/openai/pull"), KEYED)
        assert upstream.requests == []
