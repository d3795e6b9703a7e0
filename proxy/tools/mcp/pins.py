"""Pins: the definitions of MCP tools that an operator has allowed.

The proxy offers a tool as it was pinned, never as its server describes it now. So a server cannot change the
offer by a new definition, a server that is not reachable changes no prompt, and the start waits for no
server. If the server's own definition differs from the pin, the tool is withheld until an operator allows it
again.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from proxy.base.errors import ConfigError
from proxy.base.plain_text import plain_text
from proxy.json.in_thread import in_thread
from proxy.records.rows import PinStore
from proxy.tools.mcp.definitions import Definition, UnusableDefinition

MOST_PINNED: Final = 1000
"""The most tools of all servers together that can be allowed; each of them costs every worker memory."""

_log = logging.getLogger(__name__)

PinState = Literal["pinned", "new", "changed", "moved", "gone"]
"""The relation of a server's current definition to its pin.

``pinned``: both are the same. ``new``: there is no pin. ``changed``: the definition is different.
``moved``: the server's transport is not the one for which the tool was allowed, so it may be another server.
``gone``: the server no longer lists the tool.
"""


@dataclass(frozen=True, slots=True)
class Pin:
    """A definition that an operator allowed.

    ``transport`` is the identity of the server's transport at that time (see
    :meth:`~proxy.tools.mcp.servers.Server.identity`). ``allowed_at`` is in seconds since 1970;
    ``allowed_by`` is the user of the machine or a name that the operator gave.
    """

    definition: Definition
    transport: str
    allowed_at: float
    allowed_by: str = ""
    digest: str = field(init=False, compare=False)
    """The digest of the definition, computed once: it is compared every few seconds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.definition.digest)

    @property
    def id(self) -> str:
        return self.definition.id

    def is_of(self, provider: str, server: str) -> bool:
        """Return whether it is of this MCP server or API."""
        return (self.definition.provider, self.definition.server) == (provider, server)

    def written(self) -> dict[str, Any]:
        """Return the pin as JSON values."""
        return {
            "definition": self.definition.written(),
            "digest": self.digest,
            "transport": self.transport,
            "allowed_at": self.allowed_at,
            "allowed_by": self.allowed_by,
        }

    @classmethod
    def read(cls, written: Any) -> "Pin":
        """Read the pin that :meth:`written` wrote; raise :class:`UnusableDefinition` if it is invalid, also
        if its digest does not fit the definition, which was then edited by hand."""
        if not isinstance(written, dict) or not isinstance(written.get("definition"), dict):
            raise UnusableDefinition("it is not a pin")
        definition = Definition.read(written["definition"])
        if written.get("digest") != definition.digest:
            raise UnusableDefinition("its digest does not fit its definition")
        transport, since, by = (written.get(key) for key in ("transport", "allowed_at", "allowed_by"))
        if not isinstance(transport, str) or not isinstance(since, int | float) or not isinstance(by, str):
            raise UnusableDefinition("it is not a pin")
        return cls(definition, transport, float(since), by)


class PinSource(Protocol):
    """A source of pins."""

    async def pins(self) -> Sequence[Pin]:
        """Return all pins; raise :class:`~proxy.base.errors.StoreError` if they cannot be read."""


class RecordedPins:
    """The pins in the record; a :class:`PinSource`."""

    def __init__(self, record: PinStore) -> None:
        self._record = record
        self._known: Mapping[str, tuple[str, Pin | None]] = {}

    async def pins(self) -> Sequence[Pin]:
        """Return all valid pins; the log names those that are not valid, each once."""
        written = await self._record.read_pins()
        # Run in a thread: there may be a thousand, each with a schema of 64 KiB.
        self._known = await in_thread(_read_changed, written, self._known)
        return [pin for _, pin in self._known.values() if pin is not None]


def _read_changed(
    written: Mapping[str, str], before: Mapping[str, tuple[str, Pin | None]]
) -> Mapping[str, tuple[str, Pin | None]]:
    """Return each text with its pin, by id; texts that are in ``before`` are not read again."""
    pins: dict[str, tuple[str, Pin | None]] = {}
    for name, text in written.items():
        known = before.get(name)
        pins[name] = known if known and known[0] == text else (text, _read_text(name, text))
    return pins


def _read_text(name: str, text: str) -> Pin | None:
    """Return the pin that a text of the record holds; ``None``, and a log line, if it is not valid."""
    try:
        return Pin.read(json.loads(text))
    except (UnusableDefinition, ValueError, RecursionError) as fault:
        _log.warning("the pin of %s cannot be used: %s", plain_text(name), fault)
        return None


class GivenPins:
    """A fixed list of pins; a :class:`PinSource`."""

    def __init__(self, pins: Sequence[Pin]) -> None:
        self._pins = pins

    async def pins(self) -> Sequence[Pin]:
        """Return these pins."""
        return self._pins


class FiledPins(GivenPins):
    """The pins of a file, which is read once; a :class:`PinSource`."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise :class:`~proxy.base.errors.ConfigError` if it is not valid."""
        super().__init__(read_pin_file(path))


def compare(pin: Pin | None, live: str | None, transport: str) -> PinState:
    """Compare the digest ``live`` of a server's current definition with its pin; one of both must exist."""
    if pin is None:
        return "new"
    if pin.transport != transport:
        return "moved"
    if live is None:
        return "gone"
    return "pinned" if pin.digest == live else "changed"


_VERSION = 1
_SETTING = "mcp.pins"


def write_pin_file(path: Path, pins: Iterable[Pin]) -> None:
    """Write pins to a file that suits version control: sorted, one key per line."""
    listed = [pin.written() for pin in sorted(pins, key=lambda pin: pin.id)]
    text = json.dumps({"version": _VERSION, "pins": listed}, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")


def read_pin_file(path: Path) -> Sequence[Pin]:
    """Read the pins of a file; raise :class:`ConfigError` that names the first invalid pin."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(_SETTING, f'"{path}" cannot be read: {error.strerror}') from None
    except UnicodeDecodeError:
        raise ConfigError(_SETTING, f'"{path}" is not a text in UTF-8') from None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or not isinstance(read.get("pins"), list):
        raise ConfigError(
            _SETTING, f'"{path}" is not a file of pins', "Write one with toolrelay tools allow --file"
        )
    if read.get("version") != _VERSION:
        raise ConfigError(_SETTING, f'"{path}" has version {str(read.get("version"))[:20]}', "Write it again")
    return [_read_listed(path, place, pin) for place, pin in enumerate(read["pins"])]


def _read_listed(path: Path, place: int, written: Mapping[str, Any]) -> Pin:
    try:
        return Pin.read(written)
    except UnusableDefinition as fault:
        raise ConfigError(
            _SETTING,
            f'"{path}": pins[{place}] cannot be used: {fault}',
            "Allow the tool again with toolrelay tools allow",
        ) from None
