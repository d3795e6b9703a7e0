"""The files of the web UI: which are served, to whom, and how long a browser may cache them."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from edge_requests import edge_request
from ui_rig import ui_proxy

from proxy.base.errors import RequestError
from proxy.server.messages.target import Targets
from proxy.ui.static_files import PAGE_HEADERS, StaticFiles
from proxy.wires.registry.table import SERVED

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def folder(path: Path) -> Path:
    """Fill a folder with pages, and with some files that must not be served."""
    (path / "pages").mkdir()
    (path / "index.html").write_text('<script type="module" src="/ui/static/app.js"></script>')
    (path / "app.js").write_text('import "./pages/runs.js";\n' + "// long\n" * 400)
    (path / "pages" / "runs.js").write_text("export {}")
    (path / ".hidden.js").write_text("secret")
    (path / "notes.py").write_text("secret")
    (path / "link.js").symlink_to("/etc/hostname")
    return path


def ask(
    files: StaticFiles, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return a file's response: its status, its headers in lower case, and its body."""
    request = edge_request(method, path, headers)
    response = files.answer(request, request.head[Targets(SERVED)])
    body = response.body
    assert body is None or isinstance(body, bytes)
    return response.status, {name.lower(): value for name, value in response.headers.items()}, body or b""


def test_files_are_kept_by_their_version(tmp_path: Path) -> None:
    """The page names its files by a digest of all files, so browsers may cache them for ever."""
    files = StaticFiles(folder(tmp_path))
    status, headers, page = ask(files, "/ui/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    address = re.search(rb'src="([^"]+)"', page)
    assert address is not None
    assert address[1].decode() == f"/ui/static/{files.version}/app.js"
    status, headers, script = ask(files, address[1].decode())
    assert status == 200
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.startswith(b'import "./pages/runs.js"')
    # A file that it imports by a relative name has the same version.
    assert ask(files, f"/ui/static/{files.version}/pages/runs.js")[2] == b"export {}"
    status, headers, _ = ask(files, "/ui/static/app.js")
    assert (status, headers["cache-control"]) == (200, "no-cache")
    (tmp_path / "app.js").write_text("changed")
    assert StaticFiles(tmp_path).version != files.version


def test_a_file_that_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    """A browser that has the newest file gets a 304 without a body."""
    files = StaticFiles(folder(tmp_path))
    _, headers, _ = ask(files, "/ui/static/app.js")
    status, again, body = ask(files, "/ui/static/app.js", **{"If-None-Match": f'"x", {headers["etag"]}'})
    assert (status, body) == (304, b"")
    assert again["content-security-policy"]
    assert ask(files, "/ui/static/app.js", **{"If-None-Match": '"other"'})[0] == 200


def test_large_files_are_sent_compressed_to_those_who_take_it(tmp_path: Path) -> None:
    """A browser that accepts gzip gets a large file compressed; another one gets it as it is."""
    files = StaticFiles(folder(tmp_path))
    _, headers, packed = ask(files, "/ui/static/app.js", **{"Accept-Encoding": "br, gzip"})
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    for refused in ("", "br", "gzip;q=0"):
        _, headers, plain = ask(files, "/ui/static/app.js", **{"Accept-Encoding": refused})
        assert "content-encoding" not in headers
        assert gzip.decompress(packed) == plain
    _, headers, _ = ask(files, "/ui/static/pages/runs.js", **{"Accept-Encoding": "gzip"})
    assert "content-encoding" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/ui/static/.hidden.js",
        "/ui/static/notes.py",
        "/ui/static/link.js",
        "/ui/static/",
        "/ui/static/pages",
        "/ui/static/none.js",
        "/ui/static/index.html",
        "/ui/runs.json",
        "/ui/static/0000000000000000/app.js",
    ],
)
def test_nothing_else_of_the_folder_is_served(tmp_path: Path, path: str) -> None:
    """Only files of known kinds and plain names are served, without links and without other versions."""
    with pytest.raises(RequestError) as fault:
        ask(StaticFiles(folder(tmp_path)), path)
    assert fault.value.status == 404
    assert fault.value.headers.items() >= PAGE_HEADERS.items()


def test_a_page_is_only_read(tmp_path: Path) -> None:
    """A POST to a page gets a 405."""
    with pytest.raises(RequestError) as fault:
        ask(StaticFiles(folder(tmp_path)), "/ui/", "POST")
    assert fault.value.status == 405


def test_a_folder_without_files_says_so(tmp_path: Path) -> None:
    """An installation without the files answers with a page that says so."""
    assert b"has no files" in ask(StaticFiles(tmp_path / "none"), "/ui/")[2]


async def test_the_pages_have_a_strict_policy_and_need_no_key() -> None:
    """Pages need no key; their policy forbids inline scripts, other origins' content and framing."""
    async with ui_proxy() as (browser, _):
        for path in ("/ui/", "/ui/runs", "/ui/runs/run_1/wire"):
            answer = await browser.proxy.ask(method="GET", path=path)
            assert answer.status == 200
            policy = (answer.header("content-security-policy") or "").split("; ")
            assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
            assert not any("unsafe" in part for part in policy)
            for name, value in PAGE_HEADERS.items():
                assert answer.header(name) == value
        moved = await browser.proxy.get("/ui")
        assert (moved.status, moved.header("location")) == (308, "/ui/")


async def test_a_link_from_another_site_opens_a_page_and_nothing_else() -> None:
    """A link from another site may open a page, but it may not frame the page or read data."""
    async with ui_proxy() as (browser, _):
        ask_ = browser.proxy.ask
        assert (await ask_(None, LINK, method="GET", path="/ui/runs")).status == 200
        framed = {**LINK, "Sec-Fetch-Dest": "iframe"}
        assert (await ask_(None, framed, method="GET", path="/ui/runs")).status == 403
        for path in ("/ui/api/session", "/ui/api/runs", "/v1/models", "/admin/runs"):
            answer = await ask_(None, LINK, method="GET", path=path)
            assert answer.status == 403, path


async def test_the_pages_can_be_turned_off() -> None:
    """With ``ui.enabled`` false nothing exists below ``/ui``."""
    async with ui_proxy(ui={"enabled": False}) as (browser, _):
        for path in ("/ui", "/ui/", "/ui/api/session"):
            assert (await browser.proxy.ask(method="GET", path=path)).status == 404


async def test_an_open_server_on_a_network_has_no_pages() -> None:
    """A server that needs no keys serves the pages only if it listens on loopback."""
    config: dict[str, Any] = {"keys": {}, "auth": {"mode": "open"}}
    async with ui_proxy(**config, server={"host": "0.0.0.0"}) as (browser, _):
        assert (await browser.proxy.get("/ui/")).status == 404
    async with ui_proxy(**config) as (browser, _):
        assert (await browser.proxy.get("/ui/")).status == 200
