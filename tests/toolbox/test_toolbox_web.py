"""``web__fetch_page`` over real HTTP against a server with all kinds of pages."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from local_service import Answer, Service, local_service, use
from waiting import LATE_S, PATIENCE_S

import proxy.toolbox.web.fetch_page
from proxy.base.errors import ConfigError, ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.web.fetch_page import PageReader
from proxy.toolbox.web.provider import web_provider
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.redaction import redact_output
from proxy.tools.contract.spec import ToolEffect
from proxy.tools.providers.function import FunctionProvider

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
HTML = {"Content-Type": "text/html; charset=utf-8"}
ARTICLE = (
    "<!doctype html><html><head><title> Rivers \n of Europe</title><script>s3cret()</script></head><body>"
    "<nav><a href='/'>Home</a> <a href='/about'>About us</a></nav><article><h1>Rivers</h1>"
    + "<p>The Danube flows through ten countries, more than any other river in the world.</p>"
    * 5
    + "<table><tr><th>River</th><th>km</th></tr><tr><td>Volga</td><td>3530</td></tr></table>"
    "</article><footer>Imprint</footer></body></html>"
)


def web(service: Service, *hosts: str, reader: PageReader | None = None) -> FunctionProvider:
    """The provider of the tool; it allows the local server's host and ``hosts``."""
    own = service.url.removeprefix("http://")
    return web_provider(
        service.capabilities(CLOCK), hosts=(own, *hosts), reader=reader or PageReader(timeout_s=LATE_S)
    )


async def fetch(answer: Answer, path: str = "/page", reader: PageReader | None = None) -> Any:
    """Fetch one page from a server with this answer and return the result."""
    async with local_service(answer) as service:
        return await use(web(service, reader=reader), {"url": service.url + path})


async def test_the_tool_as_it_is_loaded() -> None:
    """Rule T4: the tool is read-only, its output is untrusted, and it counts as egress."""
    async with local_service(Answer()) as service:
        (spec,) = await web_provider(service.capabilities(CLOCK), hosts=("docs.example.com",)).list_tools()
    assert spec.name == "web__fetch_page"
    assert spec.effect is ToolEffect.READ_ONLY
    assert spec.untrusted_output
    assert spec.egress
    assert "docs.example.com" in spec.description
    assert list(spec.parameters["properties"]) == ["url", "max_characters"]
    assert spec.parameters["required"] == ["url"]
    for arguments in ({}, {"url": ""}, {"url": "https://x/" + "y" * 2048}, {"url": 1}):
        with pytest.raises(ArgumentsInvalid):
            spec.validate(arguments)


async def test_hosts_in_the_description() -> None:
    """The description names at most ten allowed hosts, and says "any public host" for ``*``."""
    capabilities = Capabilities(clock=CLOCK, http=lambda hosts: Unused())
    many = tuple(f"h{number}.example.com" for number in range(12))
    (spec,) = await web_provider(capabilities, hosts=many).list_tools()
    assert spec.description.endswith("h9.example.com and 2 more")
    (spec,) = await web_provider(capabilities, hosts=("*",)).list_tools()
    assert spec.description.endswith("any public host")


class Unused:
    """An HTTP client that must not be called."""

    async def get_json(self, url: str, params: Any = None, headers: Any = None) -> Any:
        """Fail the test."""
        raise AssertionError(url)

    async def post_json(self, url: str, body: Any, params: Any = None, headers: Any = None) -> Any:
        """Fail the test."""
        raise AssertionError(url)

    async def get_text(self, url: str) -> Any:
        """Fail the test."""
        raise AssertionError(url)


async def test_an_article() -> None:
    """The tool keeps an article's text, headings and tables, and drops menus, scripts and footers."""
    page = await fetch(Answer(ARTICLE.encode(), 200, HTML), "/page?a=1")
    assert page["title"] == "Rivers of Europe"
    assert page["content_type"] == "text/html"
    assert page["url"].startswith("http://127.0.0.1:")
    assert page["url"].endswith("/page?a=1")
    assert "# Rivers" in page["text"]
    assert "ten countries" in page["text"]
    assert "Volga" in page["text"]
    for word in ("s3cret", "About us", "Imprint", "<p>"):
        assert word not in page["text"]
    (spec,) = await web_provider(
        Capabilities(clock=CLOCK, http=lambda _: Unused()), hosts=("x.y",)
    ).list_tools()
    assert spec.redaction is not None
    assert redact_output(page, spec.redaction) == {"url": page["url"], "content_type": "text/html"}


@pytest.mark.parametrize(
    ("html", "title", "text"),
    [
        ("<html><head><title>T</title></head><body><p>One line.</p></body></html>", "T", "One line."),
        ("<p>No frame at all", None, "No frame at all"),
        ("<html><body><ul><li>one</li><li>two</li></ul></body></html>", None, "one"),
        ("", None, ""),
        ("<html><body></body></html>", None, ""),
        (
            '<?xml version="1.0" encoding="latin-1"?><html><body><p>Gr\u00fc\u00dfe</p></body></html>',
            None,
            "Gr\u00fc\u00dfe",
        ),
        ("<div>" * 20000 + "deep" + "</div>" * 20000, None, ""),
        ("\x00\x01<<<>>>" * 50, None, ""),
    ],
    ids=["short", "bare", "list", "empty", "no body", "declaration", "deep", "garbage"],
)
async def test_pages_that_are_no_articles(html: str, title: str | None, text: str) -> None:
    """Short, broken or hostile HTML gives the text that there is, or none."""
    page = await fetch(Answer(html.encode(), 200, HTML))
    assert page["title"] == title
    assert text in page["text"]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/markdown", "application/rss+xml"])
