"""Fixtures as a model provider: which changes of a request count, and how a miss is shown."""

import base64
import copy
import json
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from fixture_maker import chat_reply, message_reply, ollama_reply, write_fixture

from proxy.base.errors import ConfigError
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.recorded.replay import ReplayUpstream
from proxy.upstreams.recorded.scrubbing import Scrubbing

PIXEL = base64.b64encode(bytes(range(60)) * 3).decode()
OTHER_PIXEL = base64.b64encode(bytes(range(60)) * 2 + bytes(60)).decode()


def tool(name: str, description: str = "d") -> dict[str, Any]:
    """A declared function."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


CHAT: dict[str, Any] = {
    "model": "gpt-4o-mini",
    "messages": [
        {
            "role": "system",
            "content": "Today is 2026-11-21, 14:05. Request 3 of 7. Be brief and answer in French.",
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is on this picture?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        },
    ],
    "tools": [tool("weather"), tool("news")],
}
MESSAGES: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "weather",
                    "input": {"city": "Rome", "days": 2},
                },
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "18"}]},
    ],
}
RESPONSES: dict[str, Any] = {"model": "gpt-4o-mini", "instructions": "Be brief.", "input": "Hi"}
OLLAMA: dict[str, Any] = {
    "model": "qwen3:8b",
    "stream": False,
    "messages": [{"role": "user", "content": "Hi", "images": [PIXEL]}],
}
PATHS = {
    "chat": "/chat/completions",
    "anthropic": "/messages",
    "responses": "/responses",
    "ollama": "/api/chat",
}
ANSWERS: dict[str, Any] = {
    "chat": chat_reply("Un chat."),
    "anthropic": message_reply("18 degrees."),
    "responses": {"id": "resp_recorded1", "object": "response", "output": []},
    "ollama": ollama_reply("A pixel."),
}
REQUESTS = {"chat": CHAT, "anthropic": MESSAGES, "responses": RESPONSES, "ollama": OLLAMA}
ALL_MAY_DIFFER = '[match]\nmay_differ = ["dates", "times", "ids", "numbers"]\n'


async def asked(folder: Path, wire: str, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to a request."""
    upstream = ReplayUpstream([folder], fresh_ids=False, as_provider=True, **options)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await upstream.open(UpstreamRequest("POST", PATHS[wire], body=raw))
    return response.status, json.loads(await response.read(1 << 20))


