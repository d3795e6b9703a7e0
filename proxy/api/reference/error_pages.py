"""``/docs/errors``: the meaning of each error code of this version.

The pages are the same for everybody and need no key, because clients without a valid key need them most.
"""

from functools import cached_property
from typing import Final

from aiohttp import hdrs, web

from proxy.api.reference.error_texts import error_text, error_title
from proxy.api.reference.html_page import PAGE_STYLE_HEADERS, html_page
from proxy.api.reference.markdown import marked_up
from proxy.base.error_codes import ERROR_DOCS, ERRORS, ErrorCode
from proxy.base.errors import RequestError
from proxy.server.messages.request import EdgeRequest

_ALL: Final = f' <a href="{ERROR_DOCS}">All errors</a>'
_HEADERS: Final = {**PAGE_STYLE_HEADERS, "Cache-Control": "max-age=300", "Vary": "Accept"}


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
        return html_page("Errors", f"<dl>\n{items}\n</dl>")


def _as_html(error: ErrorCode) -> str:
    parts = ["<dl>", f"<dt>What happened<dd>{marked_up(error.when)}"]
    if error.remedy:
        parts.append(f"<dt>What to do<dd>{marked_up(error.remedy)}")
    return html_page(error_title(error), "\n".join([*parts, "</dl>"]), _ALL)
