"""Serve the files of the pages: read once, compressed on first use, with a version in their address.

``index.html`` names its files as ``/ui/static/app.js``. When it is served, these addresses get a digest of
all files: ``/ui/static/DIGEST/app.js``. A file at such an address never changes, so browsers cache it.
"""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from proxy.base.errors import RequestError
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target

STATIC_FOLDER: Final = Path(__file__).resolve().parent / "static"
UI_PREFIX: Final = "/ui"
API_PREFIX: Final = f"{UI_PREFIX}/" + "api/"
_STATIC: Final = f"{UI_PREFIX}/static/"

PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of each response below ``/ui``: no other origin may run code, be loaded or frame the page."""

_KINDS: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
_COMPRESSED: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".txt", ".md"})
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_SMALLEST_COMPRESSED: Final = 1024
_MAX_FILES: Final = 200
_MAX_BYTES: Final = 8 << 20
_MISSING: Final = (
    b"<!doctype html><meta charset=utf-8><title>toolrelay</title>"
    b"<p>This installation has no files of the web UI (proxy/ui/static/index.html)."
)


@dataclass(frozen=True)
class _File:
    """A file in the form in which it is served."""

    kind: str
    body: bytes
    compressible: bool
    etag: str

    @cached_property
    def packed(self) -> bytes | None:
        """The body in gzip, or ``None`` if the file is not compressible."""
        return gzip.compress(self.body, 9, mtime=0) if self.compressible else None


class StaticFiles:
    """The files below ``folder``, as they were when this object was created."""

    def __init__(self, folder: Path = STATIC_FOLDER) -> None:
        files = dict(_read(folder))
        digest = hashlib.blake2b(digest_size=8)
        for name, body in sorted(files.items()):
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
        self.version = digest.hexdigest()
        index = files.pop("index.html", _MISSING)
        versioned = f"{_STATIC}{self.version}/".encode()
        self._index = _made("index.html", index.replace(_STATIC.encode(), versioned))
        self._files = {name: _made(name, body) for name, body in files.items()}

    def answer(self, request: EdgeRequest, target: Target) -> web.Response:
        """Return a file, or the page if the path is that of a page.

        Raises :class:`~proxy.base.errors.RequestError`: 404 for an unknown path, 405 for other methods.
        """
        if request.method not in ("GET", "HEAD"):
            raise RequestError(
                405, "The pages accept only GET and HEAD.", headers={"Allow": "GET, HEAD", **PAGE_HEADERS}
            )
        path = target.path
        if path == UI_PREFIX:
            return web.Response(status=308, headers={"Location": f"{UI_PREFIX}/", **PAGE_HEADERS})
        if path.startswith(_STATIC):
            name = path.removeprefix(_STATIC)
            version, _, rest = name.partition("/")
            fixed = version == self.version
            file = self._files.get(rest if fixed else name)
            if file is None:
                raise not_found(path)
            lasting = "public, max-age=31536000, immutable" if fixed else "no-cache"
            return _served(request, file, lasting)
        if not target.is_page:
            raise not_found(path)
        return _served(request, self._index, "no-cache")


def not_found(path: str) -> RequestError:
    """Return the error for an unknown path."""
    return RequestError(404, f"There is nothing at {path[:100]}.", code="not_found", headers={**PAGE_HEADERS})


def _served(request: EdgeRequest, file: _File, lasting: str) -> web.Response:
    headers = {
        **PAGE_HEADERS,
        hdrs.CACHE_CONTROL: lasting,
        hdrs.ETAG: file.etag,
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
    }
    if file.etag in [tag.removeprefix("w/") for tag in request.head.listed(hdrs.IF_NONE_MATCH)]:
        return web.Response(status=304, headers=headers)
    headers[hdrs.CONTENT_TYPE] = file.kind
    body = file.body
    if _takes_gzip(request) and file.packed is not None:
        body, headers[hdrs.CONTENT_ENCODING] = file.packed, "gzip"
    return web.Response(body=body, headers=headers)


def _takes_gzip(request: EdgeRequest) -> bool:
    for part in request.head.listed(hdrs.ACCEPT_ENCODING):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _made(name: str, body: bytes) -> _File:
    suffix = Path(name).suffix
    compressible = suffix in _COMPRESSED and len(body) >= _SMALLEST_COMPRESSED
    digest = hashlib.blake2b(body, digest_size=12).hexdigest()
    return _File(_KINDS[suffix], body, compressible, f'"{digest}"')


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file that may be served, with its path below the folder; skip links and unusual names."""
    count = size = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        parts = path.relative_to(folder).parts
        if path.suffix not in _KINDS or path.is_symlink() or not path.is_file():
            continue
        if not all(_NAME.match(part) for part in parts):
            continue
        count, size = count + 1, size + path.stat().st_size
        if count > _MAX_FILES or size > _MAX_BYTES:
            raise ValueError(f"{folder} has more than {_MAX_FILES} files or {_MAX_BYTES} bytes")
        yield "/".join(parts), path.read_bytes()
