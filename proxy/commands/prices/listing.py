"""Show prices: where those of each upstream come from, and what one model costs."""

from typing import Any

from proxy.app.compose.upstreams import model_prices, open_price_list, prices_at
from proxy.base.errors import ConfigError
from proxy.base.plain_text import counted, printable
from proxy.commands.common import say, say_json
from proxy.config.load import Config
from proxy.config.settings import UpstreamConfig
from proxy.relay.routing.price_list import ListedPrices
from proxy.relay.routing.prices import Price, Prices, cost_number, cost_text

_KINDS = ("input", "cached_input", "cache_write", "output", "reasoning", "image_input", "request")


class _Upstream:
    """What prices depend on."""

    def __init__(self, config: UpstreamConfig, listed: ListedPrices | None) -> None:
        self.free = config.free
        self.listed = listed
        self.renamed = config.models if isinstance(config.models, dict) else {}


def list_prices(config: Config, upstream: str | None, model: str | None, *, as_json: bool) -> None:
    """Print the sources of prices, or the price of a model at each upstream.

    Raises :class:`ConfigError` for an upstream that does not exist, and for a bad list.
    """
    if upstream is not None and upstream not in config.upstreams:
        raise ConfigError(
            "--upstream",
            f"there is no upstream {upstream[:80]!r}",
            f"Choose one of: {', '.join(config.upstreams)}",
        )
    file, own = open_price_list(config), model_prices(config)
    upstreams = {
        name: _Upstream(each, prices_at(file, each))
        for name, each in config.upstreams.items()
        if upstream in (None, name)
    }
    if not as_json and file is not None:
        say(f"list: {printable(file.source)}, {printable(file.taken)}, in {printable(file.currency)}")
    for name, priced in upstreams.items():
        row = _row(name, priced, own, model)
        if as_json:
            say_json(row | {"currency": config.billing.currency})
        else:
            say(_line(row, config.billing.currency))


def _row(name: str, priced: _Upstream, own: Prices, model: str | None) -> dict[str, Any]:
    listed = priced.listed.provider if priced.listed is not None else None
    row: dict[str, Any] = {"upstream": name, "free": priced.free, "list": listed, "own": len(own)}
    if model is None:
        return row
    price = own.at(priced, model, priced.renamed.get(model, model))
    return row | {"model": model, "price": None if price is None else _amounts(price)}


def _amounts(price: Price) -> dict[str, Any]:
    amounts = {kind: cost_number(getattr(price, kind)) for kind in _KINDS}
    tiers = [{"above_input_tokens": start, **_amounts(each)} for start, each in price.tiers]
    return amounts | ({"tiers": tiers} if tiers else {})


def _line(row: dict[str, Any], currency: str) -> str:
    where = printable(str(row["upstream"]))
    if "model" not in row:
        if row["free"]:
            return f"{where}: free"
        sources = [f"the list of {row['list']}"] if row["list"] else []
        sources += [counted(row["own"], "price") + " in [prices]"] if row["own"] else []
        return f"{where}: {' and '.join(sources) or 'no prices'}"
    model = printable(str(row["model"]))
    if row["price"] is None:
        return f'{where}: {model} has no price; write [prices."{model}"]'
    shown = ", ".join(
        f"{kind.replace('_', ' ')} {cost_text(round(row['price'][kind] * 10**9))}"
        for kind in _KINDS
        if row["price"][kind] is not None and (row["price"][kind] or kind in ("input", "output"))
    )
    above = "".join(
        f"; more above {tier['above_input_tokens']} input tokens" for tier in row["price"].get("tiers", ())
    )
    return f"{where}: {model}: {shown} {currency} per million tokens{above}"
