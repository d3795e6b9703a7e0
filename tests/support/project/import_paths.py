"""Where a process that a test starts finds the helpers of the tests and the project, as ``PYTHONPATH``."""

import os
from pathlib import Path

__all__ = ["IMPORT_PATHS", "PYTHON_PATH"]

_SUPPORT = Path(__file__).resolve().parents[1]

IMPORT_PATHS = [
    *(str(folder) for folder in sorted(_SUPPORT.iterdir()) if folder.is_dir()),
    str(_SUPPORT.parents[1]),
]
"""Folders: the groups of helpers, then the project's own."""

PYTHON_PATH = os.pathsep.join(IMPORT_PATHS)
"""The same in one text."""
