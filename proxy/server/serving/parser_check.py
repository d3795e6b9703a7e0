"""Whether the installed aiohttp parses requests in the one way that everything here relies on."""

import aiohttp
from aiohttp.http import RawRequestMessage

from proxy.errors import ConfigError

__all__ = ["check_http_parser"]

_MIN_AIOHTTP = (3, 14, 3)
"""Earlier ones lose the end of a body at a slow reader, and let bytes behind an upgrade through."""


def check_http_parser() -> None:
    """Raise :class:`~proxy.errors.ConfigError` where aiohttp is too old or lacks its parser in C.

    The parser in Python reads some malformed requests in another way than the one in C, and is slow.
    """
    remedy = "Install it anew: pip install --upgrade --force-reinstall 'aiohttp>=3.14.3,<4'"
    digits = [int(part) if part.isdecimal() else 0 for part in aiohttp.__version__.split(".")[:3]]
    if tuple(digits) < _MIN_AIOHTTP:
        wanted = ".".join(map(str, _MIN_AIOHTTP))
        raise ConfigError("aiohttp", f"is {aiohttp.__version__}, and {wanted} or later is needed", remedy)
    if not RawRequestMessage.__module__.endswith("._http_parser"):
        raise ConfigError(
            "aiohttp",
            "runs without its HTTP parser in C",
            f"Unset AIOHTTP_NO_EXTENSIONS if it is set. {remedy}",
        )
