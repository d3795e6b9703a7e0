"""Tables of the reference: commands, paths of the admin API, errors, fixtures, headers, metrics, tools."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from typer.main import get_command

from proxy.api.reference.admin_paths import ADMIN_PATHS, AdminPath
from proxy.base.error_codes import ERRORS, ErrorCode
from proxy.commands.cli import app
from proxy.config.text import settings, toml_value
from proxy.http.own_headers import FROM_CLIENTS, TO_CLIENTS, OwnHeader
from proxy.http.rules import REQUEST_HEADERS, RESPONSE_HEADERS
from proxy.telemetry.metric_families import FAMILIES
from proxy.tools.contract.declaration import tool
from proxy.tools.contract.error_codes import TOOL_ERRORS
from proxy.upstreams.recorded.format import (
    CLIENT,
    EVENTS,
    JSON,
    META,
    REQUEST,
    RESPONSE,
    TURN,
    ExchangeCheck,
    ExchangeMatch,
    ExchangeMeta,
    TurnResponse,
)
from proxy.wires.crossing.tables import FieldTable

_ARGUMENT = re.compile(r"^        (?P<name>[a-z_]+): (?P<text>.*(?:\n {12}.*)*)", re.MULTILINE)

FILES: Final = (
    (META, "What the exchange is. A folder without this file is no exchange."),
    (
        f"{CLIENT}/{REQUEST}",
        "What the client sent first. Its further requests are `request-2.json` and so on.",
    ),
    (
        f"{CLIENT}/{EVENTS}",
        "What the client got, if it is a stream. `response-2.sse` belongs to `request-2.json`.",
    ),
    (f"{CLIENT}/{JSON}", "What the client got, if it is no stream."),
    (
        f"{CLIENT}/{RESPONSE}",
        "The status, the headers and the network pieces of that; `response-2.toml` and so on.",
    ),
    (f"{TURN}N/{REQUEST}", "The request to the upstream, `N` = 1, 2, …"),
    (f"{TURN}N/{RESPONSE}", "The status, the headers and the network pieces of the upstream's response."),
    (f"{TURN}N/{EVENTS}", "The body for a request that asks for a stream, byte for byte."),
    (
        f"{TURN}N/{JSON}",
        "The body for any other request, byte for byte. A turn has one of the two bodies, or both.",
    ),
)
"""Each file of an exchange, with its content. A replay reads ``meta.toml`` and the turns."""

_HANDLED: Final[Mapping[str, str]] = {"unneeded": "not needed", "omitted": "left out", "refused": "refused"}


def commands() -> str:
    """Build a section for each command: how to call it, what it does, and a table of its options."""
    return "\n".join(_command(name, command) for name, command in _walk("toolrelay", get_command(app)))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands that can be run, with their full names.

    ``command`` has typer's own type for commands, which it does not export: ``commands`` holds those of a
    group, ``params`` the parameters, ``help`` the text.
    """
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in sorted(children):
        yield from _walk(f"{name} {child}", children[child])


def _command(name: str, command: Any) -> str:
    arguments = [_metavar(item) for item in command.params if item.param_type_name == "argument"]
    rows = [_option(item) for item in command.params if item.param_type_name == "option"]
    table = ["| option | meaning |", "|---|---|", *rows, ""] if rows else []
    call = " ".join([name, *arguments])
    return "\n".join(
        [f"## {name}", "", f"`{call}`", "", _line(inspect.cleandoc(command.help or "")), "", *table]
    )


def _metavar(parameter: Any) -> str:
    text = str(parameter.metavar or parameter.name.upper())
    return text if parameter.required else f"[{text}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" `{_line(option.metavar or option.name.upper())}`"
    return f"| {names}{value} | {_line(option.help or '')} |"


def admin_paths() -> str:
    """Build a table of all paths of the admin API, with their results and query parameters."""
    rows = [_admin_path(one) for one in ADMIN_PATHS]
    return "\n".join(["| path | gives | query |", "|---|---|---|", *rows, ""])


def _admin_path(one: AdminPath) -> str:
    query = "; ".join(
        f"`{parameter.name}`: {parameter.description.removesuffix('.')}"
        for parameter in one.parameters
        if parameter.where == "query"
    )
    return f"| `{one.method} {one.path}` | {_linked(one.description)} | {_linked(query)} |"


def errors() -> str:
    """Build a table of all error codes of responses: status, type, what happened, and what to do."""
    rows = [_error(error) for error in ERRORS.values()]
    return "\n".join(
        ["| code | status | type | what happened | what to do |", "|---|---|---|---|---|", *rows, ""]
    )


