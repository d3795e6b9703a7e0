"""Checks that the imported package ``proxy`` is this one."""

import contextlib
import os
import sys
from pathlib import Path

import proxy
from proxy.base.errors import ConfigError

_OTHER = "proxy.py"
"""A distribution of another project that installs a package with the same name into the same folder."""
_FOLDERS = ("proxy.py-", "proxy_py-")
"""How the name of the folder with its metadata begins; packaging tools write it in both ways."""


def find_conflicting_package() -> ConfigError | None:
    """Return the fault if two distributions share the package name ``proxy``, else ``None``.

    Both write into one folder, so the later installation has overwritten files of the earlier one. The
    resulting failures would be hard to understand.
    """
    home = Path(__file__).resolve().parents[2]
    imported = Path(proxy.__file__).resolve().parent if proxy.__file__ else None
    remedy = (
        f"Run: pip uninstall {_OTHER}; then, in the folder of toolrelay's source: "
        "pip install --force-reinstall .; "
        "or give toolrelay a virtual environment of its own"
    )
    if imported != home:
        return ConfigError(
            "installation", f"Python imports another package named proxy, from {imported}", remedy
        )
    if not _may_be_installed():
        return None
    # Imported here: it takes 50 ms, as long as a third of `--help`.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(_OTHER)
    except PackageNotFoundError:
        return None
    return ConfigError(
        "installation",
        f"the distribution {_OTHER} {package.version} is installed too, and it also installs a package named "
        "proxy",
        remedy,
    )


def _may_be_installed() -> bool:
    """Return whether a folder of the search path has what looks like that distribution's metadata."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            if any(name.lower().startswith(_FOLDERS) for name in os.listdir(folder or ".")):
                return True
    return False
