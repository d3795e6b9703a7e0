"""``mcp.import``: uses servers from other programs' files as if they were written below ``[mcp.servers]``.

The files are read whenever the configuration is read: at the start and at each reload. They are checked like
``toolrelay.toml``, and every fault names the setting and the file.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from proxy.base.errors import ConfigError, Faults
from proxy.base.plain_text import plain_text
from proxy.config.mcp.files import (
    ForeignServer,
    UnknownVariable,
    UnusableFile,
    UnusableServer,
    Variable,
    read_servers,
    split_variables,
    variable_name,
)
from proxy.config.secret import Secret
from proxy.tools.mcp.masking import is_secret_name, is_secret_value

_SETTING: Final = "mcp.import"
_MAX_FILES: Final = 16
_OF_ONE_SERVER: Final = ("command", "args", "env", "cwd", "url", "headers")
"""The keys that define how a server is reached; a section may set all other keys of an imported server."""


class _File(Struct, frozen=True):
    """An imported file: its name in the setting, its folder, and the environment variables."""

    name: str
    folder: Path
    env: Mapping[str, str]

    def fault(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(_SETTING, f'"{self.name}" {problem}', remedy)

    def fault_of(self, key: str, problem: str, remedy: str) -> ConfigError:
        return ConfigError(_SETTING, f'"{self.name}": {plain_text(key)}: {problem}', remedy)


def imported_files(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that ``mcp.import`` names in the raw tables of a configuration, each with its path.

    Yields nothing if it is not a list of strings; validation reports that.
    """
    mcp = data.get("mcp")
    named = mcp.get("import") if isinstance(mcp, dict) else None
    for name in named if isinstance(named, list | tuple) else ():
        if isinstance(name, str):
            yield name, (folder / Path(name).expanduser()).absolute()


def merge_imports(
    data: dict[str, Any], folder: Path, env: Mapping[str, str], sources: dict[str, str], own: str
) -> list[ConfigError]:
    """Add the servers of the files that ``mcp.import`` names to the raw tables of a configuration; return the
    faults.

    A section of the same name may set keys that the file cannot have, such as effects. ``sources`` maps each
    setting to words that say where it was written; ``own`` is the name of the configuration's file.
    """
    files = list(imported_files(data, folder))
    if not files:
        return []
    if len(files) > _MAX_FILES:
        return [ConfigError(_SETTING, f"names more than {_MAX_FILES} files", "Name fewer")]
    servers = data["mcp"].setdefault("servers", {})
    if not isinstance(servers, dict):
        return []  # Validation reports that.
    sections = {name: table for name, table in servers.items() if isinstance(table, dict)}
    faults = Faults()
    seen: dict[str, str] = {}
    for name, path in files:
        file = _File(plain_text(name), path.parent, env)
        with faults.kept():
            for entry in _read(file, path):
                with faults.kept():
                    if isinstance(entry, UnusableServer):
                        raise file.fault_of(entry.key, entry.reason, "Correct it, or remove it from the file")
                    section = sections.get(entry.name, {})
                    if entry.disabled:
                        if not any(key in section for key in _OF_ONE_SERVER):
                            servers.pop(entry.name, None)
                        continue
                    _check_name(file, entry, section, seen)
                    servers[entry.name] = {**_table(file, entry), **section}
                    where = f"mcp.servers.{entry.name}"
                    sources[where] = f"from {file.name}"
                    sources.update({f"{where}.{key}": f"in {own}" for key in section})
    return list(faults)


def _read(file: _File, path: Path) -> list[ForeignServer | UnusableServer]:
    try:
        return read_servers(path)
    except UnusableFile as fault:
        raise file.fault(str(fault), f"Correct the file, or {_SETTING}") from None


def _check_name(file: _File, entry: ForeignServer, section: Mapping[str, Any], seen: dict[str, str]) -> None:
    """Raise ConfigError if another server has the same name."""
    shown = plain_text(entry.key)
    if any(key in section for key in _OF_ONE_SERVER):
        raise file.fault(
            f"defines the server {shown}, and so does [mcp.servers.{entry.name}]",
            "Rename one of them, or keep in the section only what the file cannot set, such as effects",
        )
    if entry.name in seen:
        raise file.fault(
            f"names a server {shown}, which becomes {entry.name} here, and so does {seen[entry.name]}",
            "Rename one of them",
        )
    seen[entry.name] = f'{shown} of "{file.name}"'


