"""The start token, with which clients come in while there is no client key, seen from a raw socket."""

import io
import pickle
from typing import Any

import pytest
from client_keys import ALICE, OK, bearer, declared, made
from logged import logged_to
from raw_upstream import RawUpstream
from running_proxy import SERVER_KEY, make_config, running

from proxy.app.app import create_app
from proxy.commands.keys.keys import authentication_lines
from proxy.config.load import Config, Options, load_config

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOKEN = "tr_" + "s7" * 21 + "A"


def config_of(url: str, mode: str = "auto", **sections: Any) -> Config:
    """A configuration with this mode of authentication and the token of this start."""
    return make_config(url, auth={"mode": mode}, **sections).with_start_token(TOKEN)


NOT_IT = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer unused"},
    {"Authorization": TOKEN},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer \xff{TOKEN}"},
    {"Authorization": "Bearer tr_" + "A" * 43},
    {"Authorization": "Bearer trt_config:alice.e30.AAAA"},
    {"Authorization": "Bearer unused", "api-key": TOKEN},
    {"Cookie": f"token={TOKEN}"},
]


async def test_without_the_token_nobody_comes_in() -> None:
    """Without keys the server answers 401 to a request without the start token. The error says what to send,
    where the token was printed and how to run without one."""
    async with RawUpstream(OK) as upstream, running(config_of(upstream.url)) as proxy:
        for headers in NOT_IT:
            for method, path, body in (("POST", "/v1/chat/completions", ASK), ("GET", "/v1/files", None)):
                answer = await proxy.ask(body, headers, method=method, path=path)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), headers
        for words in ("Authorization: Bearer", "auth: start token", "toolrelay serve --open"):
            assert words in answer.error["message"]
        assert answer.header("www-authenticate") == "Bearer"
        assert upstream.requests == []


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Bearer {TOKEN}"}, {"api-key": TOKEN}, {"x-api-key": TOKEN}]
)
async def test_the_token_is_read_where_keys_are_and_goes_no_further(headers: dict[str, str]) -> None:
    """The token works in each header of a key, opens all paths but /admin, and never goes upstream."""
    async with RawUpstream(OK) as upstream, running(config_of(upstream.url)) as proxy:
        async with proxy.connect() as conversation:
            for _ in range(3):  # The proxy checks a repeated head only once.
                conversation.writer.write(proxy.request(ASK, headers))
                assert (await conversation.answer()).status == 200
            conversation.writer.write(proxy.request(ASK))
            assert (await conversation.answer()).status == 401
        assert (await proxy.get("/v1/files", headers)).status == 200
        assert (await proxy.get("/metrics", headers)).status == 200
        assert (await proxy.get("/admin/tools", headers)).status == 401
        assert [request.header("authorization") for request in upstream.requests] == [
            f"Bearer {SERVER_KEY}"
        ] * 4
        assert TOKEN not in str([request.headers for request in upstream.requests])


async def test_figures_need_the_token_too() -> None:
    """/metrics needs the token; the health checks do not, since probes have none."""
    async with running(config_of("http://127.0.0.1:9/v1")) as proxy:
        assert (await proxy.get("/metrics")).status == 401
        assert (await proxy.get("/healthz")).status == 200
        assert (await proxy.get("/readyz")).status == 200


async def test_a_token_in_an_address_is_refused() -> None:
    """A token in path or query is a 400, even beside a valid one, since logs and histories would keep it."""
    async with RawUpstream(OK) as upstream, running(config_of(upstream.url)) as proxy:
        for path in (f"/v1/models?token={TOKEN}", f"/v1/files/{TOKEN}"):
            for headers in ({}, bearer(TOKEN)):
                answer = await proxy.ask(None, headers, method="GET", path=path)
                assert (answer.status, answer.error["code"]) == (400, "key_in_address")
        assert upstream.requests == []


