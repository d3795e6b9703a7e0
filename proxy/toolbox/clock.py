"""``core__get_current_time``, and the clocks that tools get."""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from proxy.base.errors import ToolFailure
from proxy.tools.contract.capabilities import Clock
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

_MAX_ZONE = 64
_NO_ZONES = ("localtime", "posix", "right/")
"""Files next to the zones: the machine's own zone, a default for rules, zones that count leap seconds."""


class SystemClock:
    """The machine's clock."""

    def now(self, tz: tzinfo) -> datetime:
        """Return the current time in ``tz``."""
        return datetime.now(tz)


class FixedClock:
    """A clock that stands still, for a demo or a test with known answers."""

    def __init__(self, at: datetime) -> None:
        """``at`` must have a time zone; raises ValueError otherwise."""
        if at.tzinfo is None:
            raise ValueError("a fixed clock needs a time with its zone")
        self._at = at.astimezone(UTC)

    def now(self, tz: tzinfo) -> datetime:
        """Return the fixed time in ``tz``."""
        return self._at.astimezone(tz)


@tool(
    name="get_current_time",
    description="Get the current date and time in a time zone",
    effect="read_only",
    redaction=Redaction(output=("timezone", "iso")),
)
def _get_current_time(
    timezone: Annotated[str, Field(description="IANA time zone, e.g. Europe/Berlin")], clock: Clock
) -> dict[str, str]:
    """Return ``{"timezone", "iso"}``; ``iso`` is ISO 8601 with offset, to the second."""
    zone = _zone(timezone)
    return {"timezone": zone.key, "iso": clock.now(zone).isoformat(timespec="seconds")}


get_current_time: Callable[..., Any] = _get_current_time


def _zone(name: str) -> ZoneInfo:
    """Return the zone with an IANA name; raise a failure that shows valid names for any other text."""
    try:
        # zoneinfo uses names as file names, so their length is limited here. It refuses names that leave its
        # folder.
        if 0 < len(name) <= _MAX_ZONE and not name.startswith(_NO_ZONES):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ToolFailure(
        "this is not a time zone of the IANA database; give a name like Europe/Berlin, "
        "America/New_York, Asia/Tokyo or UTC",
        code="invalid_arguments",
    )
