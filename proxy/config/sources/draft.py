"""Settings before they are checked: raw tables, and where each value was written."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.base.errors import ConfigError


@dataclass(slots=True)
class Draft:
    """Settings before they become a :class:`Config`: the raw tables and the source of each value."""

    folder: Path
    data: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    file: str = ""

    def source(self, dotted: str) -> str:
        """Return where a setting was written, as words for the end of a sentence; empty for a default."""
        while dotted:
            if dotted in self.sources:
                return f" ({self.sources[dotted]})"
            dotted = dotted.rpartition(".")[0]
        return f" (in {self.file})" if self.file else ""

    def placed(self, fault: ConfigError) -> ConfigError:
        """Return the fault; for an imported server, with the name of its file."""
        source = self.sources.get(".".join(fault.setting.split(".")[:3]))
        if source is None or not fault.setting.startswith("mcp.servers."):
            return fault
        return ConfigError(fault.setting, f"{fault.problem} ({source})", fault.remedy)


def put(draft: Draft, setting: tuple[str, ...], value: Any, source: str) -> None:
    table = draft.data
    for part in setting[:-1]:
        inner = table.get(part)
        if not isinstance(inner, dict):
            if part in table:
                return  # The file has a value where a table belongs; that fault is found and named.
            inner = table[part] = {}
        table = inner
    table[setting[-1]] = value
    draft.sources[".".join(setting)] = source
