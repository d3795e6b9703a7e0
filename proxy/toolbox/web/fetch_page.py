"""``web__fetch_page``: the readable text of a page, from the hosts that the operator allows.

The text of a page is untrusted, and a URL can carry data out. So the output counts as untrusted, the tool
counts as egress, and it reaches only hosts that are named.
"""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field

from proxy.base.errors import ConfigError, ToolFailure, how_to_install
from proxy.tools.contract.capabilities import HttpClient, HttpFailure
from proxy.tools.contract.schemas.url_argument import Url
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

_LIBRARY = "trafilatura"
_PROGRAM = Path(__file__).with_name("page_text.py")
_MAX_PAGE = 1 << 20
_MAX_URL = 2048
_CACHE_S = 300.0
_AT_ONCE = 2
_READ_S = 15.0
_SHOWN_HOSTS = 10
_HTML = frozenset({"text/html", "application/xhtml+xml"})


class PageReader:
    """Turns HTML into text with one process for each page: few at once, killed at the time limit."""

    def __init__(self, *, timeout_s: float = _READ_S, program: Path = _PROGRAM) -> None:
        self._timeout_s = timeout_s
        self._program = program
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def read(self, html: str) -> tuple[str | None, str]:
        """Return title and text; raise :class:`~proxy.base.errors.ToolFailure` if the page cannot be read."""
        async with self._free:
            # -I: neither the environment nor the current folder affects imports.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-IB",
                str(self._program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
            )
            try:
                async with asyncio.timeout(self._timeout_s):
                    written, _ = await process.communicate(html.encode("utf-8", "replace"))
            except TimeoutError:
                raise ToolFailure("the page takes too long to read") from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        try:
            page = orjson.loads(written)
            return page["title"], page["text"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ToolFailure("the page cannot be read") from None


def fetch_tool(hosts: Sequence[str], reader: PageReader) -> Callable[..., Any]:
    """Build the tool for one list of hosts.

    Raises :class:`~proxy.base.errors.ConfigError` if the library that reads pages is not installed.
    """
    if importlib.util.find_spec(_LIBRARY) is None:
        raise ConfigError(
            "tools.web_hosts", f"needs {_LIBRARY}, which is not installed", how_to_install("web")
        )

    @tool(
        name="fetch_page",
        description=f"Fetch a web page and give its readable text. It can reach {_named(hosts)}",
        effect="read_only",
        redaction=Redaction(output=("url", "content_type")),
        hosts=tuple(hosts),
        cache_ttl_s=_CACHE_S,
        untrusted_output=True,
        egress=True,
    )
    async def fetch_page(
        http: HttpClient,
        url: Annotated[
            Url, Field(description="Address of the page, with https://", min_length=1, max_length=_MAX_URL)
        ],
        max_characters: Annotated[
            int, Field(description="Most characters of its text", ge=1, le=_MAX_PAGE)
        ] = _MAX_PAGE,
    ) -> dict[str, Any]:
        """Return ``{"url", "title", "content_type", "text"}``; ``url`` is where the page was found.

        HTML becomes Markdown of what is worth reading; other kinds of text are given as they are.
        """
        try:
            page = await http.get_text(url)
        except HttpFailure as failure:
            raise _explained(failure) from None
        if len(page.text) > _MAX_PAGE:
            raise ToolFailure("the page is too large")
        title, text = None, page.text
        if page.content_type in _HTML:
            title, text = await reader.read(page.text)
        text = text[:max_characters]
        return {"url": page.url, "title": title, "content_type": page.content_type, "text": text}

    return fetch_page


def _named(hosts: Sequence[str]) -> str:
    """Return the hosts in words, for a model to choose from."""
    if "*" in hosts:
        return "any public host"
    more = len(hosts) - _SHOWN_HOSTS
    return ", ".join(hosts[:_SHOWN_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _explained(failure: HttpFailure) -> ToolFailure:
    """Turn a failed request into a failure that says what its status means for a page."""
    texts = {
        401: "the page is not public",
        403: "the page is not public",
        404: "there is no page at this address",
        410: "the page at this address is gone",
    }
    message = texts.get(failure.status or 0)
    return failure if message is None else ToolFailure(message)
