"""The list prices of providers: a compact form of the data of the project ``genai-prices``, by Pydantic.

Its licence (MIT) is in the file. Its JSON is at :data:`SOURCE`; the form of that is read as its own
``genai_prices/types.py`` does (version 0.2.3): the prices of a model are one object, or several with the date
from which each holds; ``*_mtok`` are US dollars for a million tokens, ``requests_kcount`` for a thousand
requests; a price with ``tiers`` changes for all tokens of a request whose input is longer than ``start``.
Of prices for different times of a day the dearest is taken; discounts for batches are left out.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from proxy.base.caches import Memo
from proxy.relay.routing.prices import NANOS, Price

SOURCE: Final = (
    "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"
)
CURRENCY: Final = "USD"
BUNDLED: Final = Path(__file__).with_name("price_list.json")

_FIELDS: Final = {
    "input_mtok": "input",
    "cache_read_mtok": "cached_input",
    "cache_write_mtok": "cache_write",
    "output_mtok": "output",
    "output_reasoning_mtok": "reasoning",
    "input_image_mtok": "image_input",
    "requests_kcount": "request",
}
_KINDS: Final = ("equals", "starts_with", "ends_with", "contains", "regex")
_UNBOUNDED: Final = re.compile(r"[*+]|\{\d*,")
"""What makes a pattern slow for a name that somebody chose, if it stands there twice: with one, a name of
``_MAX_NAME`` characters takes some ten thousand steps. The others are left out."""

_MAX_NAME: Final = 200
_KNOWN_BYTES: Final = 256 * 1024


class ListedModel(Struct, frozen=True, array_like=True):
    """One model of a provider: it fits a name if all clauses of one of ``match`` do.

    A clause is its kind and a text. ``prices`` have the ISO date from which they hold (empty: from ever), and
    the prices by the names of :class:`~proxy.relay.routing.prices.Price`, in dollars, for each number of
    input tokens from which they hold.
    """

    match: list[list[tuple[str, str]]]
    prices: list[tuple[str, list[tuple[int, dict[str, float]]]]]


class ListedProvider(Struct, frozen=True, array_like=True):
    """One provider: ``address`` is a pattern of its base URLs."""

    id: str
    address: str
    models: list[ListedModel]


class PriceFile(Struct, frozen=True):
    """A list of prices; ``taken`` is the ISO date of the data, ``source`` its place."""

    source: str
    taken: str
    licence: str
    currency: str
    providers: list[ListedProvider]


def read_price_file(path: Path) -> PriceFile:
    """Read a file that :func:`compact` made; raise OSError, and ``ValueError`` if it is something else."""
    return msgspec.json.decode(path.read_bytes(), type=PriceFile)


class ListedPrices:
    """The prices of one provider, for an upstream at its address."""

    def __init__(self, provider: ListedProvider, today: date | None = None) -> None:
        """Without ``today`` the prices are those of the day on which each is asked for."""
        self.provider = provider.id
        self._models = provider.models
        self._today = today
        self._known: Memo[tuple[date, str], Price | None] = Memo(
            "listed_prices", _KNOWN_BYTES, lambda key, _: 400 + 4 * len(key[1])
        )

    def of(self, name: str) -> Price | None:
        """Return the price of a model by the provider's name for it, or ``None``."""
        if len(name) > _MAX_NAME:
            return None
        # A server may run for longer than a price holds.
        key = (self._today or date.today(), name)
        price = self._known.get(key, _UNKNOWN)
        return self._known.put(key, self._find(*key)) if price is _UNKNOWN else price

    def _find(self, today: date, name: str) -> Price | None:
        name = name.lower()
        for model in self._models:
            if any(all(_fits(name, *clause) for clause in clauses) for clauses in model.match):
                return self._price(model, today.isoformat())
        return None

    @staticmethod
    def _price(model: ListedModel, today: str) -> Price | None:
        holding = [tiers for start, tiers in model.prices if start <= today]
        if not holding:
            return None
        (_, base), *dearer = holding[-1]
        return to_price(base, tuple((start, to_price(prices)) for start, prices in dearer))


_UNKNOWN: Final = Price(0, 0, 0, 0)


