"""Pins of MCP tools in memory."""

from collections.abc import Mapping

__all__ = ["MemoryPins"]


class MemoryPins:
    """:class:`~proxy.store.base.PinStore` without a store behind it."""

    def __init__(self) -> None:
        self._pins: dict[str, str] = {}

    async def read_pins(self) -> Mapping[str, str]:
        """See :class:`~proxy.store.base.PinStore`."""
        return dict(sorted(self._pins.items()))

    async def put_pins(self, pins: Mapping[str, str]) -> None:
        """See :class:`~proxy.store.base.PinStore`."""
        self._pins.update(pins)

    async def delete_pin(self, pin_id: str) -> bool:
        """See :class:`~proxy.store.base.PinStore`."""
        return self._pins.pop(pin_id, None) is not None
