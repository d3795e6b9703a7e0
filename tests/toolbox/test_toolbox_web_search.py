"""``web__search`` over real HTTP, against the bodies that each engine documents, and hostile ones.

Sources of the bodies: SearXNG's page "Search API" and its JSON output; Brave's reference "Web search";
Tavily's and Exa's references "Search". They are written by hand in the documented shape.
"""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from local_service import Answer, Asked, Connection, Service, local_service, use
from yarl import URL

from proxy.base.errors import ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.web.engines import ENGINES, TOKEN_HEADERS
from proxy.toolbox.web.provider import web_provider
from proxy.tools.access.credentials import CredentialBroker, StaticToken
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import fits_domain
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.redaction import redact_output, redact_written
from proxy.tools.contract.spec import ToolEffect
from proxy.tools.providers.function import FunctionProvider

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
DANUBE = "https://en.wikipedia.org/wiki/Danube"
BODIES: dict[str, Any] = {
    "searxng": {
        "query": "danube",
        "number_of_results": 0,
        "results": [
            {
                "url": DANUBE,
                "title": "Danube",
                "content": "The Danube is the second-longest river in Europe.",
                "publishedDate": "2026-01-02T00:00:00",
                "thumbnail": None,
                "engine": "wikipedia",
                "parsed_url": ["https", "en.wikipedia.org", "/wiki/Danube", "", "", ""],
                "template": "default.html",
                "engines": ["wikipedia"],
                "positions": [1],
                "score": 1.0,
                "category": "general",
            }
        ],
        "answers": [],
        "corrections": [],
        "infoboxes": [],
        "suggestions": [],
        "unresponsive_engines": [["google", "CAPTCHA"]],
    },
    "brave": {
        "type": "search",
        "query": {"original": "danube", "more_results_available": True},
        "web": {
            "type": "search",
            "results": [
                {
                    "title": "Danube",
                    "url": DANUBE,
                    "is_source_local": False,
                    "description": "The Danube is the second-longest river in Europe.",
                    "page_age": "2026-01-02T00:00:00",
                    "profile": {"name": "Wikipedia", "url": DANUBE},
                    "language": "en",
                    "family_friendly": True,
                    "type": "search_result",
                }
            ],
            "family_friendly": True,
        },
    },
    "tavily": {
        "query": "danube",
        "answer": None,
        "images": [],
        "results": [
            {
                "title": "Danube",
                "url": DANUBE,
                "content": "The Danube is the second-longest river in Europe.",
                "score": 0.81,
                "raw_content": None,
                "published_date": "2026-01-02T00:00:00",
            }
        ],
        "response_time": "1.67",
        "request_id": "123e4567-e89b-12d3-a456-426614174111",
    },
    "exa": {
        "requestId": "b5947044c4b78efa9552a7c89b306d95",
        "resolvedSearchType": "neural",
        "results": [
            {
                "title": "Danube",
                "url": DANUBE,
                "publishedDate": "2026-01-02T00:00:00",
                "author": None,
                "id": DANUBE,
                "text": "The Danube is the second-longest river in Europe.",
            }
        ],
        "costDollars": {"total": 0.005},
    },
}
FOUND = {
    "url": DANUBE,
    "title": "Danube",
    "text": "The Danube is the second-longest river in Europe.",
    "date": "2026-01-02T00:00:00",
}


def searching(service: Service, engine: str) -> FunctionProvider:
    """The provider with one engine at the local server."""
    return web_provider(service.capabilities(CLOCK), engine=engine, engine_url=service.url)


async def search(answer: Any, engine: str = "searxng", **arguments: Any) -> Any:
    """Search at a server that answers so."""
    served = answer if isinstance(answer, Answer) else Answer(answer)
    async with local_service(served) as service:
        return await use(searching(service, engine), {"query": "danube", **arguments})


def pages(*urls: str, text: str = "words") -> dict[str, Any]:
    """A body of SearXNG with these pages."""
    return {"results": [{"url": url, "title": "Page", "content": text} for url in urls]}


@pytest.mark.parametrize("engine", ENGINES)
async def test_each_engine(engine: str) -> None:
    """Each engine's documented answer becomes the same result; a search without a hit is no failure."""
    assert await search(BODIES[engine], engine) == {"results": [FOUND]}
    nothing = {"type": "search", "query": {}} if engine == "brave" else {"results": []}
    assert (await search(nothing, engine))["results"] == []


async def test_what_engines_are_asked() -> None:
    """Each engine gets query, count and domains as its API documents them."""
    limits = {"allowed_domains": ["a.example", "b.example"], "blocked_domains": ["c.example"]}
    asked = {}
    for engine, body in BODIES.items():
        async with local_service(Answer(body)) as service:
            await use(searching(service, engine), {"query": "danube", "max_results": 3, **limits})
            (asked[engine],) = service.asked
    sites = "danube (site:a.example OR site:b.example) -site:c.example"
    assert (asked["searxng"].path, asked["searxng"].query) == ("/search", {"q": sites, "format": "json"})
    assert asked["brave"].path == "/res/v1/web/search"
    assert asked["brave"].query == {"q": sites, "count": "3", "text_decorations": "false"}
    assert asked["tavily"].body == {
        "query": "danube",
        "max_results": 3,
        "include_domains": ["a.example", "b.example"],
        "exclude_domains": ["c.example"],
    }
    assert asked["exa"].body == {
        "query": "danube",
        "numResults": 3,
        "contents": {"text": {"maxCharacters": 2000}},
        "includeDomains": ["a.example", "b.example"],
        "excludeDomains": ["c.example"],
    }


