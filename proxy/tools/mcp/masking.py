"""Find what may be a secret in command lines, addresses and environments, and hide it from people.

Others can see a process's command line, and addresses get into logs. Programs write secrets there all the
same, so they are recognised by their names and by the beginnings that providers give their tokens.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "<hidden>"
"""Stands in place of what may be a secret."""

_NAME = re.compile(
    r"(?i)(^|[^a-z])(auth|authorization|bearer|cookie|credentials?|pat|passwd|password|secret|token)([^a-z]|$)"
    r"|(api|access|private|secret|auth)[_-]?key|(^|[^a-z])key$"
)
_VALUE = re.compile(
    r"(?i)(bearer |basic |sk-|gh[opsu]_|github_pat_|glpat-|xox[abeprs]-|akia|aiza|eyj|-----begin)\S"
)
_NAME_AND_VALUE = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)(=|:\s*)(.+)", re.DOTALL)
"""``--name=value``, ``NAME=value`` and ``Header: value``."""
_WORD = re.compile(r"(?=(?:[^0-9]*[0-9]){4})(?=.*[A-Za-z])[A-Za-z0-9_-]{20,}")
"""A word of an address that looks made by chance."""
_ADDRESSES: Final = ("http://", "https://")
_PASSWORD = re.compile(r"://[^/@\s][^/:@\s]*+:[^/@\s]++@")
"""A password in an address, such as that of a database."""


def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, header, parameter or option of this name may be a secret."""
    return _NAME.search(name) is not None and not name.lower().endswith(("file", "path", "name", "env"))


def is_secret_value(text: str) -> bool:
    """Return whether a value begins as tokens of known services do, or has a password in an address."""
    return _VALUE.match(text) is not None or _PASSWORD.search(text) is not None


def masked_args(args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command with :data:`HIDDEN` in place of values that may be secrets."""
    shown: list[str] = []
    option = ""
    for argument in args:
        if is_secret_name(option) and not argument.startswith(("-", "$")):
            shown.append(HIDDEN)
        else:
            shown.append(_masked(argument))
        option = argument if argument.startswith("-") and _NAME_AND_VALUE.fullmatch(argument) is None else ""
    return tuple(shown)


def masked_url(url: str) -> str:
    """Return an address with :data:`HIDDEN` in place of passwords, parameters and parts of the path that may
    be secrets."""
    address, mark, query = url.partition("?")
    scheme, colon, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    _, sign, host = place.rpartition("@")
    parts = (HIDDEN if _WORD.fullmatch(part) or is_secret_value(part) else part for part in path.split("/"))
    pairs = (_masked_pair(pair) for pair in query.split("&"))
    return "".join(
        (scheme, colon, f"{HIDDEN}@" if sign else "", host, slash, "/".join(parts), mark, "&".join(pairs))
    )


def _masked(text: str) -> str:
    """Return one argument; it may be a name and a value, which may be another name and value."""
    if text.startswith(_ADDRESSES):
        return masked_url(text)
    if is_secret_value(text):
        return HIDDEN
    named = _NAME_AND_VALUE.fullmatch(text)
    if named is None:
        return text
    head, value = text[: named.start(3)], named[3]
    return head + (HIDDEN if _is_secret(named[1], value) else _masked(value))


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    plain = unquote(value)
    return f"{name}{equals}{HIDDEN}" if _is_secret(unquote(name), plain) or _WORD.fullmatch(plain) else pair


def _is_secret(name: str, value: str) -> bool:
    """Return whether a named value may be a secret; the name of a variable in its place is none."""
    return bool(value) and not value.startswith("$") and (is_secret_name(name) or is_secret_value(value))