def _error(error: ErrorCode) -> str:
    code = f"`{error.code}`" if error.code else "(null)"
    status = " or ".join(map(str, error.statuses))
    kind = f"`{error.type}`" if error.type else ""
    cells = (f'<a id="{error.name}"></a>{code}', status, kind, _linked(error.when), _linked(error.remedy))
    return f"| {' | '.join(cells)} |"


def tool_errors() -> str:
    """Build a table of all codes that the result of a failed call can have."""
    rows = [
        f'| <a id="tool-{code}"></a>`{code}` | {_linked(meaning)} |' for code, meaning in TOOL_ERRORS.items()
    ]
    return "\n".join(["| error_code | what happened |", "|---|---|", *rows, ""])


def request_headers() -> str:
    """Build a table of the request headers that the proxy itself reads."""
    return _headers("request header", FROM_CLIENTS)


def response_headers() -> str:
    """Build a table of the headers that the proxy sets in responses."""
    return _headers("response header", TO_CLIENTS)


def _headers(title: str, headers: Iterable[OwnHeader]) -> str:
    rows = [f"| {_codes(header.names)} | {_linked(header.meaning)} |" for header in headers]
    return "\n".join([f"| {title} | meaning |", "|---|---|", *rows, ""])


def passed_headers() -> str:
    """Build a table of the headers that pass between clients and every upstream."""
    return (
        "| direction | headers |\n|---|---|\n"
        f"| from the client to the upstream | {_codes(REQUEST_HEADERS)} |\n"
        f"| from the upstream to the client | {_codes(RESPONSE_HEADERS)} |\n"
    )


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def metrics() -> str:
    """Build a table of all metrics: name, kind, labels and meaning."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {_line(family.help)} |")
    return "\n".join(lines) + "\n"


def tool_options() -> str:
    """Build a table of the options of ``@tool``, from its docstring, with their defaults."""
    parameters = inspect.signature(tool).parameters
    lines = ["| option of `@tool` | default | meaning |", "|---|---|---|"]
    for found in _ARGUMENT.finditer(tool.__doc__ or ""):
        if (parameter := parameters.get(found["name"])) is not None:
            default = parameter.default
            shown = default.value if hasattr(default, "value") else default
            lines.append(f"| `{found['name']}` | `{shown!r}` | {_line(found['text'])} |")
    return "\n".join(lines) + "\n"


def fixture_files() -> str:
    """Build a table of the files of a fixture."""
    rows = [f"| `{name}` | {_line(holds)} |" for name, holds in FILES]
    return "\n".join(["| file | holds |", "|---|---|", *rows, ""])


def fixture_meta() -> str:
    """Build a table of the keys of a fixture's ``meta.toml``."""
    return _keys(("", ExchangeMeta), ("match.", ExchangeMatch), ("check.", ExchangeCheck))


def fixture_response() -> str:
    """Build a table of the keys of a turn's ``response.toml``."""
    return _keys(("", TurnResponse))


def _keys(*tables: tuple[str, type[BaseModel]]) -> str:
    """Build a table of the keys of a TOML file; each key follows the prefix of its table."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for before, model in tables:
        for name, info in model.model_fields.items():
            default = toml_value(info.default)
            lines.append(f"| `{before}{name}` | `{default}` | {_line(info.description or '')} |")
    return "\n".join(lines) + "\n"


def _linked(text: str) -> str:
    """Adapt links that are relative to ``docs/`` to a page in a folder of ``docs/``."""
    return _line(text).replace("](", "](../")


def _line(text: str) -> str:
    """Put a text on one line of a table, with Markdown's code marks."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def settings_table() -> str:
    """Return every setting as a Markdown table: name, default, meaning."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in settings():
        default = f"`{setting.default}`" if setting.default else "required"
        meaning = setting.meaning.replace("|", "\\|")
        lines.append(f"| `{setting.name}` | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def read_fields(table: FieldTable) -> str:
    """Return a Markdown table of how each field of a dialect's requests is translated."""
    rows = ["| field | becomes |", "|---|---|"]
    for name in sorted(table.read):
        rule = table.read[name]
        becomes = f"`{'`, `'.join(rule.to)}`" if rule.to else f"{_HANDLED[rule.handling]}: {rule.reason}"
        rows.append(f"| `{name}` | {becomes} |")
    return "\n".join(rows) + "\n"


def missing_aspects(table: FieldTable) -> str:
    """Return a Markdown table of what other dialects' clients can ask for and this one cannot express."""
    rows = ["| asked for | which is |", "|---|---|"]
    for name, rule in sorted(table.written.items()):
        if not rule.to:
            rows.append(f"| `{name}` | {_HANDLED[rule.handling]}: {rule.reason} |")
    return "\n".join(rows) + "\n"
