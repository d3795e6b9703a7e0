"""``toolrelay mcp add``: adds an MCP server to the configuration, shows its tools, and allows them."""

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from proxy.base.errors import ConfigError
from proxy.base.plain_text import counted, plain_text
from proxy.commands.common import CONFIG_NAME, confirmed, say, say_error
from proxy.commands.mcp.allowing import describe_tool, keep_pins, who, within_bound
from proxy.commands.mcp.looking import InspectedServer, current_pins, inspect_servers
from proxy.commands.mcp.warnings import warnings_of
from proxy.config.load import Config, load_config
from proxy.config.text import toml_value
from proxy.telemetry.log.setup import configure_logging
from proxy.tools.mcp.definitions import SERVER_NAME, pattern_of_server
from proxy.tools.mcp.masking import masked_args, masked_url
from proxy.tools.mcp.pins import MOST_PINNED, Pin
from proxy.tools.mcp.servers import Server

_ADDRESSES: Final = ("http://", "https://", "ws://", "wss://")
_ALLOW = re.compile(r"(?m)^[ \t]*(policy\.)?allow[ \t]*=[ \t]*\[")
_POLICY = re.compile(r"(?m)^[ \t]*\[[ \t]*policy[ \t]*\][^\n]*\n")
_ANY_TABLE = re.compile(r"(?m)^[ \t]*\[")


async def add_server(
    given: Path | None,
    name: str,
    target: Sequence[str],
    *,
    env: Sequence[str],
    yes: bool,
    read_only: Sequence[str],
) -> bool:
    """Connect to a server, show its tools, ask once, then write the configuration and pin the tools.

    ``given`` is the file of the configuration, by default ``toolrelay.toml``, which is made if it is missing.
    ``target`` is a URL, or a command with its arguments; one text with spaces is split as a shell does.
    ``env`` are names of environment variables for the command. ``read_only`` are patterns of the server's
    names for its tools that only read. Without ``yes`` the tools that the server declares read-only are
    proposed as such, and a person answers. Nothing is written unless the answer is yes. Return whether the
    server was added. Raises ConfigError.
    """
    path = given or Path(CONFIG_NAME)
    before = load_config(path if path.exists() else None, os.environ, need_secrets=False)
    _check(before, name, path)
    reached = _reached(name, target)
    if env:
        reached.append(f"env = {toml_value({entry: f'env:{entry}' for entry in env})}")
    with _Draft(path, before, name) as draft:
        effects = dict.fromkeys(read_only, "read_only")
        config = draft.write([*reached, *_effects_line(effects)])
        configure_logging(level="error", secrets=config.log_secrets())
        pins = await current_pins(config)
        (look,) = await inspect_servers(config, {name: config.mcp.known()[name]}, pins)
        if not look.is_ready:
            say_error(f"{name}: not connected, so nothing was added: {look.listing.status.reason}")
            return False
        if not yes:
            effects |= dict.fromkeys(_declared_reads(look), "read_only")
        config = draft.write([*reached, *_effects_line(effects)])
        server = config.mcp.known()[name]
        made = _show(server, look)
        if within_bound(pins, made)[1]:
            say_error(f"nothing was added, since all servers together may have {MOST_PINNED} allowed tools")
            return False
        if not yes and not confirmed(f"Add {name} to {path}, and allow its {counted(len(made), 'tool')}?"):
            hint = "" if sys.stdin.isatty() else "; there is no terminal to ask at: add --yes"
            say_error(f"nothing was added{hint}")
            return False
        draft.keep()
    await keep_pins(config, Path(config.mcp.pins) if config.mcp.pins else None, pins, made)
    say(f"added {name} to {path}; allowed: {', '.join(pin.id for pin in made) or 'none'}")
    say("start the proxy with toolrelay serve; one that runs reads the file at a reload (SIGHUP)")
    return True


def _show(server: Server, look: InspectedServer) -> list[Pin]:
    """Print every tool of a server with all that a person must know; return the pins that allow them."""
    made = []
    for tool in look.tools:
        if tool.live is None:
            continue
        for line in describe_tool(server, tool):
            say(line)
        say("")
        made.append(Pin(tool.live, server.identity, time.time(), who()))
    for omitted in look.listing.status.left_out:
        say_error(f"{server.name}: cannot use the tool {plain_text(omitted.name)}: {omitted.reason}")
    for line in warnings_of([InspectedServer(server, look.listing, look.tools)], {}):
        say(line)
    return made


