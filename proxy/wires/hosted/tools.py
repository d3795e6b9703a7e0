"""Tools that a client declares as its provider's own, and that a server tool runs in the provider's place.

A dialect's folder says how it declares them, and which items or blocks show their calls
(``responses/own_items/hosted.py``, ``anthropic/hosted/``); here is what the dialects share.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.base.events import ToolDefinition, ToolResult
from proxy.wires.hosted.forms import CallForm
from proxy.wires.hosted.places import place_of

HostedKind = Literal[
    "web_search", "web_fetch", "image_generation", "code_execution", "programmatic_tool_calling"
]
"""The kinds of tools that can be served; each is also the name by which models call it."""

_MOST_PAGES: Final = 50
_MOST_DOMAINS: Final = 100
"""As many as OpenAI's search takes."""
_CHARACTERS_OF_TOKEN: Final = 4
"""How many characters of a page count as a token."""
_LONGEST_HOST: Final = 253
_LONGEST_URL: Final = 2048
_LONGEST_TITLE: Final = 300
_LONGEST_DATE: Final = 40
_LISTS: Final = ("results", "organic", "items", "data", "result")
"""The members of a search result that may hold the list of pages."""
URL_ARGUMENTS: Final = ("url", "uri", "link", "address")
"""The names of the argument in which a fetch may take its address."""
_URL: Final = re.compile(r"https?://[^\s\"'<>()\[\]{}\\]+")
_ACTING: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters and those that change the direction of text; not those that join emoji and letters."""
_CONTEXT_SIZES: Final[Mapping[str, int]] = {"low": 3, "medium": 6, "high": 10}
"""How many results a search gives for each ``search_context_size``."""


class PageRule(Struct, frozen=True):
    """Which pages a declaration allows: of the domains ``allowed`` (none: of all), and not of those
    ``blocked``. ``known`` are hosts of the operator, whose pages need not have been mentioned. Of each page
    ``most_characters`` are given at most (``None``: any number)."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    most_characters: int | None = None


class ClientPrograms(Struct, frozen=True):
    """What programs of a model may call of its client.

    ``tools`` are the functions of the client. ``only`` are the names of those that the model may not call
    itself, and ``places`` their positions in the list of tools. ``digest`` stands for all of this.
    ``language`` is what the programs are written in: ``"python"`` or ``"javascript"``.
    """

    tools: tuple[ToolDefinition, ...] = ()
    only: frozenset[str] = frozenset()
    places: frozenset[int] = frozenset()
    digest: str = ""
    language: Literal["python", "javascript"] = "python"

    @property
    def names(self) -> frozenset[str]:
        """The names of all these functions."""
        return frozenset([tool.name for tool in self.tools])


