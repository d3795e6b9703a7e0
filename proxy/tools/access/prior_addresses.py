"""Whether an address occurred in a conversation before its model asks for it: only such a one is fetched.

A model that has read a stranger's text could otherwise send what it knows to the stranger, as a part of an
invented address. Addresses are compared in their canonical spelling, whole: another path, query, port,
subdomain or letter is another address. What the model itself wrote does not count, and neither does a result
that only repeats it.

Source of the rule: Anthropic's page "Web fetch tool", "URL validation".
"""

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

from proxy.base.conversation import Spoken
from proxy.tools.contract.schemas.url_argument import canonical_url

LONGEST_ADDRESS: Final = 2048
_MOST_TEXT: Final = 64 << 20
"""Characters of a conversation that are searched; an address that comes after them is not known."""
_ADDRESS: Final = re.compile(
    r"https?:(?:\\?/){2}[^\s\"'<>`\u3000-\u303f\uff00-\uff0f\uff1a-\uff1f\uff3b-\uff40\uff5b-\uff65]+",
    re.IGNORECASE,
)
_BARE: Final = re.compile(
    r"(?<![\w@./:%&=?#-])(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}(?::\d{1,5})?(?:/[^\s\"'<>`]*)?", re.IGNORECASE
)
"""An address without its scheme, as people write it."""
_ESCAPES: Final = {"\\/": "/", "\\u0026": "&", "\\u003d": "="}
_ESCAPED_SPACE: Final = re.compile(r"\\[nrt\"]")
"""Escapes in a JSON text inside a text: of characters of addresses, and of what ends them."""
_AROUND: Final = ".,;:!?*_~|)]}"
"""Characters after an address that belong to the sentence, unless they belong to the address."""
_MOST_AROUND: Final = 8
_MOST_SPELLINGS: Final = 5000
"""Spellings of addresses that are read, some 0.1 ms each: a text can have millions that all look alike."""
_SHORT: Final = 12
"""Characters of a path below which it may occur in a text by chance."""


def occurred(wanted: str, conversation: Iterable[Spoken]) -> bool:
    """Return whether a conversation, from its beginning, has mentioned an address in its canonical spelling.

    A result does not count if the model had written the address, or what tells it from others, before.
    """
    left, host, said, host_known = _MOST_TEXT, (urlsplit(wanted).hostname or ""), False, False
    read: set[str] = set()
    for speaker, text in conversation:
        left -= len(text)
        if left < 0:
            return False
        if speaker == "model":
            said = said or _is_said(wanted, host, text, host_known=host_known)
            continue
        counts = speaker == "client" or not said
        if counts and mentions(text, wanted, bare=speaker == "client", read=read):
            return True
        host_known = host_known or host in text.lower()
    return False


def mentions(text: str, wanted: str, *, bare: bool = False, read: set[str] | None = None) -> bool:
    """Return whether a text has an address, in any spelling of its own; ``bare``: also without a scheme.

    ``read`` are the spellings that were read in other texts, which have one bound together.
    """
    host, read = urlsplit(wanted).hostname or "", set() if read is None else read
    if not _names(text, host):
        return False
    for found in _ADDRESS.finditer(text):
        if _names(found[0], host) and wanted in _spellings(found[0], wanted, read):
            return True
    if not bare:
        return False
    scheme = wanted.partition("://")[0]
    matches = (found[0] for found in _BARE.finditer(text))
    return any(
        _names(match, host) and wanted in _spellings(f"{scheme}://{match}", wanted, read) for match in matches
    )


def repeats(written: str, address: str) -> bool:
    """Return whether an address, or its path and query, is what a model wrote: a result that has it may only
    repeat that."""
    url = urlsplit(address)
    return _is_said(
        address, url.hostname or "", written, host_known=f"{url.path}{url.query}" not in ("", "/")
    )


def _names(written: str, host: str) -> bool:
    """Return whether a text may name a host, which other letters may mean, too."""
    return host in written.lower() or ("xn--" in host and not written.isascii())


def _spellings(written: str, wanted: str, read: set[str]) -> Iterator[str | None]:
    """Yield the canonical spellings of what an address in a text may mean, if it ends like the ``wanted``
    one: without what only follows it, and without the escapes of the text around it."""
    written = _ESCAPED_SPACE.split(written[: LONGEST_ADDRESS * 2], maxsplit=1)[0]
    for escape, meant in _ESCAPES.items():
        written = written.replace(escape, meant)
    end = unquote_plus(wanted.rpartition("/")[2]).lower()
    for plain in dict.fromkeys((written, html.unescape(written))):
        if end not in unquote_plus(plain).lower():
            continue
        for _ in range(_MOST_AROUND + 1):
            if plain not in read:
                if len(read) >= _MOST_SPELLINGS:
                    return
                read.add(plain)
                yield canonical_url(plain)
            if plain[-1:] not in _AROUND:
                break
            plain = plain[:-1]


def _is_said(wanted: str, host: str, text: str, *, host_known: bool) -> bool:
    """Return whether a model's text has what tells an address from others: its path and query, or its host if
    nobody else has mentioned that."""
    plain = unquote(text).lower()
    tail = unquote(wanted.partition(host)[2]).lower()
    sign = tail.lstrip("/")
    if sign and (sign if len(sign) >= _SHORT else tail) in plain:
        return True
    if tail not in ("", "/"):
        # A search within a site names it; that does not tell the addresses of its pages.
        plain = plain.replace(f"site:{host}", "")
    return not host_known and host in plain