def reversed_keys(value: Any) -> Any:
    """The same JSON with the members of each object in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(one) for one in value] if isinstance(value, list) else value


def changed(request: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """A copy of a request after a change."""
    made = copy.deepcopy(request)
    change(made)
    return made


SAME: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "tools in another order": ("chat", lambda r: r["tools"].reverse()),
    "a temperature": ("chat", lambda r: r.update(temperature=0.3)),
    "a name of a user": ("chat", lambda r: r.update(user="u1")),
    "a text as one part": (
        "chat",
        lambda r: r["messages"][0].update(content=[{"type": "text", "text": r["messages"][0]["content"]}]),
    ),
    "other ids of calls": (
        "anthropic",
        lambda r: (
            r["messages"][1]["content"][1].update(id="toolu_9"),
            r["messages"][2]["content"][0].update(tool_use_id="toolu_9"),
        ),
    ),
    "another result": ("anthropic", lambda r: r["messages"][2]["content"][0].update(content="19")),
    "a mark for a cache": (
        "anthropic",
        lambda r: r["messages"][1]["content"][0].update(cache_control={"type": "ephemeral"}),
    ),
    "a plain system prompt": ("anthropic", lambda r: r.update(system="Be brief.")),
    "an input of one message": (
        "responses",
        lambda r: r.update(input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]),
    ),
}


@pytest.mark.parametrize("name", SAME)
async def test_a_change_that_means_nothing_is_answered(tmp_path: Path, name: str) -> None:
    """The order of tools, ids, results, spellings and sampling do not count."""
    wire, change = SAME[name]
    write_fixture(tmp_path / "one", REQUESTS[wire], ANSWERS[wire], wire=wire)
    assert await asked(tmp_path, wire, changed(REQUESTS[wire], change)) == (200, ANSWERS[wire])


@pytest.mark.parametrize("wire", REQUESTS)
async def test_the_order_of_keys_does_not_count(tmp_path: Path, wire: str) -> None:
    """JSON with its members in another order, and other white space, is the same request."""
    write_fixture(tmp_path / "one", REQUESTS[wire], ANSWERS[wire], wire=wire)
    body = json.dumps(reversed_keys(REQUESTS[wire]), indent=3).encode()
    assert await asked(tmp_path, wire, body) == (200, ANSWERS[wire])


OTHER: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "one word of the prompt": (
        "chat",
        lambda r: r["messages"][0].update(content=r["messages"][0]["content"].replace("French", "Dutch")),
        "messages[0] (system)\n  …  7. Be brief and answer in [-French-]{+Dutch+}.",
    ),
    "a byte of an image": (
        "chat",
        lambda r: r["messages"][1]["content"][1]["image_url"].update(
            url=f"data:image/png;base64,{OTHER_PIXEL}"
        ),
        "image/png of 180 bytes, sha256",
    ),
    "a byte of an image of Ollama": (
        "ollama",
        lambda r: r["messages"][0].update(images=[OTHER_PIXEL]),
        "data of 180 bytes, sha256",
    ),
    "the description of a tool": (
        "chat",
        lambda r: r["tools"][0]["function"].update(description="changed"),
        "tool weather\n",
    ),
    "one tool less": ("chat", lambda r: r["tools"].pop(), 'tool news\n  - {"function"'),
    "no tools": ("chat", lambda r: r.pop("tools"), 'tool weather\n  - {"function"'),
    "one message more": (
        "chat",
        lambda r: r["messages"].insert(1, {"role": "user", "content": "Wait."}),
        'messages[1] (user)\n  + {"content":"Wait.","role":"user"}',
    ),
    "instructions": ("responses", lambda r: r.update(instructions="Be long."), "Be [-brief-]{+long+}."),
    "a system prompt": ("anthropic", lambda r: r.update(system="Be long."), "Be [-brief-]{+long+}."),
    "arguments of an earlier call": (
        "anthropic",
        lambda r: r["messages"][1]["content"][1]["input"].update(city="Oslo"),
        '"[-Rome-]{+Oslo+}"',
    ),
    "the model": ("responses", lambda r: r.update(model="gpt-4o"), "model\n"),
    "a date": (
        "chat",
        lambda r: r["messages"][0].update(content=r["messages"][0]["content"].replace("11-21", "11-22")),
        "2026-11-[-21-]{+22+}",
    ),
}


@pytest.mark.parametrize("name", OTHER)
async def test_another_request_is_a_miss_that_shows_the_words(tmp_path: Path, name: str) -> None:
    """A changed prompt, image, tool, or model is a 404 whose message shows what changed, and where."""
    wire, change, shown = OTHER[name]
    write_fixture(tmp_path / "one", REQUESTS[wire], ANSWERS[wire], wire=wire)
    missed: list[str] = []
    status, body = await asked(tmp_path, wire, changed(REQUESTS[wire], change), missed=missed.append)
    said = body["error"] if wire == "ollama" else body["error"]["message"]
    assert status == 404
    assert said.startswith("no fixture answers this request; the nearest is one turn-1, which differs at ")
    assert shown in said
    assert missed == [said]
    assert PIXEL not in said


@pytest.mark.parametrize(
    "said",
    [
        "Today is 2027-01-02, 09:30. Request 4 of 12.",
        "Today is 2 January 2027, 9:30 am. Request 4 of 12.",
        "Today is Saturday, January 2nd, 2027, 09:30:15.123Z. Request 4 of 12.",
    ],
)
async def test_what_match_says_may_differ(tmp_path: Path, said: str) -> None:
    """Dates, times and numbers may differ if meta.toml says so; the words around them may not."""
    write_fixture(tmp_path / "one", CHAT, ANSWERS["chat"], match=ALL_MAY_DIFFER)
    later = changed(CHAT, lambda r: r["messages"][0].update(content=f"{said} Be brief and answer in French."))
    assert (await asked(tmp_path, "chat", later))[0] == 200
    other = changed(later, lambda r: r["messages"][0].update(content=f"{said} Be brief and answer in Dutch."))
    assert (await asked(tmp_path, "chat", other))[0] == 404


async def test_of_several_fixtures_the_nearest_is_shown(tmp_path: Path) -> None:
    """The nearest fixture is that with the most similar message, not the first one."""
    for name, text in (("cats", "Write about cats."), ("dogs", "Write about dogs and cows.")):
        ask = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
        write_fixture(tmp_path / name, ask, ANSWERS["chat"])
    ask = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Write about dogs and hens."}]}
    _, body = await asked(tmp_path, "chat", ask)
    assert "the nearest is dogs turn-1" in body["error"]["message"]
    assert "[-cows-]{+hens+}" in body["error"]["message"]


async def test_the_client_of_a_recording_is_answered_as_it_was(tmp_path: Path) -> None:
    """A client that used server tools gets its own answer again, although its upstream had other turns."""
    mine = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What time is it?"}]}
    folder = write_fixture(tmp_path / "one", {**mine, "tools": [tool("core__clock")]}, chat_reply("hidden"))
    (folder / "client").mkdir()
    (folder / "client" / "request.json").write_text(json.dumps(mine))
    (folder / "client" / "response.json").write_text(json.dumps(chat_reply("It is noon.")))
    assert await asked(tmp_path, "chat", mine) == (200, chat_reply("It is noon."))
    status, body = await asked(tmp_path, "chat", {**mine, "tools": [tool("core__clock")]})
    assert (status, body["choices"][0]["message"]["content"]) == (200, "hidden")


async def test_ollama_streams_unless_it_is_told_not_to(tmp_path: Path) -> None:
    """A request of Ollama without the member ``stream`` wants a stream."""
    lines = b'{"model":"qwen3:8b","message":{"role":"assistant","content":"Hi"},"done":true}\n'
    ask = {"model": "qwen3:8b", "messages": [{"role": "user", "content": "Hi"}]}
    write_fixture(tmp_path / "one", ask, lines, wire="ollama")
    upstream = ReplayUpstream([tmp_path], as_provider=True)
    response = await upstream.open(UpstreamRequest("POST", "/api/chat", body=json.dumps(ask).encode()))
    assert (response.status, await response.read(1 << 16)) == (200, lines)
    assert (await asked(tmp_path, "ollama", {**ask, "stream": False}))[0] == 404


async def test_a_request_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    """Neither a long chain of lists nor one of objects ends the server."""
    write_fixture(tmp_path / "one", CHAT, ANSWERS["chat"], match=ALL_MAY_DIFFER)
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deep = f"{opening * 900}1{closing * 900}"
        body = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":%b}]}' % deep.encode()
        status, said = await asked(tmp_path, "chat", body)
        assert status in (400, 404), said


async def test_a_secret_is_compared_as_it_was_saved(tmp_path: Path) -> None:
    """A request that contains a key finds the fixture in which the key was replaced."""
    key = "sk-proj-0123456789abcdefghij"
    ask = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"Is {key} a key of acct_77?"}]}
    scrubbing = Scrubbing(scrub=["acct_*"])
    saved = json.loads(scrubbing.clean(json.dumps(ask).encode()))
    assert saved["messages"][0]["content"] == "Is [redacted] a key of [redacted]"
    write_fixture(tmp_path / "one", saved, ANSWERS["chat"])
    assert (await asked(tmp_path, "chat", ask, clean=scrubbing.clean))[0] == 200
    assert (await asked(tmp_path, "chat", ask))[0] == 404


def test_a_fixture_cannot_name_another_file(tmp_path: Path) -> None:
    """A symbolic link in a fixture is refused: it could make a test serve any file of its machine."""
    folder = write_fixture(tmp_path / "one", CHAT, ANSWERS["chat"])
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (folder / "turn-1" / "response.json").unlink()
    (folder / "turn-1" / "response.json").symlink_to(secret)
    with pytest.raises(ConfigError, match="symbolic link"):
        ReplayUpstream([tmp_path], as_provider=True)


@pytest.mark.parametrize("name", ["turn-1", "client"])
def test_a_fixture_cannot_name_another_folder(name: str, tmp_path: Path) -> None:
    """A symbolic link in place of a folder is refused, too."""
    folder = write_fixture(tmp_path / "fixtures" / "one", CHAT, ANSWERS["chat"])
    elsewhere = write_fixture(tmp_path / "elsewhere", CHAT, ANSWERS["chat"]) / "turn-1"
    for file in (folder / name).glob("*"):
        file.unlink()
    if (folder / name).is_dir():
        (folder / name).rmdir()
    (folder / name).symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(ConfigError, match="symbolic link"):
        ReplayUpstream([tmp_path / "fixtures"], as_provider=True)


@pytest.mark.parametrize(("bound", "most"), [("MOST_BYTES", 1500), ("MOST_TURNS", 1)])
def test_a_folder_that_is_too_large_is_refused(
    bound: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of requests count like those of answers, before they are read."""
    monkeypatch.setattr(f"proxy.upstreams.recorded.fixtures.{bound}", most)
    for name in ("one", "two"):
        write_fixture(tmp_path / name, CHAT, b"{}")
    with pytest.raises(ConfigError, match="Name a folder with fewer fixtures"):
        ReplayUpstream([tmp_path], as_provider=True)