ZURICH = {
    "country": "ch",
    "region": "Kanton Z\u00fcrich",
    "city": "Z\u00fcrich",
    "timezone": "Europe/Zurich",
}


async def asked_near(engine: str, **place: str) -> Asked:
    """Return what an engine is asked for a user at this place."""
    async with local_service(Answer(BODIES[engine])) as service:
        await use(searching(service, engine), {"query": "danube", "user_location": place})
        (asked,) = service.asked
    return asked


async def test_where_the_user_is() -> None:
    """Each engine gets the parts of a place that its API documents, and no other part."""
    brave = await asked_near("brave", **ZURICH)
    assert brave.query["country"] == "CH"
    assert {name: value for name, value in brave.headers.items() if name.startswith("x-loc-")} == {
        "x-loc-country": "CH",
        "x-loc-state-name": "Kanton Zurich",
        "x-loc-city": "Zurich",
        "x-loc-timezone": "Europe/Zurich",
    }
    for engine, member in (("tavily", {"country": "switzerland"}), ("exa", {"userLocation": "CH"})):
        asked = await asked_near(engine, **ZURICH)
        assert member.items() <= asked.body.items()
        assert "rich" not in f"{asked.query}{asked.body}"
        assert not any(name.startswith("x-loc-") for name in asked.headers)


async def test_places_that_an_engine_does_not_know() -> None:
    """A country that an engine would refuse is not sent to it, nor is text that no header can hold."""
    brave = await asked_near("brave", country="LI", city="\u6771\u4eac", region="ZH")
    assert "country" not in brave.query
    places = {name: value for name, value in brave.headers.items() if name.startswith("x-loc-")}
    assert places == {"x-loc-country": "LI", "x-loc-state": "ZH"}
    assert "country" not in (await asked_near("tavily", country="GL")).body
    assert not [name for name in (await asked_near("brave")).headers if name.startswith("x-loc-")]


async def test_who_sees_where_the_user_is() -> None:
    """Rule T4: the place of a user is in no record; an engine that takes none has no argument for it."""
    for engine in ENGINES:
        async with local_service(Answer()) as service:
            (spec,) = await searching(service, engine).list_tools()
        if engine == "searxng":
            assert "user_location" not in spec.parameters["properties"]
        else:
            written = orjson.dumps({"query": "x", "user_location": ZURICH}).decode()
            assert "Zurich" not in redact_written(written, spec)


async def test_a_result_that_cannot_be_read() -> None:
    """Results of an unexpected form are left out and counted; the others are given."""
    body = pages("https://a.example/1")
    body["results"] += [7, {"url": ["https://b.example/"]}, {"url": "https://c.example/", "title": {}}]
    found = await search(body)
    assert [page["url"] for page in found["results"]] == ["https://a.example/1"]
    assert found["unreadable"] == 3


@pytest.mark.parametrize("engine", ["brave", "tavily", "exa"])
async def test_the_token_is_in_the_engine_s_header(engine: str) -> None:
    """Rule T6: the token of the engine's connection is sent where the engine expects it, and nowhere else."""
    async with local_service(Answer(BODIES[engine])) as service, aclosing(service.pool) as pool:
        header = TOKEN_HEADERS.get(engine, "")
        broker = CredentialBroker({engine: StaticToken("s3cret", header=header)}, pool, no_oauth)
        capabilities = Capabilities(clock=CLOCK, http=pool.client, connected=broker.client)
        provider = web_provider(capabilities, engine=engine, engine_url=service.url)
        await use(provider, {"query": "danube"})
        (asked,) = service.asked
    sent = {name: value for name, value in asked.headers.items() if "s3cret" in value}
    assert sent == ({header.lower(): "s3cret"} if header else {"authorization": "Bearer s3cret"})


def no_oauth(connection: Any) -> Any:
    """No connection of these tests asks an authorization server."""
    raise AssertionError(connection)


async def test_the_tool_as_it_is_loaded() -> None:
    """Rule T4: the tool is read-only, its output is untrusted, texts are redacted, its receiver is fixed."""
    async with local_service(Answer()) as service:
        (spec,) = await searching(service, "searxng").list_tools()
    assert (spec.name, spec.effect) == ("web__search", ToolEffect.READ_ONLY)
    assert spec.untrusted_output
    assert not spec.egress
    assert spec.parameters["required"] == ["query"]
    assert spec.redaction is not None
    shown = redact_output({"results": [FOUND]}, spec.redaction)
    assert shown == {"results": [{name: FOUND[name] for name in ("url", "title", "date")}]}
    spec.validate({"query": "x", "allowed_domains": ["a.example"] * 100})  # As many as OpenAI's search takes.
    for arguments in ({}, {"query": ""}, {"query": "x" * 2001}, {"query": "x", "allowed_domains": ["a b"]}):
        with pytest.raises(ArgumentsInvalid):
            spec.validate(arguments)


