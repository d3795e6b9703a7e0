"""Strict doubles of models of real providers: each refuses what its provider refuses, and uses tools."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from image_model import ImageModel
from pair_kits import SPEAKERS, Call, Got, Turn
from recorded_answers import Asked, Given, Scripted
from running_proxy import Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.toolbox.demo.recorded import RecordedHttpClient
from proxy.tools.contract.capabilities import TextPage
from proxy.upstreams.recorded.replay import packaged_fixtures

ANSWER = "It is noon."
SEARCHING: Mapping[str, Any] = MappingProxyType(
    {
        "web_search": "searxng",
        "base_urls": {"web_search": "https://search.example"},
        "hosted": {"web_search": "web__search"},
    }
)
"""The settings of tools with which the proxy searches the web as the demo does."""
FETCHING: Mapping[str, Any] = MappingProxyType(
    {
        **SEARCHING,
        "web_hosts": ["*"],
        "hosted": {**SEARCHING["hosted"], "web_fetch": "web__fetch_page"},
    }
)
"""The same, with pages of any host."""
SEARCH = {"query": "rivers in Berlin"}
"""The search whose answer is recorded."""


def without_numbers(result: str) -> str:
    """Return the result of a search without the numbers by which its pages are cited."""
    return re.sub(r',"cite_as":"【\d+】"', "", result)


@dataclass(frozen=True)
class Served:
    """A model of a provider: ``rules`` are those of its double, ``profile`` whose API the proxy is told.

    ``call_id`` is the form of its ids of calls. ``thinks`` says that it reasons before it answers.
    """

    rules: str
    profile: str
    wire: str
    model: str
    call_id: str = "call_{:024}"
    thinks: bool = False


_OPENAI, _CLAUDE = ("openai", "openai"), ("anthropic", "anthropic", "anthropic")
SERVED: Mapping[str, Served] = {
    one.model: one
    for one in (
        Served(*_OPENAI, "chat", "gpt-4o-mini"),
        Served(*_OPENAI, "chat", "gpt-5"),
        Served("openai-responses", "openai", "responses", "gpt-4o-mini-2024-07-18"),
        Served("openai-responses", "openai", "responses", "gpt-5-2025-08-07", thinks=True),
        Served("mistral", "mistral", "chat", "mistral-large-latest", "c{:08}"),
        Served("mistral", "mistral", "chat", "mistral-small-latest", "c{:08}"),
        Served(*_CLAUDE, "claude-3-5-haiku-20241022", "toolu_{:024}"),
        Served(*_CLAUDE, "claude-opus-4-7", "toolu_{:024}", thinks=True),
        Served("ollama", "ollama", "ollama", "llama3.2", "call_{:08}"),
        Served("ollama", "ollama", "ollama", "qwen3", "call_{:08}", thinks=True),
    )
}
"""By model, with reasoning and without: OpenAI over both of its APIs, Mistral, Anthropic, Ollama."""


class ProviderModel(Scripted):
    """A model that makes those of ``calls`` that it is offered, all at once, and answers after the results.

    ``calls`` maps names of tools to their arguments.
    """

    def __init__(self, served: Served, calls: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(self._say)
        self.served = served
        self.provider = served.rules
        self.speaker = SPEAKERS[served.wire]
        self._calls = calls
        self.answer = ANSWER
        self.quotes = ""
        """A text with which it answers once it has read it, also in a result."""
        self.then: list[Mapping[str, Mapping[str, Any]]] = []
        """The calls of later turns, before the answer."""
        self.repeats = 1
        """How often it makes each call, unless ``often`` says it for the tool."""
        self.often: dict[str, int] = {}
        self._made = 0
        self._items: dict[str, Any] = {}

    def _got(self, asked: Asked) -> Got:
        """Read a request, with the items of Responses to which it only refers."""
        body = asked.payload
        if isinstance(given := body.get("input"), list):
            body = {**body, "input": [self._items.get(str(item.get("id")), item) for item in given]}
        return self.speaker.got(body)

    def _say(self, asked: Asked) -> Given:
        got = self._got(asked)
        last = max((at for at, one in enumerate(got.messages) if one.role == "user"), default=0)
        has_results = any(one.role == "tool" for one in got.messages[last:])
        made = self._calls if not has_results else self.then.pop(0) if self.then else {}
        forbidden = asked.payload.get("tool_choice") in ("none", {"type": "none"})
        wanted = [name for name in made if name in got.tools and not forbidden]
        calls = tuple(
            Call(self._next_id(), name, made[name])
            for name in wanted
            for _ in range(self.often.get(name, self.repeats))
        )
        read = self.quotes and any(self.quotes in one.text for one in got.messages)
        said = self.quotes if read else self.answer
        thought = "Let me see." if self._thinks(asked) else ""
        turn = Turn("" if calls else said, calls, thought=thought, id=str(len(self.asked)))
        reply = self.speaker.reply(turn)
        self._items |= {item["id"]: item for item in reply.get("output") or ()}
        if asked.payload.get("stream", self.served.wire == "ollama"):
            return Given(content_type=self.speaker.content_type, pieces=self.speaker.events(turn))
        return Given(json.dumps(reply).encode())

    def _next_id(self) -> str:
        self._made += 1
        return self.served.call_id.format(self._made)

    def _thinks(self, asked: Asked) -> bool:
        """Ollama's models think unless they are told not to, Claude only if it is told to."""
        if self.served.wire == "anthropic":
            wished = (asked.payload.get("thinking") or {}).get("type", "disabled") != "disabled"
        else:
            wished = asked.payload.get("think") is not False
        return self.served.thinks and wished

    @property
    def results(self) -> Sequence[str]:
        """The results of calls that the last request brought."""
        return list(self._got(self.asked[-1]).results.values())

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


