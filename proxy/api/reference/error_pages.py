"""``/docs/errors``: the meaning of each error code of this version.

The pages are the same for everybody and need no key, because clients without a valid key need them most.
"""

import base64
import hashlib
import html
from functools import cached_property
from typing import Final

from aiohttp import hdrs, web

from proxy import __version__
from proxy.api.reference.error_texts import error_text, error_title
from proxy.api.reference.markdown import marked_up
from proxy.base.error_codes import ERROR_DOCS, ERRORS, ErrorCode
from proxy.base.errors import RequestError
from proxy.server.messages.request import EdgeRequest

_STYLE: Final = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}"
    "code{font-size:.95em}dt{font-weight:600}dd{margin:0 0 .75rem}"
)
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}: toolrelay</title>
<style>{style}</style>
<h1>{title}</h1>
{body}
<p>This is toolrelay {version}.{more}
"""
_ALL: Final = f' <a href="{ERROR_DOCS}">All errors</a>'
_HEADERS: Final = {
    # Nothing may run or load except the style above, and no page may frame it.
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action "
    f"'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "max-age=300",
    "Vary": "Accept",
}


class ErrorPages:
    """The pages below ``/docs/errors``: HTML for browsers, the same as plain text for all others."""

    def serves(self, path: str) -> bool:
        """Return whether a path is below these pages."""
        return f"{path}/".startswith(f"{ERROR_DOCS}/")

    def answer(self, request: EdgeRequest, path: str) -> web.Response:
        """Return the page of a path that :meth:`serves` accepts.

        Raises :class:`~proxy.base.errors.RequestError` (404) for a code that this version does not have.
        """
        name = path.removeprefix(ERROR_DOCS).removeprefix("/")
        error = ERRORS.get(name)
        if name and error is None:
            raise RequestError(
                404,
                f"toolrelay has no error code {name[:64]!r}. It may be the model provider's; {ERROR_DOCS} "
                "lists those of toolrelay.",
                code="not_found",
            )
        if "text/html" in request.headers.get(hdrs.ACCEPT, "").lower():
            text, kind = self._all_as_html if error is None else _as_html(error), "text/html"
        else:
            text, kind = self._all_as_text if error is None else error_text(error), "text/plain"
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)

    @cached_property
    def _all_as_text(self) -> str:
        return "\n".join(map(error_text, ERRORS.values()))

    @cached_property
    def _all_as_html(self) -> str:
        items = "\n".join(
            f'<dt id="{error.name}"><a href="{ERROR_DOCS}/{error.name}"><code>{error.name}</code></a>'
            f"<dd>{marked_up(error.when)}"
            for error in ERRORS.values()
        )
        return _page("Errors", f"<dl>\n{items}\n</dl>", "")


def _as_html(error: ErrorCode) -> str:
    parts = ["<dl>", f"<dt>What happened<dd>{marked_up(error.when)}"]
    if error.remedy:
        parts.append(f"<dt>What to do<dd>{marked_up(error.remedy)}")
    return _page(error_title(error), "\n".join([*parts, "</dl>"]), _ALL)


def _page(title: str, body: str, more: str) -> str:
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body, version=__version__, more=more)
