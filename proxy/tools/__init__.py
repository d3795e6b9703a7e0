"""The public API for authors of tools; the packages below define what a tool is and how it runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.tools.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        # At the first use, because every import of a module below passes here, and a supervisor needs one.
        return getattr(import_module("proxy.tools.public"), name)