class HostedTool(Struct, frozen=True):
    """A declaration at a place in the body (``tools[0]``), as the client sent it.

    ``form`` shows its calls to the client; ``None`` if the dialect has no form for them. ``bound`` are the
    arguments that it sets for each call (``None``: the tool's default, whatever the model wrote), ``limits``
    the fields that set them, and ``most`` is how many calls it allows (``None``: any number). ``pages`` says
    which pages a fetch may give. ``mask`` is an image as a data URL, whose transparent areas are to be
    changed in another. ``beside`` is a tool that the same declaration brings, if that is served,
    too. ``programs`` says what a declared tool that runs programs may call of the client.
    """

    kind: HostedKind
    at: str
    declared: Mapping[str, Any]
    form: CallForm | None = None
    bound: Mapping[str, Any] = msgspec.field(default_factory=dict)
    limits: Mapping[str, str] = msgspec.field(default_factory=dict)
    most: int | None = None
    pages: PageRule | None = None
    mask: str = ""
    beside: "HostedTool | None" = None
    programs: ClientPrograms | None = None

    @property
    def digest(self) -> str:
        """A digest of what a model is told of the declaration."""
        return "" if self.programs is None else self.programs.digest

    def knowing(self, hosts: Sequence[str]) -> "HostedTool":
        """Return the same; a fetch may open pages of these hosts of the operator at once."""
        if self.pages is None or not hosts:
            return self
        return replace(self, pages=replace(self.pages, known=tuple(hosts)))

    def arguments(self, written: str, known: Mapping[str, Any]) -> str:
        """Return a call's arguments with those that the declaration sets and the tool has (``known``)."""
        if not self.bound:
            return written
        try:
            arguments = orjson.loads(written or "{}")
        except orjson.JSONDecodeError:
            return written
        if not isinstance(arguments, dict):
            return written
        for name, value in self.bound.items():
            if value is not None and name in known:
                arguments[name] = value
            elif value is None and isinstance(schema := known.get(name), Mapping) and "default" in schema:
                arguments.pop(name, None)
        return orjson.dumps(arguments).decode()

    def check(self, known: Mapping[str, Any], tool: str) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for a limit that the tool cannot apply, or a fetch
        that takes no address."""
        if self.pages is not None and known.keys().isdisjoint(URL_ARGUMENTS):
            raise RequestError(
                400,
                f"{self.at} cannot be served: {tool} (tools.hosted.{self.kind}) has no argument url. The "
                "operator has to name another tool there.",
                param=self.at,
            )
        for name, field in self.limits.items():
            if name not in known:
                raise RequestError(
                    400,
                    f"{field} cannot be applied: {tool} (tools.hosted.{self.kind}) has no argument "
                    f"{name}. Leave it out.",
                    param=field,
                )


def web_search(
    at: str,
    declared: Mapping[str, Any],
    form: CallForm | None = None,
    *,
    allowed: Any = None,
    blocked: Any = None,
    within: str = "",
    size: Any = None,
    place: Any = None,
    most: Any = None,
) -> HostedTool:
    """Return the declaration of a search of the web.

    ``allowed`` and ``blocked`` are its lists of domains, in the members ``within`` it; ``size`` is its
    ``search_context_size``, ``place`` its ``user_location``, and ``most`` its ``max_uses``. Raises
    :class:`~proxy.base.errors.RequestError` for a value of the wrong type.
    """
    bound: dict[str, Any] = {}
    limits: dict[str, str] = {}
    for name, field, domains in _domain_lists(f"{at}.{within}", allowed, blocked):
        bound[name], limits[name] = domains, field
    if size is not None:
        if not isinstance(size, str) or size not in _CONTEXT_SIZES:
            field = f"{at}.search_context_size"
            raise RequestError(400, f"{field} must be low, medium or high.", param=field)
        bound["max_results"] = _CONTEXT_SIZES[size]
    if known := place_of(place, f"{at}.user_location"):
        bound["user_location"] = known
    return HostedTool("web_search", at, declared, form, bound, limits, _count(most, f"{at}.max_uses"))


def web_fetch(
    at: str,
    declared: Mapping[str, Any],
    form: CallForm,
    *,
    allowed: Any = None,
    blocked: Any = None,
    within: str = "",
    most: Any = None,
    most_tokens: Any = None,
) -> HostedTool:
    """Return the declaration of a fetch of pages; ``most_tokens`` is its ``max_content_tokens``.

    See :func:`web_search`.
    """
    lists = {name: tuple(domains) for name, _, domains in _domain_lists(f"{at}.{within}", allowed, blocked)}
    tokens = _count(most_tokens, f"{at}.max_content_tokens")
    pages = PageRule(
        lists.get("allowed_domains", ()),
        lists.get("blocked_domains", ()),
        most_characters=None if tokens is None else tokens * _CHARACTERS_OF_TOKEN,
    )
    return HostedTool("web_fetch", at, declared, form, most=_count(most, f"{at}.max_uses"), pages=pages)


def _count(value: Any, field: str) -> int | None:
    """Return a number from 1, or ``None`` if it is not given."""
    if value is not None and (type(value) is not int or value < 1):
        raise RequestError(400, f"{field} must be a number from 1.", param=field)
    return value


def _domain_lists(at: str, allowed: Any, blocked: Any) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the lists of domains that a declaration sets, each with its name and its field."""
    for name, value in (("allowed_domains", allowed), ("blocked_domains", blocked)):
        if value is None or value == []:
            continue
        field = f"{at}{name}"
        fits = isinstance(value, list) and len(value) <= _MOST_DOMAINS
        if not fits or not all(isinstance(one, str) and one for one in value):
            raise RequestError(
                400, f"{field} must be a list of at most {_MOST_DOMAINS} domains.", param=field
            )
        yield name, field, [_domain(one) for one in value]


