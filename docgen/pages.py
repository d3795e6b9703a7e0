"""The pages of ``docs/`` that contain generated parts, each between two marks."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from docgen.llms import llms_text
from docgen.modules import folders, shared_modules
from docgen.profiles import profiles
from docgen.tables import (
    admin_paths,
    commands,
    errors,
    fixture_files,
    fixture_meta,
    fixture_response,
    metrics,
    missing_aspects,
    passed_headers,
    read_fields,
    request_headers,
    response_headers,
    settings_table,
    tool_errors,
    tool_options,
)
from proxy.api.reference.admin_openapi import admin_openapi
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS, OLLAMA_FIELDS
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS

OPENAPI: Final = "reference/admin-api.openapi.json"

_FIELDS: Final = (CHAT_FIELDS, RESPONSES_FIELDS, ANTHROPIC_FIELDS, OLLAMA_FIELDS, COMPLETION_FIELDS)

PARTS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "dialects.md": {
        **{f"read {table.dialect}": partial(read_fields, table) for table in _FIELDS},
        # The proxy sends no upstream requests in a dialect whose table has nothing ``written``.
        **{f"written {table.dialect}": partial(missing_aspects, table) for table in _FIELDS if table.written},
        "profiles": profiles,
    },
    "packages.md": {"modules": shared_modules, "folders": folders},
    "reference/admin-api.md": {"paths": admin_paths},
    "reference/cli.md": {"commands": commands},
    "reference/errors.md": {"errors": errors, "tool-errors": tool_errors},
    "reference/fixtures.md": {
        "files": fixture_files,
        "meta": fixture_meta,
        "turn": fixture_response,
    },
    "reference/headers.md": {
        "request": request_headers,
        "response": response_headers,
        "passed": passed_headers,
    },
    "reference/metrics.md": {"metrics": metrics},
    "reference/settings.md": {"settings": settings_table},
    "reference/tool-api.md": {"tool": tool_options},
}
"""For each page its marks, and what makes the text between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""


def pages(root: Path) -> dict[str, str]:
    """Return the current text of each generated page, by its path below ``docs/``.

    :raises ValueError: a page lacks one of its marks.
    """
    found = {name: _filled((root / "docs" / name).read_text("utf-8"), name) for name in PARTS}
    found["llms.txt"] = llms_text(root)
    found[OPENAPI] = json.dumps(admin_openapi(), indent=2) + "\n"
    return found


def _filled(text: str, name: str) -> str:
    for mark, make in PARTS[name].items():
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        if begin not in text or end not in text:
            raise ValueError(f"docs/{name} lacks {begin.strip()} or {end}")
        before, _, rest = text.partition(begin)
        text = before + begin + make() + end + rest.partition(end)[2]
    return text