DEEP: Any = json.loads("[" * 300 + "]" * 300)


@pytest.mark.parametrize(
    "ask",
    [
        {"model": "m", "messages": [{"role": "user", "content": DEEP}]},
        {"model": "m", "messages": [{"role": "tool", "content": DEEP}]},
        {"model": "m", "messages": [], "tools": [{"x": DEEP}]},
    ],
)
async def test_a_request_that_cannot_be_written_is_refused(tmp_path: Path, ask: dict[str, Any]) -> None:
    """JSON can be read deeper than it can be written, for a comparison or a message: 400 says why."""
    write_fixture(tmp_path / "one", CHAT, ANSWERS["chat"])
    status, said = await asked(tmp_path, "chat", ask)
    assert (status, "nested too deeply" in str(said)) == (400, True)


def test_a_fixture_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    """The error says which fixture it is."""
    write_fixture(tmp_path / "one", {"model": "m", "tools": [{"x": DEEP}]}, ANSWERS["chat"])
    with pytest.raises(ConfigError, match="one turn-1: its request is nested too deeply"):
        ReplayUpstream([tmp_path], as_provider=True)


async def test_a_miss_of_long_texts_is_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that stand everywhere, such as spaces, are no anchors: with them, this takes over ten seconds."""
    compared: list[int] = []
    longest = SequenceMatcher.find_longest_match

    def counted(self: Any, *bounds: int) -> Any:
        compared.append(bounds[1] - bounds[0])
        return longest(self, *bounds)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", counted)
    recorded, given = (
        {"model": "m", "messages": [{"role": "user", "content": f"{word} " * 750}]} for word in ("a", "b")
    )
    write_fixture(tmp_path / "one", recorded, ANSWERS["chat"])
    assert (await asked(tmp_path, "chat", given))[0] == 404
    assert len(compared) < 50


async def test_a_fixture_cannot_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of a thousand years is one of a minute."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("proxy.upstreams.recorded.replay.asyncio.sleep", sleep)
    ask = {"model": "m", "messages": [], "stream": True}
    write_fixture(tmp_path / "one", ask, b"data: {}\n\n", pieces=[(3e13, 10)])
    upstream = ReplayUpstream([tmp_path], as_provider=True, pace=1.0)
    response = await upstream.open(
        UpstreamRequest("POST", "/chat/completions", body=json.dumps(ask).encode())
    )
    assert await response.read(100) == b"data: {}\n\n"
    assert waited == [60.0]
