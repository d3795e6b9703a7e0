"""Client keys with the installed command, the official client and two servers on one record."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai
import pytest
from e2e_process import clean_environment, run, serving
from fixture_loader import FIXTURES
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from store_postgres import SERVER, fetch, need_postgres

TOOLRELAY = str(Path(sys.executable).with_name("toolrelay"))
MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m"
WEATHER = "What is the weather in Berlin?"
QUESTION = "What time is it in Berlin, and what is the weather there?"
CONFIG = f"""
[server]
port = 0
[upstreams.recorded]
base_url = "replay:{FIXTURES / "demo"}"
wires = ["chat"]
[policy]
allow = ["core__*"]
[store]
url = "%s"
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A new user's environment."""
    return clean_environment(tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to start commands in."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, folder: Path, env: dict[str, str]) -> AsyncIterator[str]:
    """Write a configuration whose record two servers share; yield the kind of its store."""
    if request.param == "sqlite":
        (folder / "toolrelay.toml").write_text(CONFIG % "sqlite:///shared.db")
        yield "sqlite"
        return
    need_postgres()
    name = f"toolrelay_e2e_{time.time_ns():x}"
    await fetch(SERVER, f"CREATE SCHEMA {name}")
    (folder / "toolrelay.toml").write_text(CONFIG % f"{SERVER}?search_path={name}")
    try:
        yield "postgres"
    finally:
        await fetch(SERVER, f"DROP SCHEMA {name} CASCADE")


def client_of(address: str, key: str) -> OpenAI:
    """The SDK as a user makes it; nothing is retried in a test."""
    return OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


def models_of(address: str, key: str) -> list[str]:
    """Return the models that a key can list."""
    with client_of(address, key) as client:
        return sorted(model.id for model in client.models.list())


def refused(use: Callable[[], object], kind: type[openai.APIStatusError]) -> openai.APIStatusError:
    """Return the error of a call, which must be of exactly this class."""
    with pytest.raises(kind) as caught:
        use()
    assert type(caught.value) is kind
    return caught.value


def test_a_revoked_key_is_out_on_every_server(place: str, folder: Path, env: dict[str, str]) -> None:
    """Two servers accept a key that another process made, and refuse it after its revocation."""
    first = run([TOOLRELAY, "keys", "create", "first"], folder, env).strip()
    with ExitStack() as stack:
        servers = [stack.enter_context(serving([TOOLRELAY, "serve"], folder, env)) for _ in range(2)]
        addresses = [server.read_until(r"listens on (\S+)/v1")[1] for server in servers]
        for server in servers:
            server.read_until(r"auth: keys; 1 client key valid: first")
        second = run([TOOLRELAY, "keys", "create", "second"], folder, env).strip()
        for address in addresses:
            for key in (first, second):
                assert MODEL in models_of(address, key)
            error = refused(partial(models_of, address, "sk-nobody"), openai.AuthenticationError)
            assert error.code == "invalid_api_key"
        run([TOOLRELAY, "keys", "revoke", "second"], folder, env)
        for address in addresses:
            if place == "postgres":
                # With PostgreSQL, a server may learn of it a moment after the command has ended.
                while _served(address, second):
                    time.sleep(0.001)
            refused(partial(models_of, address, second), openai.AuthenticationError)
            assert MODEL in models_of(address, first)
        run([TOOLRELAY, "keys", "revoke", "first"], folder, env)
        for address in addresses:
            while place == "postgres" and _served(address, first):
                time.sleep(0.001)
            error = refused(partial(models_of, address, first), openai.InternalServerError)
            assert (error.status_code, error.code) == (503, "no_client_keys")
        shown = "".join(line for server in servers for line in (*server.printed, *server.stop()[1:]))
    for key in (first, second):
        assert key not in shown


def _served(address: str, key: str) -> bool:
    try:
        models_of(address, key)
    except (openai.AuthenticationError, openai.InternalServerError):
        return False
    return True


@pytest.fixture
def served(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """A server that replays recordings and requires client keys."""
    (folder / "toolrelay.toml").write_text(CONFIG % "sqlite:///toolrelay.db" + '[auth]\nmode = "keys"\n')
    with serving([TOOLRELAY, "serve"], folder, env) as server:
        yield server.read_until(r"listens on (\S+)/v1")[1]
        assert "Traceback" not in "".join(server.stop()[1:])


def test_the_official_client_with_a_key(served: str, folder: Path, env: dict[str, str]) -> None:
    """A key allows runs with tools, only its own models, and tokens, which end with the key."""
    error = refused(lambda: models_of(served, "unused"), openai.InternalServerError)
    assert error.code == "no_client_keys"
    keys = {
        name: run([TOOLRELAY, "keys", "create", name, *words], folder, env).strip()
        for name, words in (("ann", ["--mint"]), ("bob", ["--models", "nothing*"]))
    }
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    with client_of(served, keys["ann"]) as ann, client_of(served, keys["bob"]) as bob:
        stream = ann.chat.completions.create(model=MODEL, messages=messages, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert "Berlin" in text
        assert models_of(served, keys["bob"]) == []
        refused(lambda: bob.chat.completions.create(model=MODEL, messages=messages), openai.NotFoundError)
        refused(lambda: ann.files.list(), openai.PermissionDeniedError)
        foreign = refused(lambda: bob.responses.retrieve("resp_1"), openai.NotFoundError)
        own = refused(lambda: ann.responses.retrieve("resp_1"), openai.NotFoundError)
        assert foreign.body == own.body
        token = ann.post("/toolrelay/tokens", cast_to=dict[str, object], body={"subject": "a page"})["token"]
    with client_of(served, str(token)) as page:
        answer = page.chat.completions.create(model=MODEL, messages=messages)
        assert "Berlin" in (answer.choices[0].message.content or "")
    run([TOOLRELAY, "keys", "revoke", "ann"], folder, env)
    refused(lambda: models_of(served, str(token)), openai.AuthenticationError)


def test_a_foreign_response_is_not_there(served: str, folder: Path, env: dict[str, str]) -> None:
    """A response can be read, continued and deleted only with the key that created it."""
    ann, bob = (run([TOOLRELAY, "keys", "create", name], folder, env).strip() for name in ("ann", "bob"))
    with client_of(served, ann) as mine, client_of(served, bob) as theirs:
        events = mine.responses.create(model=MODEL, input=WEATHER, stream=True)
        (made,) = [event.response for event in events if event.type == "response.completed"]
        assert mine.responses.retrieve(made.id).id == made.id
        refused(lambda: theirs.responses.retrieve(made.id), openai.NotFoundError)
        refused(lambda: theirs.responses.delete(made.id), openai.NotFoundError)
        refused(
            lambda: theirs.responses.create(
                model=MODEL, input="And?", previous_response_id=made.id, stream=True
            ),
            openai.NotFoundError,
        )
        mine.responses.delete(made.id)
        refused(lambda: mine.responses.retrieve(made.id), openai.NotFoundError)