@pytest.mark.parametrize("mode", ["auto", "start_token"])
async def test_the_first_key_comes_in_beside_the_token(mode: str) -> None:
    """A key that is made while the server runs is valid at once, within its rights, and so is the token."""
    async with RawUpstream(OK) as upstream, running(config_of(upstream.url, mode)) as proxy:
        secret = await made(proxy.services.store)
        assert (await proxy.ask(ASK, bearer(secret))).status == 200
        assert (await proxy.get("/v1/files", bearer(secret))).status == 403
        assert (await proxy.ask(ASK, bearer(TOKEN))).status == 200
        assert (await proxy.ask(ASK, bearer("unused"))).status == 401


async def test_once_there_was_a_key_no_token_is_asked_for() -> None:
    """With a client key, mode auto refuses the start token; mode start_token accepts both."""
    for mode, status in (("auto", 401), ("start_token", 200)):
        async with RawUpstream(OK) as upstream:
            config = config_of(upstream.url, mode, keys={"alice": declared(ALICE)})
            async with running(config) as proxy:
                assert (await proxy.ask(ASK, bearer(TOKEN))).status == status
                assert (await proxy.ask(ASK, bearer(ALICE))).status == 200


async def test_the_token_is_in_no_log_and_no_record(tmp_path: Any) -> None:
    """The start token appears in no line of the log, no file of the store and no printed configuration."""
    sink = io.StringIO()
    url = f"sqlite:///{tmp_path / 'r.db'}"
    async with RawUpstream(OK) as upstream:
        config = config_of(upstream.url, store={"url": url, "content": "all"})
        with logged_to(sink, secrets=config.secrets()):
            async with running(config) as proxy:
                for headers in (bearer(TOKEN), {"api-key": TOKEN}, {"Authorization": TOKEN}):
                    await proxy.ask(ASK, headers)
                    await proxy.get(f"/v1/models?t={TOKEN}", headers)
                    await proxy.get(f"/{TOKEN}", headers)
    assert sink.getvalue().count("\n") >= 9
    assert TOKEN not in sink.getvalue()
    assert TOKEN not in "".join(
        path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()
    )
    assert TOKEN in config.secrets()
    assert TOKEN not in repr(config)
    assert TOKEN not in repr(Options(start_token=TOKEN))
    assert TOKEN not in str(config.model_dump())


async def test_the_token_goes_with_the_configuration_to_every_process() -> None:
    """The token comes from the options and survives pickling, with which workers get the configuration."""
    config = load_config(None, {"OPENAI_API_KEY": "sk-x"}, Options(start_token=TOKEN))
    assert config.start_token == TOKEN
    assert pickle.loads(pickle.dumps(config)).start_token == TOKEN
    assert load_config(None, {"OPENAI_API_KEY": "sk-x"}).start_token == ""


async def test_one_word_does_without() -> None:
    """``--open`` overrides the mode from the environment, and the server prints which mode it has."""
    env = {"OPENAI_API_KEY": "sk-x", "TOOLRELAY_AUTH__MODE": "keys", "TOOLRELAY_STORE__URL": "memory:"}
    assert load_config(None, env, Options(open=True)).auth.mode == "open"
    for mode, word in (("open", "open; everybody"), ("auto", f"Authorization: Bearer {TOKEN}")):
        config = config_of("http://127.0.0.1:9/v1", mode)
        app = await create_app(config)
        assert word in authentication_lines(config, app.authentication)[0]
        await app.aclose()


async def test_who_makes_an_application_gets_a_token_all_the_same() -> None:
    """An application that a program makes without a start token creates its own; each has another one."""
    config = make_config("http://127.0.0.1:9/v1", auth={"mode": "auto"})
    apps = [await create_app(config) for _ in range(2)]
    first, second = (app.authentication.start_token for app in apps)
    assert first.startswith("tr_")
    assert first != second
    assert first not in repr(apps[0].authentication)
    for app in apps:
        await app.aclose()
