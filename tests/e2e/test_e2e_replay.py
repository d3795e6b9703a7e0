"""``toolrelay replay`` and ``toolrelay record --mode`` as commands, with the ``openai`` package for Node."""

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import openai
from chat_script import reply
from e2e_packages import run_node
from e2e_process import clean_environment, serving
from fixture_loader import FIXTURES
from fixture_maker import chat_stream, write_fixture
from raw_upstream import RawUpstream

COMMAND = [sys.executable, "-m", "proxy"]
GPT = "gpt-4o-mini"
HI: list[Any] = [{"role": "user", "content": "Hi"}]


async def test_openai_for_node_is_answered_from_fixtures(scripts: Path, tmp_path: Path) -> None:
    """A stream and a miss, read by another program in another language; SIGTERM ends the command with 0."""
    write_fixture(tmp_path / "hi", {"model": GPT, "messages": HI, "stream": True}, chat_stream("Hel", "lo."))
    command = [*COMMAND, "replay", str(tmp_path), "--port", "0", "--speed", "0"]
    with serving(command, tmp_path, clean_environment(tmp_path / "home")) as server:
        address = server.read_until(r"listens on (\S+)")[1]
        server.read_until("OLLAMA_HOST")
        cases = [
            {"name": name, "request": {"model": GPT, "messages": [{"role": "user", "content": text}]}}
            for name, text in (("hit", "Hi"), ("miss", "Hi there"))
        ]
        hit, miss = await run_node(scripts / "read_streams.mjs", {"baseURL": f"{address}/v1", "cases": cases})
        assert hit["raw"]["text"] == hit["together"]["text"] == "Hello."
        assert (miss["raw"]["error"], miss["raw"]["code"]) == ("NotFoundError", "no_fixture")
        assert "Hi{+ there+}" in miss["raw"]["message"]
        status, _, err = server.stop()
        assert status == 0
        assert "Hi{+ there+}" in err


async def test_once_asks_for_what_is_new_and_replay_never_asks(tmp_path: Path) -> None:
    """The second request of one kind is answered from the folder; with --mode replay a new one is a 404."""
    out, env = tmp_path / "recorded", clean_environment(tmp_path / "home")
    secret = "acct_hunter22"
    async with RawUpstream(reply("Hello, acct_hunter22."), reply("Bye.")) as upstream:
        command = [*COMMAND, "record", "--upstream", upstream.url, "--out", str(out), "--open", "--port", "0"]
        with serving([*command, "--mode", "once", "--scrub", "acct_*"], tmp_path, env) as server:
            address = server.read_until(r"listens on (\S+)/v1")[1]
            answers = [await asked(address, f"Hi, I am {secret}.") for _ in range(2)]
            server.stop()
        assert len(upstream.requests) == 1
        assert [status for status, _ in answers] == [200, 200]
        with serving([*command, "--mode", "once", "--scrub", "acct_*"], tmp_path, env) as server:
            address = server.read_until(r"listens on (\S+)/v1")[1]
            assert "Hello, [redacted]" in (await asked(address, f"Hi, I am {secret}."))[1]
            assert "Bye." in (await asked(address, "Bye"))[1]
            server.stop()
        assert len(upstream.requests) == 2
    files = [file for file in out.rglob("*") if file.is_file()]
    assert len([file for file in files if file.name == "meta.toml"]) == 2
    assert not [file for file in files if "hunter22" in file.read_text()]
    replaying = [*COMMAND, "record", "--out", str(out), "--mode", "replay", "--open", "--port", "0"]
    with serving([*replaying, "--scrub", "acct_*"], tmp_path, env) as server:
        address = server.read_until(r"listens on (\S+)/v1")[1]
        assert (await asked(address, f"Hi, I am {secret}."))[0] == 200
        status, body = await asked(address, "Good morning")
        assert (status, json.loads(body)["error"]["code"]) == (404, "no_fixture")


async def asked(address: str, text: str) -> tuple[int, str]:
    """Status and body of the answer to a question."""
    body = {"model": GPT, "messages": [{"role": "user", "content": text}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}/v1/chat/completions", json=body) as response,
    ):
        return response.status, await response.text()


async def test_the_fixtures_of_this_project_answer_their_own_clients(tmp_path: Path) -> None:
    """The demo's client gets the text of its recording, with the recorded pauses left out."""
    command = [*COMMAND, "replay", str(FIXTURES / "demo"), "--port", "0", "--speed", "0"]
    recorded = json.loads((FIXTURES / "demo" / "plain" / "client" / "request.json").read_text())
    with serving(command, tmp_path, clean_environment(tmp_path / "home")) as server:
        address = server.read_until(r"listens on (\S+)")[1]
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused") as client:
            stream = await client.chat.completions.create(**{**recorded, "stream": True})
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert "river" in text.lower()