async def test_domains_are_filtered_here_too() -> None:
    """Results of other domains are left out, whatever the engine makes of its filters."""
    body = pages(
        "https://a.example/1",
        "https://sub.a.example/2",
        "https://a.example.evil.test/3",
        "https://nota.example/4",
        "https://a.example@evil.test/5",
        "https://sub.a.example/private/6",
    )
    found = await search(body, allowed_domains=["A.example"], blocked_domains=["sub.a.example/private"])
    assert [page["url"] for page in found["results"]] == ["https://a.example/1", "https://sub.a.example/2"]


@pytest.mark.parametrize(
    ("url", "domain", "fits"),
    [
        ("https://a.example/blog/1", "a.example/blog", True),
        ("https://a.example/blogger", "a.example/blog", False),
        ("https://a.example./", "a.example", True),
        ("https://b.a.example/", "*.a.example", True),
        ("https://xa.example/", "a.example", False),
        ("https://www.b\u00fccher.example/", "xn--bcher-kva.example", True),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", True),
    ],
)
def test_domains(url: str, domain: str, fits: bool) -> None:
    """A domain means its subdomains too; a path ends at a slash."""
    assert fits_domain(URL(url), domain) is fits


async def test_results_are_bounded() -> None:
    """At most ten results, each once, with short texts without control characters, and no odd addresses."""
    body = pages(
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://",
        "https://[",
        "",
        "https://xn--a/",
        f"https://a.example/{'x' * 2048}",
        "https://a.example/" + "\u00fc" * 1000,
        *(f"https://a.example/{number // 2}" for number in range(40)),
        text="\x00\x1b[31m" + "y" * 5000,
    )
    found = (await search(body, max_results=10))["results"]
    assert [page["url"] for page in found] == [f"https://a.example/{number}" for number in range(10)]
    assert all(len(page["text"]) <= 2000 and "\x1b" not in page["text"] for page in found)


async def test_results_fit_into_a_result() -> None:
    """A list ends early if it would be larger than a result may be, and one result is always given."""
    async with local_service(
        Answer(pages("https://a.example/1", "https://a.example/2", text="z" * 900))
    ) as at:
        for most, count in ((32768, 2), (1500, 1), (10, 1)):
            context = CallContext("run", "inv", "caller", "call", max_result_bytes=most)
            found = await use(searching(at, "searxng"), {"query": "x"}, context)
            assert len(found["results"]) == count


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"<html>s3cret</html>", 200, {"Content-Type": "text/html"}), "not JSON"),
        (Answer({"results": "s3cret"}), "unexpected form"),
        (Answer([1]), "unexpected form"),
        (Answer({"results": ["s3cret"]}), "unexpected form"),
        (Answer({"results": [{"url": "https://a.example/"}] * 1001}), "unexpected form"),
        (Answer(b"s3cret", 403), "search.formats must contain json"),
        (Answer(b"s3cret", 429), "too many searches"),
        (Answer(b"s3cret", 422), "does not take this query"),
        (Answer(b"s3cret", 500), "status 500"),
        (Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}), "another host"),
        (Answer(b"x" * ((8 << 20) + 1)), "larger than"),
    ],
    ids=["HTML", "text", "list", "unreadable", "many", "403", "429", "422", "500", "redirect", "large"],
)
async def test_engines_that_fail(answer: Answer, said: str) -> None:
    """A failure says what to do in the proxy's own words, and quotes nothing of the answer."""
    with pytest.raises(ToolFailure, match=said) as caught:
        await search(answer)
    assert "s3cret" not in caught.value.message


async def test_fifty_megabytes() -> None:
    """An answer of 50 MB is not read to its end."""
    with pytest.raises(ToolFailure, match="larger than"):
        await search(Answer(b" " * (50 << 20)))


async def test_a_slow_engine() -> None:
    """An engine that does not answer in time is given up."""
    never = asyncio.Event()

    async def wait(asked: Any) -> Answer:
        await never.wait()
        return Answer({})

    async with local_service(wait) as service:
        pool = EgressPool(allowed_networks=("127.0.0.0/8",), schemes=("http",), timeout_s=0.2)
        async with aclosing(pool):
            capabilities = Capabilities(clock=CLOCK, http=pool.client)
            provider = web_provider(capabilities, engine="searxng", engine_url=service.url)
            with pytest.raises(ToolFailure, match="too long"):
                await use(provider, {"query": "x"})
        never.set()


async def test_refused_credentials() -> None:
    """An engine that takes no token says so without the token."""
    async with local_service(Answer(b"", 401), connection=Connection()) as service:
        with pytest.raises(ToolFailure, match="does not take the credentials") as caught:
            await use(searching(service, "brave"), {"query": "x"})
    assert "s3cret" not in caught.value.message
