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
    name, module = load_code(_SETTING, entry, base=base)
    return FunctionProvider(name, tools_of(_SETTING, entry, module), capabilities, guard=guard)


def tools_of(setting: str, entry: str, module: ModuleType) -> list[Any]:
    """Return the functions with ``@tool`` of a module; raise :class:`ConfigError` if there are none."""
    found: list[Any] = []
    for value in vars(module).values():
        # A module may bind two names to one tool.
        if declared(value) is not None and not any(value is one for one in found):
            found.append(value)
    if not found:
        raise ConfigError(setting, f'"{entry}" has no tools', "Put @tool above a function in it")
    return found


def load_code(setting: str, entry: str, *, base: Path) -> tuple[str, ModuleType]:
    """Import a file of the operator's (``my_tools.py``, relative to ``base``) or a module by its dotted name.

    Return its name without folders and suffix, and the module. Raises :class:`ConfigError` for a missing
    file and for a failed import, with the exception and its line.
    """
    if entry.endswith(".py") or "/" in entry or "\\" in entry:
        path = (base / entry).resolve()
        return path.stem, _import_file(setting, path, entry)
    return entry.rpartition(".")[2], _import_name(setting, entry)


def _import_file(setting: str, path: Path, entry: str) -> ModuleType:
    """Run a file as a separate module."""
    if not path.is_file():
        raise ConfigError(setting, f'"{entry}" does not exist (looked for {path})', "Correct the path")
    # The module's name contains the whole path, so that two files with one name do not collide. It must be
    # in sys.modules, where pydantic and dataclasses look up a module to read its types.
    name = f"toolrelay_user_tools.{path.as_posix().replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(setting, f'"{entry}" is not a Python file', "Name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # The boundary to the user's file, which may raise anything while it is imported.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        sys.modules.pop(name, None)
        raise import_failed(setting, entry, error, str(path)) from None
    return module


def _import_name(setting: str, entry: str) -> ModuleType:
    """Import a module by its dotted name."""
    try:
        return importlib.import_module(entry)
    # The boundary to the user's module, as above.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise import_failed(setting, entry, error) from None


def import_failed(setting: str, entry: str, error: BaseException, filename: str | None = None) -> ConfigError:
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
    return ConfigError(setting, f'"{entry}" cannot be imported: {type(error).__name__}{place}: {text}')
