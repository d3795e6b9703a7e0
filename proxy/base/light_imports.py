"""Imports of libraries without parts that they load but toolrelay does not use."""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["import_structlog", "import_without"]


def import_without(library: str, *parts: str) -> None:
    """Import a library as if its optional ``parts`` were not installed.

    Each part is a module that costs start time and memory. Call this before other code imports the library,
    and only for parts that toolrelay never makes it use: names that it imports from them become empty
    classes. Does nothing with a part that is loaded already.
    """
    if library in sys.modules:
        return
    absent = [part for part in parts if part not in sys.modules]
    sys.modules.update({part: _Absent(part) for part in absent})
    try:
        importlib.import_module(library)
    finally:
        for part in absent:
            del sys.modules[part]


def import_structlog() -> None:
    """Import structlog without rich, which only draws tracebacks; toolrelay formats its own."""
    import_without("structlog", "rich")


class _Absent(ModuleType):
    """A module without submodules, in place of one that is not loaded."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
