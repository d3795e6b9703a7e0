"""The prices of tool calls, which the services behind tools charge per call."""

from collections.abc import Mapping

from proxy.base.globs import fits


class CallPrices:
    """The prices of one call, in billionths of the currency, by tool or pattern.

    An exact name takes precedence over the first pattern (``mcp__brave__*``) that fits.
    """

    def __init__(self, prices: Mapping[str, int] | None = None) -> None:
        self._prices = dict(prices or {})

    def of(self, tool: str) -> int | None:
        """Return the price of one call of a tool; ``None`` if it has none."""
        if not self._prices:
            return None
        exact = self._prices.get(tool)
        if exact is not None:
            return exact
        return next((price for pattern, price in self._prices.items() if fits(tool, pattern)), None)
