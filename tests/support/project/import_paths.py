"""The ``PYTHONPATH`` of processes that tests start: the helpers of the tests, and the project.

Run as a program, it prints that path.
"""

import os
from pathlib import Path

_SUPPORT = Path(__file__).resolve().parents[1]

IMPORT_PATHS = [
    *(str(folder) for folder in sorted(_SUPPORT.iterdir()) if folder.is_dir()),
    str(_SUPPORT.parents[1]),
]
"""The folders of the helpers, and then the project's own."""

PYTHON_PATH = os.pathsep.join(IMPORT_PATHS)
"""The same folders as one text."""

if __name__ == "__main__":
    print(PYTHON_PATH)
