"""Writes settings into a configuration file and leaves everything else as it is.

It sets a few keys of one table. The new text is parsed and compared with the old one; nothing is written if
anything but these keys would change.
"""

import contextlib
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from proxy.base.errors import ConfigError
from proxy.config.text import toml_value


def written_into(path: Path, upstream: str, settings: Mapping[str, object]) -> None:
    """Write settings of an upstream into a file, all or none.

    Raises :class:`ConfigError` if the file cannot be read or written, or its form prevents a
    safe edit; the file is then unchanged.
    """
    try:
        before = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path), f"the file cannot be read: {error}", "Name another file with --config"
        ) from None
    after = with_settings(before, upstream, settings)
    if after is None:
        raise ConfigError(
            str(path),
            f"the table upstreams.{upstream} is written in a form that doctor cannot edit",
            "Add the lines by hand",
        )
    try:
        _replace(path, after)
    except OSError as error:
        raise ConfigError(
            str(path), f"the file cannot be written: {error.strerror}", "Add the lines by hand"
        ) from None


def with_settings(text: str, upstream: str, settings: Mapping[str, object]) -> str | None:
    """Return the configuration text with these settings; ``None`` if a safe edit is impossible."""
    lines = text.splitlines(keepends=True)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    start = next((i for i, line in enumerate(lines) if _is_header(line, upstream)), None)
    if start is None:
        end = "" if not text or text.endswith("\n") else newline
        made = [f"[upstreams.{_key(upstream)}]", *_assigned(settings)]
        lines += [end, newline if text.strip() else "", *[line + newline for line in made]]
    else:
        stop = next((i for i in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[i])), len(lines))
        for key, line in zip(settings, _assigned(settings), strict=True):
            places = [i for i in range(start + 1, stop) if re.match(rf"\s*{re.escape(key)}\s*=", lines[i])]
            if places:
                comment = re.search(r"\s+#[^\"']*$", lines[places[0]].rstrip("\r\n"))
                lines[places[0]] = line + (comment[0] if comment else "") + newline
                continue
            i = _last_written(lines, start, stop) + 1
            if not lines[i - 1].endswith("\n"):
                lines[i - 1] += newline
            lines.insert(i, line + newline)
            stop += 1
    after = "".join(lines)
    return after if _is_as_meant(text, after, upstream, settings) else None


def _is_header(line: str, upstream: str) -> bool:
    name = f'(?:{re.escape(upstream)}|"{re.escape(upstream)}")'
    return re.match(rf"\s*\[\s*upstreams\s*\.\s*{name}\s*\]", line) is not None


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def _assigned(settings: Mapping[str, object]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in settings.items()]


def _last_written(lines: list[str], start: int, stop: int) -> int:
    """Return the index of a table's last line with content, before blank lines and comments."""
    written = [i for i in range(start, stop) if (line := lines[i].strip()) and not line.startswith("#")]
    return written[-1]


def _is_as_meant(before: str, after: str, upstream: str, settings: Mapping[str, object]) -> bool:
    """Return whether the two texts differ in these settings and nothing else."""
    try:
        wanted: dict[str, Any] = tomllib.loads(before)
        table = wanted.setdefault("upstreams", {}).setdefault(upstream, {})
        for key, value in settings.items():
            *holders, last = key.split(".")
            holder = reduce(lambda inner, name: inner.setdefault(name, {}), holders, table)
            holder[last] = list(value) if isinstance(value, tuple) else value
        return tomllib.loads(after) == wanted
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return False


def _replace(path: Path, text: str) -> None:
    """Replace the text of a file, and keep its permissions."""
    mode = path.stat().st_mode & 0o777
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        Path(name).replace(path)
    except BaseException:  # An interruption must not leave a partial file.
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
