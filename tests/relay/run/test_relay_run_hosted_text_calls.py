"""A provider's search on models that write their calls into their text, in all pairs of dialects."""

import json
from typing import Any

import pytest
from provider_models import SEARCH, SEARCHING, RecordedPages
from raw_upstream import RawUpstream
from running_proxy import Answer, make_config, running
from text_call_rig import PATHS, WIRES, ask, behind, say, understood

from proxy.app.app import Overrides

CLIENTS = ("chat", "responses", "anthropic")
"""The dialects whose clients can declare a search."""
SEARCHES: dict[str, dict[str, Any]] = {
    "chat": {"web_search_options": {}},
    "responses": {"tools": [{"type": "web_search"}], "store": True},
    "anthropic": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
}
CALL = f"<tool_call>\n{json.dumps({'name': 'web_search', 'arguments': SEARCH})}\n</tool_call>"
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>'
PAGES = ["https://en.wikipedia.org/wiki/Spree_(river)", "https://en.wikipedia.org/wiki/Havel"]
LINKED = f"\U0001f30a The [Spree]({PAGES[0]}) and one more 【2】."
WHOLE = f"\U0001f30a The [Spree]({PAGES[0]}) and one more [[2]]({PAGES[1]})."


def cited(answer: Answer, *, stream: bool) -> list[str]:
    """Return the addresses of all citations, in their order."""
    if not stream:
        parts = [answer.json]
    else:
        lines = [line.removeprefix(b"data: ") for line in answer.body.splitlines()]
        parts = [json.loads(line) for line in lines if line[:1] == b"{"]
        if parts[-1].get("type") == "response.completed":
            parts = parts[-1:]
    return [url for part in parts for url in _urls(part)]


def _urls(part: Any) -> list[str]:
    if isinstance(part, list):
        return [url for one in part for url in _urls(one)]
    if not isinstance(part, dict):
        return []
    if part.get("type") in ("url_citation", "web_search_result_location"):
        return [part["url_citation"]["url"] if "url_citation" in part else part["url"]]
    return [url for one in part.values() for url in _urls(one)]


@pytest.mark.parametrize("mode", ["native", "prompt"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
@pytest.mark.parametrize(
    ("client", "upstream"), [(client, upstream) for client in CLIENTS for upstream in WIRES]
)
async def test_citations(client: str, upstream: str, stream: bool, mode: str) -> None:
    """Links and markers are citations, also where the upstream speaks the client's dialect. A call of the
    client's tool behind them is still found."""
    asked = ask(client, stream=stream)
    more = SEARCHES[client]
    asked |= {**more, "tools": [*asked["tools"], *more.get("tools", ())]}
    texts = (CALL, LINKED, f"{LINKED}\n{WEATHER}")
    scripts = [say(upstream, text, stream=stream) for text in texts]
    async with RawUpstream(*scripts) as server:
        served = {
            "base_url": server.url,
            "wires": (upstream,),
            "text_calls": "hermes",
            "tools": mode,
            "native": (),
        }
        config = make_config(served, tools=SEARCHING, allow=("web__search",))
        async with running(config, Overrides(http=RecordedPages({}).client)) as proxy:
            answer = await proxy.ask(asked, path=PATHS[client])
            said = understood(client, answer, stream=stream)
            assert said.text == WHOLE
            assert cited(answer, stream=stream) == PAGES
            assert not said.calls
            again = behind(client, {**asked, "stream": stream}, answer, {})
            turn = {"role": "user", "content": "And the weather there?"}
            name = "input" if client == "responses" else "messages"
            again[name] = [*again[name], turn]
            for message in again[name]:
                if message.get("tool_calls") == []:
                    del message["tool_calls"]
            again[name] = [message for message in again[name] if message.get("content") != []]
            last = await proxy.ask(again, path=PATHS[client])
    said = understood(client, last, stream=stream)
    assert said.text.strip() == WHOLE
    assert cited(last, stream=stream) == PAGES
    assert said.calls == [("get_weather", {"city": "Berlin"})]
