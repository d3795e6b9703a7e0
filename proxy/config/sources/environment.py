"""Settings from environment variables."""

import contextlib
import tomllib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from proxy.base.errors import ConfigError, Faults
from proxy.config.checks.faults import fields_of, model_of, unknown_setting
from proxy.config.settings import Config
from proxy.config.sources.draft import Draft, put
from proxy.net.outgoing import split_hosts

ENV_PREFIX = "TOOLRELAY_"


def apply_env(draft: Draft, env: Mapping[str, str]) -> list[ConfigError]:
    """Apply ``TOOLRELAY_<SECTION>__<KEY>`` over the file; return the faults. Only names with ``__`` are
    settings."""
    faults = Faults()
    with faults.kept():
        _apply_switch(draft, env)
        _apply_port(draft, env)
    _apply_proxies(draft, env)
    for name in sorted(env):
        if name.upper().startswith(ENV_PREFIX):
            with faults.kept():
                _apply_variable(draft, name, env[name])
    return list(faults)


def _apply_switch(draft: Draft, env: Mapping[str, str]) -> None:
    if "ENABLE_TOOLS" in env and env["ENABLE_TOOLS"].strip():
        value = _env_value(bool, env["ENABLE_TOOLS"])
        if not isinstance(value, bool):
            raise ConfigError(
                "tools.enabled",
                "ENABLE_TOOLS must be true or false",
                "Set ENABLE_TOOLS=false, or unset it",
            )
        put(draft, ("tools", "enabled"), value, "from ENABLE_TOOLS")


def _apply_port(draft: Draft, env: Mapping[str, str]) -> None:
    """Take the port that a platform hands to its programs in ``PORT``; what the file says goes first."""
    server = draft.data.get("server", {})
    text = env.get("PORT", "").strip()
    if not text or (isinstance(server, dict) and "port" in server):
        return
    if not (text.isascii() and text.isdigit()):
        raise ConfigError("server.port", "PORT must be a number (from PORT)", "Set PORT=8080, or unset it")
    put(draft, ("server", "port"), int(text), "from PORT")


def _apply_proxies(draft: Draft, env: Mapping[str, str]) -> None:
    """Take the proxies that the environment names for all programs; what the file says goes first.

    Both spellings are read, as by Go's programs: the upper-case one first.
    """
    network = draft.data.get("network", {})
    written = network if isinstance(network, dict) else {}
    for setting in ("http_proxy", "https_proxy", "no_proxy"):
        name = next((each for each in (setting.upper(), setting) if env.get(each, "").strip()), "")
        if name and setting not in written:
            value = list(split_hosts(env[name])) if setting == "no_proxy" else f"env:{name}"
            put(draft, ("network", setting), value, f"from {name}")


def _apply_variable(draft: Draft, name: str, value: str) -> None:
    if "__" not in name[len(ENV_PREFIX) :]:
        _refuse_single_underscore(name, value)
        return
    parts = name[len(ENV_PREFIX) :].lower().split("__")
    setting, annotation = _locate(parts, draft.data, name)
    put(draft, setting, _env_value(annotation, value), f"from {name}")


def _refuse_single_underscore(name: str, value: str) -> None:
    """Refuse ``TOOLRELAY_SERVER_PORT``: a user would think that it is set, but it has no effect.

    Kubernetes sets such a variable for a service called ``toolrelay-server``, with a URL as its value.
    """
    section, _, key = name[len(ENV_PREFIX) :].lower().partition("_")
    field = Config.model_fields.get(section)
    model = model_of(field.annotation) if field is not None else None
    if model is not None and key in fields_of(model) and not value.startswith(("tcp://", "udp://")):
        raise ConfigError(
            f"{section}.{key}",
            f"{name} has no effect",
            f"Write two underscores: {ENV_PREFIX}{section.upper()}__{key.upper()}",
        )


def _locate(parts: list[str], data: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], Any]:
    """Return the setting that an environment variable means, and the type of its value.

    Names that the user chose in the file (an upstream's) match in any case, because environment variables are
    usually upper case.
    """
    annotation: Any = Config
    names: list[str] = []
    for part in parts:
        model = model_of(annotation)
        if model is not None:
            fields = fields_of(model)
            if part not in fields:
                raise unknown_setting(".".join([*names, part]), model, f"from {name}")
            annotation = fields[part].annotation
        elif get_origin(annotation) is dict and part:
            part = next((key for key in data if key.lower() == part), part)
            annotation = get_args(annotation)[1]
        else:
            raise ConfigError(
                ".".join([*names, part]),
                f"there is no such setting (from {name})",
                f"{'.'.join(names)} has no parts; set {ENV_PREFIX}{'__'.join(names).upper()}",
            )
        names.append(part)
        inner = data.get(part)
        data = inner if isinstance(inner, Mapping) else {}
    return tuple(names), annotation


def _env_value(annotation: Any, text: str) -> Any:
    """Return the text as a TOML value if that fits the setting's type, else as a string.

    A switch may also be ``True``, ``yes`` or ``1``, and a list words with commas between. A text that fits
    nothing stays unchanged, so that validation reports it with all other faults.
    """
    target: TypeAdapter[Any] = TypeAdapter(annotation)
    candidates: list[Any] = [text]
    with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):  # Not TOML, so it is a string.
        parsed = tomllib.loads(f"value = {text}")
        if parsed.keys() == {"value"}:  # More keys came from a line break, which no value has.
            candidates.insert(0, parsed["value"])
    for candidate in candidates:
        if _fits(target, candidate, strict=model_of(annotation) is None):
            return candidate
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if _fits(target, listed, strict=False) and not text.lstrip().startswith("["):
        return listed
    if annotation is bool and _fits(target, text.strip(), strict=False):
        return target.validate_python(text.strip(), strict=False)
    return candidates[0]


def _fits(target: TypeAdapter[Any], value: Any, *, strict: bool) -> bool:
    try:
        target.validate_python(value, strict=strict or None)
    except ValidationError:
        return False
    return True
