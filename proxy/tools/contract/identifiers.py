"""Build and check tool ids: ``<provider>__<name>`` (rule T5)."""

import re

from proxy.base.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def tool_id(provider: str, name: str) -> str:
    """Return the id of a tool; raise :class:`~proxy.base.errors.ConfigError` if a part is not valid.

    Neither part may begin or end with an underscore, so that an id can be split in one way only.
    """
    for part in (provider, name):
        if not _PART.fullmatch(part):
            raise ConfigError(
                f"tool {provider}__{name}"[:100],
                "its name may contain letters, digits, - and _; its first and last must be a letter or digit",
            )
    identifier = f"{provider}__{name}"
    check_tool_id(identifier, provider)
    return identifier


def check_tool_id(identifier: str, provider: str) -> None:
    """Raise :class:`~proxy.base.errors.ConfigError` if an id that a provider reports is not valid."""
    if not _ID.fullmatch(identifier):
        raise ConfigError(
            f"tool {identifier[:100]!r}", "a tool id is 1 to 64 of the characters A-Z, a-z, 0-9, _ and -"
        )
    if not identifier.startswith(f"{provider}__") or len(identifier) <= len(provider) + 2:
        raise ConfigError(f"tool {identifier}", f'its id does not begin with "{provider}__"')