def to_price(dollars: Mapping[str, float], tiers: tuple[tuple[int, Price], ...] = ()) -> Price:
    """Return a price for these amounts of the currency; other kinds of input cost as ``input``."""
    nanos = {name: round(amount * NANOS) for name, amount in dollars.items()}
    received = nanos.get("input", 0)
    return Price(
        received,
        nanos.get("cached_input", received),
        nanos.get("cache_write", received),
        nanos.get("output", 0),
        nanos.get("reasoning"),
        nanos.get("image_input"),
        nanos.get("request", 0),
        tiers,
    )


def listed_prices(file: PriceFile, base_url: str, today: date | None = None) -> ListedPrices | None:
    """Return the prices of the provider at an address, or ``None`` if the list has none there.

    ``today`` is that of :class:`ListedPrices`.
    """
    for provider in file.providers:
        if provider.address and re.match(provider.address, base_url[:500]) is not None:
            return ListedPrices(provider, today)
    return None


def _fits(name: str, kind: str, text: str) -> bool:
    """Return whether a name in lower case fits; case counts for nothing, as in ``genai_prices``."""
    text = text if kind == "regex" else text.lower()
    if kind == "equals":
        return name == text
    if kind == "starts_with":
        return name.startswith(text)
    if kind == "ends_with":
        return name.endswith(text)
    return text in name if kind == "contains" else re.search(text, name) is not None


# The conversion of the project's data.


def compact(raw: Any, *, source: str, taken: str, licence: str) -> PriceFile:
    """Return the data of ``genai-prices`` in the form of this module.

    Raises ``ValueError`` if it is something else; a model of a form that is not known is left out.
    """
    if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
        raise ValueError("it is no list of providers")
    providers = []
    for each in raw:
        models = [
            ListedModel(match, prices)
            for model in each.get("models", ())
            if (match := _match(model.get("match"))) and (prices := _prices(model.get("prices")))
        ]
        address = each.get("api_pattern")
        if models and isinstance(address, str) and isinstance(each.get("id"), str):
            re.compile(address)
            providers.append(ListedProvider(each["id"], address, models))
    if not providers:
        raise ValueError("it has no provider with prices")
    return PriceFile(source, taken, licence, CURRENCY, providers)


def _match(clause: Any) -> list[list[tuple[str, str]]]:
    """Return the alternatives of a clause, each of them clauses that must all fit."""
    if not isinstance(clause, dict) or len(clause) != 1:
        return []
    ((kind, value),) = clause.items()
    if kind == "or":
        return [each for part in value for each in _match(part)]
    if kind == "and":
        parts = [_match(part) for part in value]
        return [[part[0][0] for part in parts]] if all(len(p) == 1 == len(p[0]) for p in parts) else []
    if kind not in _KINDS or not isinstance(value, str):
        return []
    if kind == "regex":
        if len(_UNBOUNDED.findall(value)) > 1:
            return []
        re.compile(value)
    return [[(kind, value)]]


def _prices(raw: Any) -> list[tuple[str, list[tuple[int, dict[str, float]]]]]:
    """Return the prices of a model by the date from which they hold."""
    entries: Sequence[Any] = raw if isinstance(raw, list) else [{"prices": raw}]
    dated = []
    for entry in entries:
        constraint = entry.get("constraint") or {}
        if isinstance(entry.get("prices"), dict) and isinstance(constraint, dict):
            dated.append((str(constraint.get("start_date", "")), _tiers(entry["prices"])))
    # Of prices for several times of a day the dearest holds: it stands last.
    kept = [each for each in dated if each[1]]
    return sorted(kept, key=lambda each: (each[0], each[1][0][1].get("input", 0)))


def _tiers(raw: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Return the prices for each number of input tokens from which they hold; the first is 0."""
    known = {name: raw[key] for key, name in _FIELDS.items() if raw.get(key) is not None}
    if "input" not in known and "request" not in known:
        return []
    starts = {tier["start"] for price in known.values() if isinstance(price, dict) for tier in price["tiers"]}
    return [
        (start, {name: _at(price, name, start) for name, price in known.items()})
        for start in (0, *sorted(starts))
    ]


def _at(price: Any, name: str, start: int) -> float:
    """Return a price for requests with more input tokens than ``start``."""
    if isinstance(price, dict):
        reached = [tier["price"] for tier in price["tiers"] if tier["start"] <= start]
        price = reached[-1] if reached else price["base"]
    return float(price) / (1000 if name == "request" else 1)
