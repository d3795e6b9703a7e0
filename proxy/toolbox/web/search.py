"""``web__search``: finds pages with the search engine that the operator configured.

Results are strangers' texts, so the output counts as untrusted. A query goes to the operator's engine alone,
and no page can choose another receiver: like the city of a forecast, it does not count as egress.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import orjson
from pydantic import Field
from yarl import URL

from proxy.base.errors import ToolFailure
from proxy.toolbox.web.engines import ENGINES, MOST_RESULTS, SERVICE, Hit, Question, SearchEngine
from proxy.toolbox.web.places import Place
from proxy.tools.access.hosts import fits_domain, host_entry
from proxy.tools.contract.capabilities import HttpClient, HttpFailure
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

_CACHE_S: Final = 300.0
_FEW: Final = 6
"""How many results a search gives if the model does not say."""
_MOST_DOMAINS: Final = 100
"""As many as OpenAI's search takes."""
_LONGEST_URL: Final = 2048
_LONGEST_TITLE: Final = 300
_LONGEST_TEXT: Final = 2000
_LONGEST_DATE: Final = 40
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_Domain = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._*/-]+$")]
_Domains = Annotated[
    list[_Domain],
    Field(
        max_length=_MOST_DOMAINS, description="Domains without https://, such as example.com, with subdomains"
    ),
]
_Allowed = Annotated[_Domains, Field(description="Only pages of these domains")]
_Blocked = Annotated[_Domains, Field(description="No pages of these domains")]
_Count = Annotated[int, Field(description="Most results", ge=1, le=MOST_RESULTS)]
_UserLocation = Annotated[Place | None, Field(description="Where the user is; country has two letters")]


def search_tool(name: str, base_url: str = "") -> Callable[..., Any]:
    """Build the tool for one engine; ``base_url`` is its address, empty for its own."""
    engine = ENGINES[name]
    address = base_url or engine.base_url
    declare = tool(
        name="search",
        description="Search the web. Returns pages with their addresses, titles and extracts of their text",
        effect="read_only",
        redaction=Redaction(
            output=("results.*.url", "results.*.title", "results.*.date", "unreadable"),
            private_arguments=("user_location",) if engine.takes_place else (),
        ),
        hosts=(host_entry(address),),
        connection=engine.connection,
        cache_ttl_s=_CACHE_S,
        untrusted_output=True,
    )

    query = Field(description="What to search for", min_length=1, max_length=engine.most_query)
    if not engine.takes_place:

        @declare
        async def search(
            http: HttpClient,
            context: CallContext,
            query: Annotated[str, query],
            allowed_domains: _Allowed = [],  # noqa: B006
            blocked_domains: _Blocked = [],  # noqa: B006
            max_results: _Count = _FEW,
        ) -> dict[str, Any]:
            domains = tuple(allowed_domains), tuple(blocked_domains)
            return await _found(engine, address, http, context, Question(query, max_results, *domains))

        return search

    @declare
    async def search_near(
        http: HttpClient,
        context: CallContext,
        query: Annotated[str, query],
        allowed_domains: _Allowed = [],  # noqa: B006
        blocked_domains: _Blocked = [],  # noqa: B006
        max_results: _Count = _FEW,
        user_location: _UserLocation = None,
    ) -> dict[str, Any]:
        domains = tuple(allowed_domains), tuple(blocked_domains)
        question = Question(query, max_results, *domains, user_location or Place())
        return await _found(engine, address, http, context, question)

    return search_near


async def _found(
    engine: SearchEngine, address: str, http: HttpClient, context: CallContext, question: Question
) -> dict[str, Any]:
    """Return ``{"results": [{"url", "title", "text", "date"}]}``, the best first.

    A result may have no ``date``. Fewer results are given if not all have room. ``unreadable`` counts those
    that the engine gave in an unexpected form.
    """
    try:
        hits, unreadable = await engine.search(http, address, question)
    except HttpFailure as failure:
        raise _explained(failure, engine) from None
    results = _fitting(_usable(hits, question), context.max_result_bytes)
    return {**results, "unreadable": unreadable} if unreadable else results


def _usable(hits: Iterable[Hit], question: Question) -> list[dict[str, Any]]:
    """Return the results that a client may follow, each once, of the domains that were asked for.

    Engines apply the filters, too, but not all of them do, and none has to.
    """
    found: dict[str, dict[str, Any]] = {}
    for hit in hits:
        try:
            url = URL(hit.url)
            has_host = bool(url.host)  # Raises for a name that only looks like one of the DNS: xn--a.
        except ValueError:
            continue
        if url.scheme not in ("http", "https") or not has_host or url.user or len(str(url)) > _LONGEST_URL:
            continue
        if question.allowed and not any(fits_domain(url, domain) for domain in question.allowed):
            continue
        if any(fits_domain(url, domain) for domain in question.blocked):
            continue
        entry = {
            "url": str(url),
            "title": _plain(hit.title, _LONGEST_TITLE) or str(url),
            "text": _plain(hit.text, _LONGEST_TEXT),
        }
        if hit.date:
            entry["date"] = _plain(hit.date, _LONGEST_DATE)
        found.setdefault(str(url), entry)
        if len(found) == question.count:
            break
    return list(found.values())


def _plain(text: str, most: int) -> str:
    return _CONTROL.sub(" ", text[:most]).strip()


def _fitting(results: list[dict[str, Any]], max_bytes: int) -> dict[str, Any]:
    """Return as many results as have room: a list that ends early is valid, one cut in its middle is not."""
    while len(results) > 1 and len(orjson.dumps({"results": results})) > max_bytes:
        results = results[:-1]
    if not results:
        return {"results": [], "message": "Nothing was found. Try other words."}
    return {"results": results}


def _explained(failure: HttpFailure, engine: SearchEngine) -> ToolFailure:
    """Turn a failed request into a failure that says what its status means for a search."""
    if failure.status == 429:
        return ToolFailure(f"{SERVICE} has had too many searches; try again in a minute", transient=True)
    if failure.status in (401, 402, 403):
        if not engine.connection:
            return ToolFailure(f"{SERVICE} gives no JSON: its setting search.formats must contain json")
        return ToolFailure(f"{SERVICE} does not take the credentials it was given, or its quota is used up")
    if failure.status in (400, 422):
        return ToolFailure(f"{SERVICE} does not take this query", code="invalid_arguments")
    return failure
