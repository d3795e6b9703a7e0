"""Pages for people that need no script: one form, one style, and a policy that lets nothing else run or
load."""

import base64
import hashlib
import html
from typing import Final

from proxy import __version__

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
PAGE_STYLE_HEADERS: Final = {
    # Nothing may run or load except the style above, and no page may frame it.
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action "
    f"'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def html_page(title: str, body: str, more: str = "") -> str:
    """Return a page; ``title`` is text, ``body`` and ``more`` are HTML."""
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body, version=__version__, more=more)
