"""Reads MCP servers from the files of other programs, within limits; it executes nothing from a file.

Shapes, as each program documents its file: Claude Desktop, Claude Code, Cursor and Windsurf ``mcpServers``;
VS Code ``servers``, also below ``mcp`` in its settings; Gemini CLI ``mcpServers`` with ``httpUrl``; Codex
``mcp_servers`` in TOML. VS Code and Gemini CLI allow comments and trailing commas.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from proxy.base.plain_text import plain_text
from proxy.tools.mcp.definitions import SERVER_NAME

_MAX_BYTES: Final = 1 << 20
_MAX_SERVERS: Final = 64
_MAX_TEXT: Final = 4096
_TABLES = (("mcpServers",), ("mcp_servers",), ("servers",), ("mcp", "servers"))
_IGNORED_KEYS = (
    "trust",
    "alwaysAllow",
    "autoApprove",
    "excludeTools",
    "disabled_tools",
    "startup_timeout_sec",
)
"""Known keys without a counterpart here; the tools of each server still have to be allowed."""

_STRING = r'("[^"\\]*(?:\\.[^"\\]*)*"?)'
"""A string, also one without an end: to look for the end behind each quote anew takes quadratic time."""
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)


_VARIABLE = re.compile(r"\$\{([^{}]{1,200})\}")
_ENV_REFERENCE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_INPUT_PREFIX = "input:"


class UnknownVariable(Exception):
    """Raised if a text has a variable that is not known here; the message is the variable."""


class Variable(Struct, frozen=True):
    """A variable in a text: its ``name`` in the environment, and its ``default`` if it is not set.

    ``input_id`` is the id of a VS Code input. VS Code asks a person for its value; toolrelay asks nobody.
    """

    name: str
    default: str | None = None
    input_id: str = ""


class UnusableFile(Exception):
    """Raised if a file cannot be read as one with MCP servers; the message follows the file's name."""


