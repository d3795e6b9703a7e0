"""Read a ``.env`` file: environment variables of one folder, for people who keep secrets there.

The notation is what shells and the usual readers agree on: ``NAME=value``, ``export NAME=value``, quotes
around a value, ``#`` at the begin of a line or after a space. Nothing is expanded, since a secret may
contain ``$``.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from proxy.base.errors import ConfigError

NAME: Final = ".env"
_MAX_BYTES: Final = 1 << 18
_LINE: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_QUOTED: Final = re.compile(r"(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\")[ \t]*(?:#.*)?")
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def with_dotenv(folder: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the variables of the folder's ``.env`` that it does not have itself.

    Raises :class:`~proxy.base.errors.ConfigError` with the line that cannot be read, never with its text.
    """
    path = folder / NAME
    try:
        if not path.is_file():
            return env
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(str(path), f"the file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            str(path), f"the file is not UTF-8 at byte {error.start}", "Save it as UTF-8"
        ) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError(str(path), f"the file is larger than {_MAX_BYTES} bytes")
    return {**_variables(path, text), **env}


def _variables(path: Path, text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _value(match[2]) if match else None
        if match is None or value is None:
            raise ConfigError(
                f"{path}, line {number}", "is not a variable", "Write NAME=value, or NAME='value'"
            )
        variables[match[1]] = value
    return variables


def _value(text: str) -> str | None:
    """Return the value after ``=``; ``None`` if its quotes do not end."""
    if text[:1] in ("'", '"'):
        match = _QUOTED.fullmatch(text)
        if match is None:
            return None
        if match[1] is not None:
            return match[1]
        return _ESCAPED.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), match[2])
    if text.startswith("#"):
        return ""
    return re.split(r"[ \t]#", text, maxsplit=1)[0].rstrip()
