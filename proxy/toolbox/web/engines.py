"""The search engines of ``web__search``, as one table: how each is asked, and how its answer is read.

Where the user is goes to the engines that take it (:mod:`.places`).

Sources: SearXNG's page "Search API"; Brave's reference "Web search" (``GET /res/v1/web/search``); Tavily's
reference "Search" (``POST /search``); Exa's reference "Search" (``POST /search``).
"""

from collections.abc import Callable, Mapping
from html import unescape
from types import MappingProxyType
from typing import Annotated, Any, Final

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proxy.base.errors import ToolFailure
from proxy.toolbox.services import checked
from proxy.toolbox.web.places import Place, brave_country, brave_headers, exa_country, tavily_country
from proxy.tools.contract.capabilities import HttpClient

SERVICE: Final = "the search engine"
MOST_RESULTS: Final = 10

_MOST_LISTED: Final = 1000
_MOST_OF_BRAVE: Final = 400
"""The characters that Brave takes as a query."""
_MOST_OF_EXA: Final = 2000
"""The characters of a page that Exa is asked for."""


class Question(Struct, frozen=True):
    """A search: at most ``count`` results, of the domains ``allowed`` (empty: any), not of ``blocked``.

    ``place`` is where the user is, as far as it is known.
    """

    query: str
    count: int
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    place: Place = Place()

    def with_sites(self, most: int = 2000) -> str:
        """Return the query with its domains as operators; without them if it gets longer than ``most``."""
        sites = " OR ".join(f"site:{domain}" for domain in self.allowed)
        words = [self.query, f"({sites})" if len(self.allowed) > 1 else sites]
        words += [f"-site:{domain}" for domain in self.blocked]
        written = " ".join(word for word in words if word)
        return written if len(written) <= most else self.query


class Hit(Struct, frozen=True):
    """One result as an engine gives it; nothing of it is checked yet."""

    url: str
    title: str
    text: str
    date: str | None = None


class _Reading(BaseModel):
    """A part of an engine's answer; what is not named is ignored."""

    model_config = ConfigDict(extra="ignore")


class _Result(_Reading):
    """One result, with the names of all engines."""

    url: str = ""
    title: str | None = None
    content: str | None = None
    description: str | None = None
    text: str | None = None
    date: Annotated[str | None, Field(alias="publishedDate")] = None
    published_date: str | None = None
    page_age: str | None = None

    def hit(self) -> Hit:
        text = self.content or self.description or self.text or ""
        date = self.date or self.published_date or self.page_age
        return Hit(self.url, unescape(self.title or ""), unescape(text), date)


class _Results(_Reading):
    results: Annotated[list[Any], Field(max_length=_MOST_LISTED)] = []


class _OfBrave(_Reading):
    """Brave has no ``web`` if it found no page."""

    web: _Results | None = None


def _no_headers(place: Place) -> dict[str, str]:
    return {}


class SearchEngine(Struct, frozen=True):
    """One engine: its address, its connection (empty: it needs none), and how it is asked.

    ``form`` makes of a question the parameters of a GET (``posts`` is false) or the body of a POST at
    ``path``, and ``headers`` makes of a place the headers that tell it. ``takes_place``: the engine has some
    use for where the user is. ``token_header`` carries the connection's token; empty: ``Authorization``.
    """

    form: Callable[[Question], dict[str, Any]]
    path: str
    base_url: str = ""
    connection: str = ""
    token_header: str = ""
    posts: bool = False
    shape: type[_OfBrave | _Results] = _Results
    most_query: int = 2000
    takes_place: bool = True
    headers: Callable[[Place], dict[str, str]] = _no_headers

    async def search(self, http: HttpClient, base_url: str, question: Question) -> tuple[list[Hit], int]:
        """Return the results in the engine's order, and how many more could not be read.

        Raises :class:`~proxy.base.errors.ToolFailure` if it has no usable answer.
        """
        url, asked = f"{base_url.rstrip('/')}{self.path}", self.form(question)
        headers = self.headers(question.place) or None
        answer = await (
            http.post_json(url, asked, headers=headers)
            if self.posts
            else http.get_json(url, asked, headers=headers)
        )
        found = checked(self.shape, answer, SERVICE)
        listed = found.web if isinstance(found, _OfBrave) else found
        given = listed.results if listed is not None else []
        hits = [hit for result in given if (hit := _hit(result)) is not None]
        if given and not hits:
            raise ToolFailure(f"{SERVICE} answered in an unexpected form")
        return hits, len(given) - len(hits)


def _hit(result: Any) -> Hit | None:
    """Return one result; ``None`` if it cannot be read."""
    try:
        return _Result.model_validate(result).hit()
    except ValidationError:
        return None


def _of_searxng(question: Question) -> dict[str, Any]:
    return {"q": question.with_sites(), "format": "json"}


def _of_brave(question: Question) -> dict[str, Any]:
    return {
        "q": question.with_sites(_MOST_OF_BRAVE),
        "count": question.count,
        "text_decorations": "false",
        **brave_country(question.place),
    }


def _of_tavily(question: Question) -> dict[str, Any]:
    domains = {"include_domains": list(question.allowed), "exclude_domains": list(question.blocked)}
    asked = {"query": question.query, "max_results": question.count, **_given(domains)}
    return {**asked, **tavily_country(question.place)}


def _of_exa(question: Question) -> dict[str, Any]:
    domains = {"includeDomains": list(question.allowed), "excludeDomains": list(question.blocked)}
    contents = {"text": {"maxCharacters": _MOST_OF_EXA}}
    asked = {"query": question.query, "numResults": question.count, "contents": contents, **_given(domains)}
    return {**asked, **exa_country(question.place)}


def _given(fields: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: value for name, value in fields.items() if value}


ENGINES: Final[Mapping[str, SearchEngine]] = MappingProxyType(
    {
        "searxng": SearchEngine(_of_searxng, "/search", takes_place=False),
        "brave": SearchEngine(
            _of_brave,
            "/res/v1/web/search",
            "https://api.search.brave.com",
            connection="brave",
            token_header="X-Subscription-Token",
            shape=_OfBrave,
            most_query=_MOST_OF_BRAVE,
            headers=brave_headers,
        ),
        "tavily": SearchEngine(
            _of_tavily, "/search", "https://api.tavily.com", connection="tavily", posts=True, most_query=400
        ),
        "exa": SearchEngine(
            _of_exa,
            "/search",
            "https://api.exa.ai",
            connection="exa",
            token_header="x-api-key",
            posts=True,
        ),
    }
)

TOKEN_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {engine.connection: engine.token_header for engine in ENGINES.values() if engine.token_header}
)
"""The header that carries the token of a connection, where it is not ``Authorization``."""
