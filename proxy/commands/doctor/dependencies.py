"""Whether the package that answers to ``proxy`` is this one."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import proxy
from proxy.errors import ConfigError

__all__ = ["find_conflicting_package"]

_OTHER = "proxy.py"
"""A distribution of another project that installs a package of the same name into the same folder."""


def find_conflicting_package(other: str = _OTHER) -> ConfigError | None:
    """The fault of an environment where two distributions share the name ``proxy``.

    Both write into one folder, so whichever came last has overwritten files of the first: that
    fails in ways nobody would understand.
    """
    home = Path(__file__).resolve().parents[2]
    imported = Path(proxy.__file__).resolve().parent if proxy.__file__ else None
    remedy = (
        f"Run: pip uninstall {other}; then, in the folder of toolrelay's source: "
        "pip install --force-reinstall .; "
        "or give toolrelay a virtual environment of its own"
    )
    if imported != home:
        return ConfigError(
            "installation", f"Python imports another package named proxy, from {imported}", remedy
        )
    try:
        found = distribution(other)
    except PackageNotFoundError:
        return None
    return ConfigError(
        "installation",
        f"the distribution {other} {found.version} is installed too, and it also installs a package named "
        "proxy",
        remedy,
    )