class RecordedPages(RecordedHttpClient):
    """The demo's recorded answers, and these pages of plain text."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        super().__init__(packaged_fixtures() / "http")
        self._pages = pages

    async def get_text(self, url: str) -> TextPage:
        if url not in self._pages:
            return await super().get_text(url)
        return TextPage(url, "text/plain", self._pages[url])


@asynccontextmanager
async def serving_models(
    calls: Mapping[str, Mapping[str, Any]],
    also: Mapping[str, str] = MappingProxyType({}),
    *,
    native: Sequence[str] | None = None,
    hosts_search: bool = False,
    pages: Mapping[str, str] | None = None,
    http: "RecordedPages | None" = None,
    tools: Mapping[str, Any] | None = None,
    images: ImageModel | None = None,
    **sections: Any,
) -> AsyncIterator[tuple[Proxy, Mapping[str, ProviderModel]]]:
    """Run a proxy with the probe tools in front of all models, each of which makes these calls.

    ``also`` are further names that clients use, each with the name of its model; ``native`` are the types of
    tools that all of them are said to know. With ``hosts_search`` the proxy runs the provider's search that
    clients declare, with the recorded answers of the demo. With ``pages``, texts by their addresses, it also
    fetches pages, with ``http`` in its own way. ``tools`` are the settings of tools in place of those,
    ``sections`` further settings. ``images`` is an upstream that makes the images of the tool that clients
    declare.
    """
    models = {name: ProviderModel(served, calls) for name, served in SERVED.items()}
    tables = [
        {
            "name": f"u{at}",
            "base_url": "http://127.0.0.1:9/v1",
            "wires": (served.wire,),
            "models": {name: name, **{other: name for other, model in also.items() if model == name}},
            "profile": {"provider": served.profile},
            **({} if native is None else {"native": native}),
        }
        for at, (name, served) in enumerate(SERVED.items())
    ]
    waiting = iter([*models.values(), *([] if images is None else [images])])
    allow = ("core__*", "probe_tools__*", *(["web__search"] if hosts_search else []))
    tools = tools or (FETCHING if pages is not None else SEARCHING if hosts_search else None)
    allow = (*allow, *(["web__fetch_page"] if pages is not None else []))
    if images is not None:
        tables.append({"name": "images", "base_url": "http://127.0.0.1:9/v1", "models": ("gpt-image-*",)})
        tools = tools or {"hosted": {"image_generation": f"upstream:images/{images.model}"}}
        allow = (*allow, "images__generate")
    config = make_config(*tables, allow=allow, modules=("probe_tools",), tools=tools, **sections)
    client = (http or RecordedPages(pages or {})).client if hosts_search else None
    async with running(config, Overrides(wrap_upstream=lambda _: next(waiting), http=client)) as proxy:
        yield proxy, models
