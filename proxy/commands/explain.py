"""``toolrelay explain``: what an error code, a setting, a header or a metric means.

The texts equal those in ``docs/reference``, because both are generated from the same data.
"""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import cast

from proxy.api.reference.error_texts import error_text
from proxy.api.reference.markdown import plain
from proxy.base.error_codes import ERRORS
from proxy.base.errors import ConfigError, ToolErrorCode
from proxy.config.text import Setting, settings
from proxy.http.own_headers import FROM_CLIENTS, TO_CLIENTS
from proxy.telemetry.metric_families import FAMILIES
from proxy.tools.contract.error_codes import TOOL_ERRORS


def explain(name: str) -> str:
    """Return the explanations of a name: one text for each kind of thing with that name.

    ``name`` is an error code, an HTTP status, a setting (``server.port``, ``upstreams.mine.base_url``), a
    table of settings (``server``), a header or a metric. For any other name, raises
    :class:`~proxy.base.errors.ConfigError` with a similar name.
    """
    name = name.strip().strip("[]")
    if texts := list(_texts(name)):
        return "\n".join(texts)
    near = get_close_matches(name, _names(), n=1, cutoff=0.6)
    raise ConfigError(
        name[:64] or "NAME",
        "there is no error code, setting, header or metric of this name",
        f"Did you mean {near[0]}?" if near else "docs/reference lists all of them",
    )


def hint(lines: Iterable[str], codes: Iterable[str] = ()) -> str:
    """Return a line with the command that explains the first explainable fault; empty if there is none.

    ``lines`` are faults that begin with a setting (``server.port: got …``); ``codes`` are error codes.
    """
    known = (name for name in (*(line.partition(": ")[0] for line in lines), *codes) if _is_explained(name))
    name = next(known, "")
    return f"to read more, run: toolrelay explain {name}" if name else ""


def _is_explained(name: str) -> bool:
    return name in ERRORS or name in TOOL_ERRORS or bool(_settings_of(name))


def _texts(name: str) -> Iterator[str]:
    if name in ERRORS:
        yield error_text(ERRORS[name])
    if name in TOOL_ERRORS:
        meaning = TOOL_ERRORS[cast("ToolErrorCode", name)]
        yield _text(f"{name} (error code of a tool call)", [f"What happened: {plain(meaning)}"])
    settings_named = _settings_of(name)
    yield from map(_of_setting, settings_named)
    table = [setting for setting in settings() if _is_called(setting.name.rpartition(".")[0], name)]
    if table and not settings_named:
        yield _text(f"[{name}] (table of settings)", [f"{row.name}: {plain(row.meaning)}" for row in table])
    for kind, headers in (("request", FROM_CLIENTS), ("response", TO_CLIENTS)):
        for header in headers:
            if name.lower() in header.names:
                yield _text(f"{name.lower()} ({kind} header)", [plain(header.meaning)])
    for family in FAMILIES:
        if family.name == name:
            labels = [f"Labels: {', '.join(family.labels)}"] if family.labels else []
            yield _text(f"{name} ({family.kind})", [family.help, *labels])


def _settings_of(name: str) -> list[Setting]:
    """Return the setting with this name, else the setting that contains it: ``policy.arguments`` for
    ``policy.arguments.pay.eur``."""
    while name:
        if named := [setting for setting in settings() if _is_called(setting.name, name)]:
            return named
        name = name.rpartition(".")[0]
    return []


def _of_setting(setting: Setting) -> str:
    default = f"Default: {setting.default}" if setting.default else "This setting is required."
    return _text(f"{setting.name} (setting)", [plain(setting.meaning), default])


def _text(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, "", *(f"  {' '.join(line.split())}" for line in lines), ""])


def _is_called(pattern: str, name: str) -> bool:
    """Return whether a setting has this name; ``*`` in ``pattern`` stands for a name that a user chose."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None


def _names() -> list[str]:
    """Return every name that has an explanation."""
    headers = [name for header in (*FROM_CLIENTS, *TO_CLIENTS) for name in header.names]
    return [
        *ERRORS,
        *TOOL_ERRORS,
        *(setting.name for setting in settings()),
        *headers,
        *(family.name for family in FAMILIES),
    ]
