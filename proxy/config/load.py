"""Loads the configuration: combines file, environment and command line into one :class:`Config`.

Every fault becomes one :class:`ConfigError` with the setting's dotted name, the place where it
was written, and a remedy. It never contains a secret's value.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proxy.base.errors import ConfigError
from proxy.config.agents import read_agent_files
from proxy.config.checks.faults import explain
from proxy.config.checks.partial import COMPARED_SECTIONS, without_faulty_settings, without_secrets
from proxy.config.checks.rules import find_conflicts, resolve_paths, resolve_secrets
from proxy.config.mcp.imported import merge_imports
from proxy.config.settings import DEFAULT_BASE_URL, DEFAULT_KEY, Config, UpstreamConfig
from proxy.config.sources.dotenv import with_dotenv
from proxy.config.sources.draft import Draft, put
from proxy.config.sources.environment import apply_env

__all__ = ["Config", "Options", "find_faults", "load_config"]

MAX_CONFIG_BYTES = 1 << 20

_DEFAULT_ORIGIN = UpstreamConfig(base_url=DEFAULT_BASE_URL).origin
_LINE_COLUMN = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line, which override file and environment; ``None`` overrides nothing.

    ``allow`` are tools that ``policy.allow`` gets in addition. ``start_token`` is made by a command that
    serves; it stays the same when the configuration is read again.
    """

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    upstream: str | None = None
    open: bool = False
    allow: tuple[str, ...] = ()
    start_token: str = field(default="", repr=False)


def load_config(
    path: Path | None,
    env: Mapping[str, str],
    options: Options | None = None,
    *,
    need_secrets: bool | str = True,
) -> Config:
    """Return the whole configuration, checked, with absolute paths and resolved secrets.

    ``path`` of ``None`` means no file; relative paths then start at the current folder. With
    ``need_secrets=False`` a missing secret of an upstream becomes no key, for commands that ask no model. A
    text needs only the secrets of settings that begin with it.
    Raises :class:`~proxy.base.errors.ConfigError` for the first fault; its ``others`` are the further ones.
    """
    config, faults = find_faults(path, env, options, need_secrets=need_secrets, go_on=True)
    if faults or config is None:
        first, *others = faults
        first.others = tuple(others)
        raise first
    return config


def find_faults(
    path: Path | None,
    env: Mapping[str, str],
    options: Options | None = None,
    *,
    need_secrets: bool | str = True,
    go_on: bool = False,
) -> tuple[Config | None, list[ConfigError]]:
    """Load the configuration like :func:`load_config`, but return all faults instead of raising the first.

    With faults the configuration is ``None``. With ``go_on`` it is the usable rest, for commands that look
    for more faults and serve nothing; ``None`` then means that nothing is usable.
    """
    given = options or Options()
    try:
        draft = _read(path)
        env = with_dotenv(draft.folder, env)
        in_file = _tables(draft)
        faults = apply_env(draft, env)
        _leave_keys_behind(draft, in_file)
        dropped_key = _apply_options(draft, given)
    except ConfigError as error:
        return None, [error]
    faults += merge_imports(draft.data, draft.folder, env, draft.sources, draft.file)
    if faults and not go_on:
        return None, faults
    _imply_keys(draft, dropped_key)
    in_env = {fault.setting.partition(".")[0] for fault in faults}
    spoilt: set[str] = set()
    try:
        config = Config.model_validate(draft.data).with_start_token(given.start_token)
    except ValidationError as error:
        details = error.errors(include_url=False)
        faults += [explain(detail, draft.source) for detail in details]
        rest, spoilt = without_faulty_settings(draft.data, details)
        if rest is None or not go_on:
            return None, faults
        config = rest
    spoilt |= in_env
    if not spoilt & COMPARED_SECTIONS:
        faults += find_conflicts(config)
    if faults and not go_on:
        return None, faults
    config = resolve_paths(config, draft.folder)
    agents, unread = read_agent_files(config.agents, draft.folder)
    config = config.model_copy(update={"agents": agents})
    faults += unread
    if faults and not go_on:
        return None, faults
    whole, missing = resolve_secrets(config, env, draft.folder, need=need_secrets)
    if whole is None and go_on:
        whole = without_secrets(config, env, draft.folder)
    # Faults in a faulty section are left out: the default that replaced its setting may cause them.
    faults += [draft.placed(fault) for fault in missing if fault.setting.partition(".")[0] not in spoilt]
    return whole, faults


# --- the file ---------------------------------------------------------------------------------