def _table(file: _File, entry: ForeignServer) -> dict[str, Any]:
    """Return the section for a server; raise ConfigError for an unusable value."""
    table: dict[str, Any] = {}
    if entry.command:
        command, cwd = (_plain(file, entry, key, getattr(entry, key)) for key in ("command", "cwd"))
        # Relative paths start at the folder of the file.
        table["command"] = str(file.folder / command) if "/" in command else command
        table["args"] = tuple(
            _plain(file, entry, f"args[{place}]", text) for place, text in enumerate(entry.args)
        )
        if cwd:
            table["cwd"] = str(file.folder / Path(cwd).expanduser())
        table["env"] = {name: _value(file, entry, "env", name, text) for name, text in entry.env.items()}
    else:
        table["url"] = _plain(file, entry, "url", entry.url)
        table["headers"] = {
            name: _value(file, entry, "headers", name, text) for name, text in entry.headers.items()
        }
    if entry.tools:
        table["tools"] = entry.tools
    if entry.timeout_s is not None:
        table["timeout_s"] = entry.timeout_s
    return table


def _plain(file: _File, entry: ForeignServer, key: str, text: str) -> str:
    """Fill in the variables of a text; none may be a secret, because commands and addresses are visible."""
    filled = []
    for piece in _pieces(file, entry, key, text):
        if isinstance(piece, str):
            filled.append(piece)
            continue
        if piece.input_id or is_secret_name(piece.name):
            raise file.fault_of(
                f"{entry.key}.{key}",
                f"others can see command lines and addresses, and {piece.name} may be a secret",
                "Pass it in env or headers",
            )
        value = file.env.get(piece.name) or piece.default
        if value is None:
            raise file.fault_of(
                f"{entry.key}.{key}",
                f"the environment variable {piece.name} is not set",
                f"Set {piece.name}",
            )
        filled.append(value)
    return "".join(filled)


def _value(file: _File, entry: ForeignServer, table: str, name: str, text: str) -> str | Secret:
    """Return a value of ``env`` or ``headers`` in the form of a section of ``toolrelay.toml``."""
    where = f"{table}.{name}"
    pieces = _pieces(file, entry, where, text)
    variables = [piece for piece in pieces if isinstance(piece, Variable)]
    if not variables:
        if text.startswith("env:"):
            return text
        is_secret = bool(text) and (is_secret_name(name) or is_secret_value(text))
        if is_secret and table == "env":
            # Claude Desktop fills in no variables, so its users cannot write anything else.
            return Secret(f"{file.name}:{entry.key}.{where}", text)
        if is_secret:
            own = variable_name(entry.name, name)
            raise file.fault_of(
                f"{entry.key}.{where}",
                "it may be a secret, and secrets may not be written here as plain text",
                f'Write "${{{own}}}" there, and set {own}',
            )
        # Such a text is a reference only in toolrelay.toml; here it is the value itself.
        return Secret(f"{file.name}:{entry.key}.{where}", text) if text.startswith("file:") else text
    filled = []
    for piece in pieces:
        if isinstance(piece, str):
            filled.append(piece)
            continue
        value = file.env.get(piece.name, "").strip() or piece.default
        if value is None:
            return Secret(f"env:{piece.name}")  # Resolving it reports that the variable is not set.
        filled.append(value)
    whole = "".join(filled)
    if not whole.isascii() or not whole.isprintable():
        raise file.fault_of(
            f"{entry.key}.{where}",
            "with its variables filled in, it contains characters that an HTTP header cannot carry",
            "Store one line of printable ASCII",
        )
    return Secret(f"env:{variables[0].name}", whole)


def _pieces(file: _File, entry: ForeignServer, key: str, text: str) -> list[str | Variable]:
    try:
        return split_variables(entry.name, text)
    except UnknownVariable as fault:
        raise file.fault_of(
            f"{entry.key}.{key}", f"the variable {fault} is not known here", "Write its value instead"
        ) from None