async def test_other_text_is_given_as_it_is(kind: str) -> None:
    """The tool returns text that is not HTML unchanged."""
    page = await fetch(
        Answer("# <b>Gr\u00fc\u00dfe</b>".encode(), 200, {"Content-Type": f"{kind}; charset=utf-8"})
    )
    assert (page["text"], page["title"], page["content_type"]) == ("# <b>Gr\u00fc\u00dfe</b>", None, kind)


@pytest.mark.parametrize("kind", ["application/pdf", "image/png", "application/octet-stream"])
async def test_what_is_no_text(kind: str) -> None:
    """The tool refuses a file that is not text."""
    with pytest.raises(ToolFailure, match="not a page of text"):
        await fetch(Answer(b"%PDF-1.7 s3cret", 200, {"Content-Type": kind}))


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "not public"), (403, "not public"), (404, "no page"), (410, "gone"), (500, "500")],
)
async def test_errors(status: int, said: str) -> None:
    """The tool has its own message for each error status and does not quote the error page."""
    with pytest.raises(ToolFailure, match=said) as caught:
        await fetch(Answer(b"s3cret", status, HTML))
    assert "s3cret" not in caught.value.message


async def test_only_allowed_hosts() -> None:
    """The tool refuses other hosts, even disguised ones, and other schemes, and sends no request."""
    async with local_service(Answer(b"s3cret", 200, HTML)) as service:
        port = service.url.rpartition(":")[2]
        provider = web(service, "docs.example.com")
        for url in (
            f"http://localhost:{port}/",
            f"http://127.0.0.1.example.com:{port}/",
            f"http://docs.example.com@localhost:{port}/",
            "https://docs.example.com.evil.example/",
            "http://[::1]/",
            "file:///etc/passwd",
            "gopher://docs.example.com/",
            "docs.example.com",
            "http://",
        ):
            with pytest.raises((ToolFailure, ArgumentsInvalid)):
                await use(provider, {"url": url})
    assert service.asked == []


async def test_redirects_stay_within_the_allowed_hosts() -> None:
    """The tool follows a redirect to another path, but not one to a host that is not allowed."""
    away = Answer(b"", 302, {"Location": "/other"})
    async with local_service(away, Answer(b"there", 200, {"Content-Type": "text/plain"})) as service:
        page = await use(web(service), {"url": service.url + "/page"})
    assert page["url"] == service.url + "/other"
    async with local_service(Answer(b"", 302, {"Location": "http://localhost/"})) as service:
        with pytest.raises(ToolFailure, match="may not call that host"):
            await use(web(service), {"url": service.url + "/page"})


async def test_large_pages() -> None:
    """The tool refuses a page that is larger than its limit."""
    with pytest.raises(ToolFailure, match="too large"):
        await fetch(Answer(b"x" * ((1 << 20) + 1), 200, HTML))


def program(folder: Path, code: str) -> Path:
    """Write a program that replaces the one that extracts text from pages."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    return path


def wait_for(file: Path) -> None:
    """Wait until the file has content."""
    for _ in range(3000):
        if file.exists() and file.read_text():
            return
        time.sleep(0.01)
    raise AssertionError("the program did not start")


async def test_a_page_that_is_never_done(tmp_path: Path) -> None:
    """The proxy kills the process that extracts the text when its time is up."""
    pid = tmp_path / "pid"
    code = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    with pytest.raises(ToolFailure, match="too long"):
        await fetch(
            Answer(b"<p>", 200, HTML), reader=PageReader(timeout_s=5, program=program(tmp_path, code))
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_reader_whose_caller_leaves(tmp_path: Path) -> None:
    """A cancelled call leaves no process behind."""
    pid = tmp_path / "pid"
    code = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    task = asyncio.create_task(PageReader(program=program(tmp_path, code)).read("<p>"))
    await asyncio.to_thread(wait_for, pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    "code", ["raise SystemExit(1)", "print('{')", "print('[]')", "print('{\"title\": 1}')"]
)
async def test_a_reader_that_breaks(tmp_path: Path, code: str) -> None:
    """If the extracting process crashes or prints invalid output, only the call fails."""
    with pytest.raises(ToolFailure, match="cannot be read"):
        await PageReader(program=program(tmp_path, code)).read("<p>")


async def test_the_reader_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule T6: the process that parses an untrusted page does not get the proxy's environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    code = "import json, os\nprint(json.dumps({'title': None, 'text': ' '.join(os.environ.values())}))"
    _, text = await PageReader(program=program(tmp_path, code)).read("<p>")
    assert "s3cret" not in text


def test_the_reader_is_confined() -> None:
    """The extracting process limits its memory and its CPU time, and cannot write files."""
    code = (
        "import resource, runpy, sys\n"
        "page_text = runpy.run_path(sys.argv[1])\n"
        "page_text['confine']()\n"
        "print(*(resource.getrlimit(one)[0] for one in"
        " (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)))"
    )
    program = Path(proxy.toolbox.web.fetch_page.__file__).with_name("page_text.py")
    done = subprocess.run(
        [sys.executable, "-c", code, program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.split() == [str(1 << 30), "20", "0"]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the extraction library is not installed, the error message says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tools\.web_hosts: needs trafilatura.*\.\[web\]"):
        web_provider(Capabilities(clock=CLOCK), hosts=("example.com",))