class UnusableServer(Struct, frozen=True):
    """An entry of a file that cannot be a server here; ``reason`` follows its name in a message."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """A server in another program's file.

    ``key`` is its name there, ``name`` the one that it gets here. Texts are as written, with variables such
    as ``${NAME}``. ``timeout_s`` is in seconds. ``ignored_keys`` are keys of the file that have no
    counterpart here. A ``disabled`` server must not be started.
    """

    key: str
    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] = ()
    timeout_s: float | None = None
    ignored_keys: tuple[str, ...] = ()
    disabled: bool = False


class _Unfit(Exception):
    """Raised if an entry cannot be a server."""


def read_servers(path: Path) -> list[ForeignServer | UnusableServer]:
    """Return the servers of a file, in its order. Raises :class:`UnusableFile`."""
    servers: list[ForeignServer | UnusableServer] = []
    for key, written in _table(_parsed(path)).items():
        try:
            servers.append(_server(key, written))
        except _Unfit as fault:
            servers.append(UnusableServer(plain_text(key), str(fault)))
    return servers


def split_variables(server: str, text: str) -> list[str | Variable]:
    """Split a text into plain strings and variables.

    ``server`` becomes part of the names of variables for VS Code inputs. Raises :class:`UnknownVariable`.
    """
    pieces: list[str | Variable] = []
    for place, part in enumerate(_VARIABLE.split(text)):
        if place % 2:
            pieces.append(_variable(server, part))
        elif part:
            pieces.append(part)
    return pieces


def _variable(server: str, text: str) -> Variable:
    if text.startswith(_INPUT_PREFIX):
        input_id = text.removeprefix(_INPUT_PREFIX)
        return Variable(variable_name(server, input_id), input_id=input_id)
    if text == "userHome":
        return Variable("HOME")
    named = _ENV_REFERENCE.fullmatch(text)
    if named is None or text == "workspaceFolder":
        raise UnknownVariable(f"${{{plain_text(text)}}}")
    return Variable(named[1], named[2])


def variable_name(*parts: str) -> str:
    """Return a valid name for an environment variable."""
    return re.sub(r"[^A-Z0-9_]", "_", "_".join(parts).upper())


def _parsed(path: Path) -> Any:
    try:
        # A wrong path may name anything, even a device.
        if not path.is_file():
            raise UnusableFile("does not exist, or is not a file")
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise UnusableFile(f"is larger than {_MAX_BYTES} bytes")
    is_toml = path.suffix == ".toml"
    try:
        text = raw.decode("utf-8-sig")
        return tomllib.loads(text) if is_toml else json.loads(_plain_json(text))
    except UnicodeDecodeError:
        raise UnusableFile("is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise UnusableFile(
            f"is not valid {'TOML' if is_toml else 'JSON'}: {plain_text(str(error))}"
        ) from None


def _plain_json(text: str) -> str:
    """Return the text without comments and trailing commas."""
    text = _COMMENT.sub(lambda match: match[1] or " ", text)
    return _LAST_COMMA.sub(lambda match: match[1] or "", text)


def _table(read: Any) -> Mapping[str, Any]:
    for keys in _TABLES:
        table = read
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            if len(table) > _MAX_SERVERS:
                raise UnusableFile(f"has more than {_MAX_SERVERS} servers")
            return table
    raise UnusableFile("has no servers: it has none of the keys mcpServers, mcp_servers and servers")


def _server(key: str, written: Any) -> ForeignServer:
    """Read one entry; raise :class:`_Unfit` if it cannot be a server."""
    if not isinstance(written, dict):
        raise _Unfit("it is not a table")
    name = re.sub(r"[^a-z0-9-]+", "-", key.lower()).strip("-")[:25].strip("-")
    if not SERVER_NAME.fullmatch(name):
        raise _Unfit("its name has no letters or digits")
    if written.get("type") == "sse":
        raise _Unfit(
            "it uses the older HTTP+SSE transport, which is not supported; write its streamable HTTP address"
        )
    if "envFile" in written:
        raise _Unfit("envFile is not supported; write its variables in env")
    command, url = written.get("command"), _address(written)
    if not command and not url:
        raise _Unfit("it has neither command nor url")
    if not command and isinstance(url, str) and url.startswith(("ws://", "wss://")):
        raise _Unfit("it uses a WebSocket, which is not supported; write its streamable HTTP address")
    reached: dict[str, Any] = {
        "command": _text("command", command or ""),
        "args": tuple(_texts("args", written.get("args"))),
        "cwd": _text("cwd", written.get("cwd") or ""),
        "env": dict(_env(written)),
    }
    if not command:
        reached = {"url": _text("url", url), "headers": dict(_headers(written))}
    return ForeignServer(
        key,
        name,
        **reached,
        tools=tuple(_texts("tools", written.get("enabled_tools") or written.get("includeTools"))),
        timeout_s=_timeout_s(written),
        ignored_keys=tuple(sorted(set(written) & set(_IGNORED_KEYS))),
        disabled=written.get("disabled") is True or written.get("enabled") is False,
    )


def _address(written: Mapping[str, Any]) -> Any:
    # If Gemini CLI has both, url is for the older HTTP+SSE transport.
    return written.get("httpUrl") or written.get("url") or written.get("serverUrl")


def _env(written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the environment variables; Codex also forwards variables by name only."""
    for name in _texts("env_vars", written.get("env_vars")):
        yield name, f"${{{name}}}"
    yield from _values("env", written.get("env"))


def _headers(written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers; Codex gives some by the names of environment variables."""
    yield from _values("headers", written.get("headers") or written.get("http_headers"))
    for header, variable in _values("env_http_headers", written.get("env_http_headers")):
        yield header, f"${{{variable}}}"
    if bearer := written.get("bearer_token_env_var"):
        yield "authorization", f"Bearer ${{{_text('bearer_token_env_var', bearer)}}}"


def _values(where: str, values: Any) -> Iterator[tuple[str, str]]:
    if values is None:
        return
    if not isinstance(values, dict):
        raise _Unfit(f"its {where} is not a table")
    for name, value in values.items():
        yield _text(where, name), _text(f"{where}.{name}", value)


def _texts(where: str, values: Any) -> list[str]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise _Unfit(f"its {where} is not a list")
    return [_text(f"{where}[{place}]", value) for place, value in enumerate(values)]


def _text(where: str, value: Any) -> str:
    """Return a text; numbers and booleans become text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise _Unfit(f"its {plain_text(where)} is not a string")
    if len(value) > _MAX_TEXT or "\0" in value or not _is_encodable(value):
        raise _Unfit(f"its {plain_text(where)} is longer than {_MAX_TEXT} characters, or is not valid text")
    return value


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _timeout_s(written: Mapping[str, Any]) -> float | None:
    """Return the seconds of one call: Codex writes seconds, Gemini CLI milliseconds."""
    seconds, milliseconds = written.get("tool_timeout_sec"), written.get("timeout")
    for value, unit in ((seconds, 1.0), (milliseconds, 1000.0)):
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return value / unit
    return None
