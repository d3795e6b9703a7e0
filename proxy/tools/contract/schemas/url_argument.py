"""The type of an argument that is a web URL. It accepts only the canonical spelling.

A policy bound checks the spelling of a URL, but the tool fetches what the URL means. The two are the same
only if there is one spelling: no ``..``, no ``%2e``, no other spelling of the host or the port. The proxy
refuses any other spelling and gives the model the canonical one.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import unquote

from msgspec import Struct
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

URL_FORM: Final = "url_form"
"""The type of the validation error for a :data:`Url`; the error's message contains the canonical form."""

_MAX_SHOWN = 400
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_TEXT = re.compile(r"[^\x00-\x20\x7f\\]+")
_ENCODED_SEPARATOR = re.compile(r"%(2f|5c|00)", re.IGNORECASE)
_MOST_ROUNDS = 4


def canonical_url(text: str) -> str | None:
    """Return the canonical spelling of a URL, as the proxy sends it; ``None`` if it is not unambiguous.

    Scheme and host are lower-case ASCII. There is no default port and no fragment. The path is at least
    ``/`` and has no dot segments; escapes are used only where they are needed. Returns ``None`` for a text
    that is not an absolute http or https URL. So it does for what servers read in more than one way: user
    names, backslashes, escaped slashes, dot segments that are hidden by escapes or parameters.
    """
    if _TEXT.fullmatch(text) is None:
        return None
    written = text
    for _ in range(_MOST_ROUNDS):
        spelled = _spelled(written)
        if spelled is None or spelled == written:
            return spelled
        written = spelled
    return None


def _spelled(text: str) -> str | None:
    """Do one round of :func:`canonical_url`: removing some escapes can reveal others."""
    from yarl import URL  # Not before the first check, since most commands make none.

    try:
        url = URL(text).with_fragment(None)
        host, port = url.raw_host, url.explicit_port
    except ValueError:
        return None
    if url.scheme not in ("http", "https") or not host or url.user is not None or url.password is not None:
        return None
    host = f"[{host.lower()}]" if ":" in host else host.lower().removesuffix(".")
    if _HOST.fullmatch(host) is None or _is_ambiguous(url.raw_path):
        return None
    place = f":{port}" if port is not None and port != (443 if url.scheme == "https" else 80) else ""
    query = f"?{url.raw_query_string}" if url.raw_query_string else ""
    return f"{url.scheme}://{host}{place}{url.raw_path or '/'}{query}"


def _is_ambiguous(path: str) -> bool:
    """Return whether a server may read a path as a different one."""
    if _ENCODED_SEPARATOR.search(path):
        return True
    for _ in range(_MOST_ROUNDS):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    else:
        return True
    segments = path.replace("\\", "/").split("/")
    return any(segment.partition(";")[0] in (".", "..") for segment in segments)


class UrlForm(Struct, frozen=True):
    """The marker of an argument that is a URL; :data:`Url` contains it."""


def _check(text: str) -> str:
    canonical = canonical_url(text)
    if canonical == text:
        return text
    if canonical is None:
        raise PydanticCustomError(URL_FORM, "must be an absolute http or https address with one meaning")
    shown = f": {canonical}" if len(canonical) <= _MAX_SHOWN else ""
    raise PydanticCustomError(URL_FORM, "must be written in its canonical form{shown}", {"shown": shown})


Url = Annotated[str, UrlForm(), AfterValidator(_check)]
"""A web URL as an argument of a tool. Its bounds in ``policy.arguments`` also apply to what the tool fetches
from it, redirects included."""


def takes_url(metadata: Sequence[Any]) -> bool:
    """Return whether the metadata of a type marks it as a URL."""
    return any(isinstance(form, UrlForm) for form in metadata)
