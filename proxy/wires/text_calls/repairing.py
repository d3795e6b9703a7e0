"""Repairs common mistakes of models in JSON: single quotes, and commas before a closing bracket."""

import re
from typing import Final

_PIECE: Final = re.compile(r"""["',]|[^"',]++""")
_IN_STRING: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*'", re.DOTALL),
}
_BEFORE_END: Final = re.compile(r"\s*+[}\]]")
_ESCAPED: Final = re.compile(r"\\.|\"", re.DOTALL)


def repaired_json(text: str) -> tuple[str, list[str]]:
    """Return a repaired JSON text, and its mistakes, each once. If there are none, nothing was changed."""
    made: list[str] = []
    mistakes: dict[str, None] = {}
    at = 0
    while (piece := _PIECE.match(text, at)) is not None:
        sign, at = piece[0], piece.end()
        if sign in _IN_STRING:
            whole = _IN_STRING[sign].match(text, at)
            if whole is None:
                return text, []
            at = whole.end()
            if sign == "'":
                mistakes["single quotes"] = None
                made.append(f'"{_ESCAPED.sub(_double_quoted, whole[0][:-1])}"')
            else:
                made.append(sign + whole[0])
        elif sign == "," and _BEFORE_END.match(text, at):
            mistakes["a trailing comma"] = None
        else:
            made.append(sign)
    return "".join(made), list(mistakes)


def _double_quoted(match: re.Match[str]) -> str:
    """Return an escape or a double quote of a single-quoted string as a double-quoted string writes it."""
    if match[0] == "\\'":
        return "'"
    return '\\"' if match[0] == '"' else match[0]