def _domain(value: str) -> str:
    """Return a domain in the form of the DNS, without a scheme, which some clients write."""
    host, slash, path = re.sub(r"^https?://", "", value).partition("/")
    if not host.isascii() and len(host) <= _LONGEST_HOST:
        with contextlib.suppress(UnicodeError):  # The server tool says what is wrong with it.
            host = host.encode("idna").decode()
    return host + slash + path


class FoundPage(Struct, frozen=True):
    """A page that a search found. ``date`` is empty if it is not known."""

    url: str
    title: str
    text: str = ""
    date: str = ""


def is_list_of_pages(result: ToolResult) -> bool:
    """Return whether a search has answered with a list, and not with a text that may repeat its query."""
    return listed_in(result.content) is not None


def found_pages(result: ToolResult) -> list[FoundPage]:
    """Return the pages in the result of a search, whichever tool made it, each once; none if it failed.

    Some tools answer with text, which only has addresses.
    """
    if not result.ok:
        return []
    listed = listed_in(result.content)
    found: dict[str, FoundPage] = {}
    if listed is not None:
        for entry in listed[:_MOST_PAGES]:
            if isinstance(entry, dict) and (page := page_of(entry)) is not None:
                found.setdefault(page.url, page)
    else:
        for match in _URL.finditer(result.content):
            url = match[0].rstrip(".,;:!?")
            if _is_address(url):
                found.setdefault(url, FoundPage(url, url))
            if len(found) == _MOST_PAGES:
                break
    return list(found.values())


def listed_in(text: str) -> list[Any] | None:
    """Return the list in the result of a search; ``None`` if it is a text."""
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(content, dict):
        content = next((content[name] for name in _LISTS if isinstance(content.get(name), list)), None)
    return content if isinstance(content, list) else None


def fetched_page(result: ToolResult, asked: str) -> FoundPage:
    """Return the page that a fetch of the address ``asked`` gave, whichever tool made it.

    Some tools answer with the text alone.
    """
    try:
        content = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        content = None
    page = page_of(content) if isinstance(content, dict) else None
    if page is not None and page.text:
        return page
    return FoundPage(asked, one_line((page.title if page else asked)[:_LONGEST_TITLE]), result.content)


def page_of(entry: Mapping[str, Any]) -> FoundPage | None:
    """Return the page in an entry of a result; ``None`` if it has no address."""
    url = _first(entry, ("url", "link", "href"))
    if not _is_address(url):
        return None
    title = one_line(_first(entry, ("title", "name"))[:_LONGEST_TITLE])
    text = _first(entry, ("text", "content", "markdown", "snippet", "description"))
    date = one_line(_first(entry, ("date", "page_age"))[:_LONGEST_DATE])
    return FoundPage(url, title or url, text, date)


def _is_address(url: str) -> bool:
    """Return whether a text is a page's whole address, with no character that could act where it is shown."""
    if not url.startswith(("https://", "http://")) or len(url) > _LONGEST_URL:
        return False
    return not any(map(str.isspace, url)) and _ACTING.search(url) is None


def one_line(text: str) -> str:
    """Return the text of a page on one line, without characters that act where it is shown."""
    return " ".join(_ACTING.sub(" ", text).split())


def _first(entry: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := entry.get(name), str) and value), "")


def url_of(arguments: Any) -> str:
    """Return the address in the arguments of a fetch; empty if there is none."""
    if not isinstance(arguments, dict):
        return ""
    return next((value for name in URL_ARGUMENTS if isinstance(value := arguments.get(name), str)), "")


def query_of(arguments: Any) -> str:
    """Return the query in the arguments of a search; the first text if none has that name."""
    if not isinstance(arguments, dict):
        return ""
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    return texts.get("query") or texts.get("q") or next(iter(texts.values()), "")