def _read(path: Path | None) -> Draft:
    if path is None:
        return Draft(Path.cwd())
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(name, "the file does not exist", "Create it with: toolrelay init") from None
    except OSError as error:
        raise ConfigError(name, f"the file cannot be read: {error.strerror}") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(name, f"the file is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(name, f"the file is not UTF-8 at byte {error.start}", "Save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(name, "the file is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(name, str(error), raw.decode("utf-8")) from None
    return Draft(path.absolute().parent, data, file=path.name)


def _syntax_error(name: str, message: str, text: str) -> ConfigError:
    """Return TOML's error with its line and column, which the parser gives only inside its message."""
    match = _LINE_COLUMN.search(message)
    if match:
        line, column = int(match[1]), int(match[2])
    else:  # "(at end of document)"
        lines = text.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    what = re.sub(r"\s*\(at [^)]*\)$", "", message)
    return ConfigError(
        f"{name}, line {line}, column {column}", f"the file is not valid TOML: {what}", "Correct this line"
    )


# --- the command line and the provider's key -----------------------------------------------------


def _apply_options(draft: Draft, options: Options) -> str | None:
    """Apply the command line over everything. Return the upstream whose key may not be used."""
    server = {"host": options.host, "port": options.port, "workers": options.workers}
    for key, value in server.items():
        if value is not None:
            put(draft, ("server", key), value, f"from --{key}")
    if options.allow:
        policy = draft.data.get("policy", {})
        before_allow = policy.get("allow", ()) if isinstance(policy, dict) else ()
        listed = list(before_allow) if isinstance(before_allow, list) else []
        put(draft, ("policy", "allow"), list(dict.fromkeys([*listed, *options.allow])), "from --allow")
    if options.open:
        put(draft, ("auth", "mode"), "open", "from --open")
    if options.upstream is None:
        return None
    upstreams = draft.data.get("upstreams", {})
    name = next(iter(upstreams), "default") if isinstance(upstreams, dict) else "default"
    before = _tables(draft).get(name, {})
    named = f"upstreams.{name}.api_key" in draft.sources
    put(draft, ("upstreams", name, "base_url"), options.upstream, "from --upstream")
    if not _moved(before, options.upstream):
        return None
    headers = before.get("headers")
    if isinstance(headers, dict) and "base_url" in before:
        kept = {key: value for key, value in headers.items() if not _is_secret(value)}
        draft.data["upstreams"][name]["headers"] = kept
    return name if _has_key_of_its_own(before) and not named else None


def _leave_keys_behind(draft: Draft, in_file: Mapping[str, Mapping[str, Any]]) -> None:
    """Remove the file's key and secret headers from each upstream whose origin the environment changes.

    ``in_file`` are the tables of the file. Values that the environment itself sets stay.
    """
    for name, table in _tables(draft).items():
        before, where = in_file.get(name, {}), f"upstreams.{name}"
        if where in draft.sources or not _moved(before, table.get("base_url", DEFAULT_BASE_URL)):
            continue
        if _has_key_of_its_own(before) and f"{where}.api_key" not in draft.sources:
            draft.data["upstreams"][name].pop("api_key", None)
        headers = table.get("headers")
        if isinstance(headers, dict) and "base_url" in before and f"{where}.headers" not in draft.sources:
            draft.data["upstreams"][name]["headers"] = {
                key: value
                for key, value in headers.items()
                if not _is_secret(value) or f"{where}.headers.{key}" in draft.sources
            }


def _tables(draft: Draft) -> dict[str, dict[str, Any]]:
    """Return each upstream's table in its present state."""
    upstreams = draft.data.get("upstreams")
    tables = upstreams.items() if isinstance(upstreams, dict) else ()
    return {name: dict(table) for name, table in tables if isinstance(table, dict)}


def _moved(before: Mapping[str, Any], base_url: object) -> bool:
    return _origin(base_url) != _origin(before.get("base_url", DEFAULT_BASE_URL))


def _has_key_of_its_own(table: Mapping[str, Any]) -> bool:
    """Return whether the upstream's key was made for its address; a key without an address goes to any."""
    return table.get("api_key") == DEFAULT_KEY or "base_url" in table


def _is_secret(value: object) -> bool:
    return str(value).startswith(("env:", "file:"))


def _imply_keys(draft: Draft, dropped: str | None) -> None:
    """Set for every upstream without a key whether it gets ``OPENAI_API_KEY``.

    A key belongs to the address that it was made for. Only OpenAI's own address gets this key by default.
    ``--upstream``, like a ``base_url`` of the environment, removes the key of the address that it replaces.
    """
    upstreams = draft.data.setdefault("upstreams", {})
    if not isinstance(upstreams, dict):
        return
    if not upstreams:
        upstreams["default"] = {}
    for name, table in upstreams.items():
        if not isinstance(table, dict):
            continue
        if name == dropped:
            table.pop("api_key", None)
        if "api_key" not in table:
            own = _origin(table.get("base_url", DEFAULT_BASE_URL)) == _DEFAULT_ORIGIN
            table["api_key"] = DEFAULT_KEY if own else ""


def _origin(base_url: object) -> tuple[str, str, int] | None:
    try:
        return UpstreamConfig(base_url=base_url).origin if isinstance(base_url, str) else None
    except ValidationError:
        return None
