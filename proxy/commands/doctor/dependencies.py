"""Checks that the imported package ``proxy`` is this one."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import proxy
from proxy.base.errors import ConfigError

_OTHER = "proxy.py"
"""A distribution of another project that installs a package with the same name into the same folder."""


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