def _check(config: Config, name: str, path: Path) -> None:
    """Raise ConfigError for a name that cannot be added."""
    if not SERVER_NAME.fullmatch(name):
        raise ConfigError(
            "NAME",
            f"{name[:80]!r} is not a valid server name",
            "Use 1 to 25 lower-case letters, digits and -",
        )
    if name in config.mcp.servers:
        raise ConfigError(
            f"mcp.servers.{name}",
            f"{path} already has this server",
            f"Choose another name, or allow its tools: toolrelay tools allow '{pattern_of_server(name)}'",
        )


def _reached(name: str, target: Sequence[str]) -> list[str]:
    """Return the lines that say how a server is reached; warn about what may be a secret in them."""
    if len(target) == 1 and target[0].startswith(_ADDRESSES):
        if masked_url(target[0]) != target[0]:
            say_error(f"{name}: the URL may contain a secret, which logs can show; better pass it in headers")
        return [f"url = {toml_value(target[0])}"]
    try:
        command, *args = shlex.split(target[0]) if len(target) == 1 else target
    except ValueError:
        raise ConfigError(
            "COMMAND",
            "cannot be split into words",
            "Write it after --: toolrelay mcp add NAME -- COMMAND ARG…",
        ) from None
    if masked_args(args) != tuple(args):
        say_error(f"{name}: the arguments may contain a secret, which others can see; better pass it in env")
    return [f"command = {toml_value(command)}", *([f"args = {toml_value(args)}"] if args else [])]


def _effects_line(effects: Mapping[str, str]) -> list[str]:
    return [f"effects = {toml_value(effects)}"] if effects else []


def _declared_reads(look: InspectedServer) -> list[str]:
    """Return the names of the tools that the server declares read-only."""
    return [
        tool.name
        for tool in look.tools
        if tool.live is not None
        and tool.live.annotations.get("readOnlyHint") is True
        and "*" not in tool.name
    ]


class _Draft:
    """The changed configuration in a file beside the original, which it replaces if it is kept."""

    def __init__(self, path: Path, before: Config, name: str) -> None:
        self._path, self._before, self._name = path, before, name
        handle, draft = tempfile.mkstemp(".toml", f".{path.name}.", path.absolute().parent)
        os.close(handle)
        self._draft = Path(draft)

    def __enter__(self) -> "_Draft":
        return self

    def __exit__(self, *_: object) -> None:
        self._draft.unlink(missing_ok=True)

    def write(self, lines: Sequence[str]) -> Config:
        """Write the configuration with this section of the server; return it. Raise ConfigError if it is
        not what was meant."""
        old = self._path.read_text("utf-8") if self._path.exists() else ""
        section = "\n".join([f"[mcp.servers.{self._name}]", *lines])
        allow = [pattern_of_server(self._name), *self._before.policy.allow]
        text = _with_allow(old, allow[0], allow)
        self._draft.write_text(f"{text.rstrip()}\n\n{section}\n".lstrip(), "utf-8")
        try:
            config = load_config(self._draft, os.environ, need_secrets=f"mcp.servers.{self._name}.")
        except ConfigError as fault:
            parts = (fault.setting, fault.problem, fault.remedy)
            raise ConfigError(*(each.replace(self._draft.name, self._path.name) for each in parts)) from None
        if tuple(config.policy.allow) != tuple(allow) or self._name not in config.mcp.servers:
            raise ConfigError(
                str(self._path),
                "cannot be changed by this command, since policy.allow is not written there as a plain list",
                f"Write [mcp.servers.{self._name}] and policy.allow yourself, then use toolrelay tools allow",
            )
        return config

    def keep(self) -> None:
        """Put the draft in the place of the original, with the original's permissions."""
        if self._path.exists():
            shutil.copymode(self._path, self._draft)
        self._draft.replace(self._path.resolve())


def _with_allow(text: str, pattern: str, whole: Sequence[str]) -> str:
    """Return the text of a configuration whose ``policy.allow`` also has the pattern, as its first element.

    The caller checks the result by reading it.
    """
    for match in _ALLOW.finditer(text):
        header = list(_ANY_TABLE.finditer(text, 0, match.start()))
        is_top = not header
        in_policy = bool(header) and _POLICY.match(text, header[-1].start()) is not None
        if (is_top and match[1]) or (in_policy and not match[1]):
            rest = text[match.end() :]
            comma = "" if re.match(r"\s*\]", rest) else ", "
            return f"{text[: match.end()]}{toml_value(pattern)}{comma}{rest}"
    line = f"allow = {toml_value(whole)}\n"
    if section := _POLICY.search(text):
        return f"{text[: section.end()]}{line}{text[section.end() :]}"
    return f"{text.rstrip()}\n\n[policy]\n{line}"
