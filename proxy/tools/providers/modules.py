"""Load a user's own tools from a file or an importable module, and report its faults."""

import importlib
import importlib.util
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from proxy.base.errors import ConfigError, Guard
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.function import FunctionProvider, declared

_SETTING = "tools.modules"


def load_module(
    entry: str, *, base: Path, capabilities: Capabilities, guard: Guard = nullcontext
) -> FunctionProvider:
    """Load the tools of one ``tools.modules`` entry.

    The provider gets the name of the file without its suffix, or the last part of the module's name.
    ``entry`` is a path (``my_tools.py``, relative to ``base``) or a dotted name. Raises
    :class:`ConfigError` for a missing file, a failed import (with the exception and its line),
    a module without tools, and a tool that cannot load (rule T4). Each tool is loaded inside ``guard()``.
    """
    if entry.endswith(".py") or "/" in entry or "\\" in entry:
        path = (base / entry).resolve()
        name = path.stem
        module = _import_file(path, entry)
    else:
        name = entry.rpartition(".")[2]
        module = _import_name(entry)
    providers: list[Any] = []
    for value in vars(module).values():
        # A module may bind two names to one tool.
        if declared(value) is not None and not any(value is provider for provider in providers):
            providers.append(value)
    if not providers:
        raise ConfigError(_SETTING, f'"{entry}" has no tools', "Put @tool above a function in it")
    return FunctionProvider(name, providers, capabilities, guard=guard)


def _import_file(path: Path, entry: str) -> ModuleType:
    """Run a file as a separate module."""
    if not path.is_file():
        raise ConfigError(_SETTING, f'"{entry}" does not exist (looked for {path})', "Correct the path")
    # The module's name contains the whole path, so that two files with one name do not collide. It must be
    # in sys.modules, where pydantic and dataclasses look up a module to read its types.
    name = f"toolrelay_user_tools.{path.as_posix().replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(_SETTING, f'"{entry}" is not a Python file', "Name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # The boundary to the user's file, which may raise anything while it is imported.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        sys.modules.pop(name, None)
        raise _import_failed(entry, error, str(path)) from None
    return module


def _import_name(entry: str) -> ModuleType:
    """Import a module by its dotted name."""
    try:
        return importlib.import_module(entry)
    # The boundary to the user's module, as above.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise _import_failed(entry, error, None) from None


def _import_failed(entry: str, error: BaseException, filename: str | None) -> ConfigError:
    """Return the error for a failed import: the exception, and the line in the user's file."""
    line: Any = None
    if isinstance(error, SyntaxError) and error.filename in (filename, None):
        line = error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == filename] if filename else frames[-1:]
        line = own[-1].lineno if own else None
    place = f" on line {line}" if line is not None else ""
    text = " ".join(str(error).split())[:200]
    return ConfigError(_SETTING, f'"{entry}" cannot be imported: {type(error).__name__}{place}: {text}')
