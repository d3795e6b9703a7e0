"""The pages of ``docs/`` that hold a part made from the code, between two marks."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docgen.llms import llms_text
from docgen.tables import commands, metrics, tool_options
from proxy.server.config.text import settings_table

__all__ = ["ERRORS", "PARTS", "pages"]

ERRORS: Final = "reference/errors.md"
_BARE: Final = re.compile(r"^\| `(?P<code>[a-z_]+)` \|", re.MULTILINE)
_ANCHOR: Final = re.compile(r'<a id="([a-z_-]+)">')

PARTS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "reference/cli.md": {"commands": commands},
    "reference/metrics.md": {"metrics": metrics},
    "reference/settings.md": {"settings": settings_table},
    "reference/tool-api.md": {"tool": tool_options},
}
"""For each page its marks, and what makes the text between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""


def pages(root: Path) -> dict[str, str]:
    """Each such page as it has to be, by its path below ``docs/``.

    :raises ValueError: a page lacks one of its marks.
    """
    found = {name: _filled((root / "docs" / name).read_text("utf-8"), name) for name in PARTS}
    found["llms.txt"] = llms_text(root)
    return {**found, ERRORS: _with_anchors((root / "docs" / ERRORS).read_text("utf-8"))}


def _with_anchors(text: str) -> str:
    """The page on errors, with a place to link to in front of each code that has none yet."""
    errors, title, calls = text.partition("\n## Tool calls\n")
    known: set[str] = set(_ANCHOR.findall(errors))

    def anchored(prefix: str, row: re.Match[str]) -> str:
        name = prefix + row["code"]
        if name in known:
            return row.group()
        known.add(name)
        return f'| <a id="{name}"></a>`{row["code"]}` |'

    return (
        _BARE.sub(lambda row: anchored("", row), errors)
        + title
        + _BARE.sub(lambda row: anchored("tool-", row), calls)
    )


def _filled(text: str, name: str) -> str:
    for mark, make in PARTS[name].items():
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        if begin not in text or end not in text:
            raise ValueError(f"docs/{name} lacks {begin.strip()} or {end}")
        before, _, rest = text.partition(begin)
        text = before + begin + make() + end + rest.partition(end)[2]
    return text
