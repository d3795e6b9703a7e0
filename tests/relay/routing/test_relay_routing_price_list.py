"""The list prices of providers: the bundled file, how a model is found in it, and how its data is made."""

import re
from datetime import date
from typing import Any

import orjson
import pytest
from msgspec import json

from proxy.base.events import Usage
from proxy.relay.routing import price_list
from proxy.relay.routing.price_list import (
    BUNDLED,
    ListedPrices,
    PriceFile,
    compact,
    listed_prices,
    read_price_file,
)
from proxy.relay.routing.prices import FREE, Price, Prices

TODAY = date(2026, 11, 29)
DOLLAR = 10**9


def _at(url: str, today: date = TODAY) -> ListedPrices:
    found = listed_prices(read_price_file(BUNDLED), url, today)
    assert found is not None
    return found


def made(*models: dict[str, Any], address: str = r"https://api\.x\.ai") -> PriceFile:
    raw = [{"id": "x", "api_pattern": address, "models": list(models)}]
    return compact(orjson.loads(orjson.dumps(raw)), source="test", taken="2026-01-01", licence="MIT")


def test_the_bundled_list_is_dated_and_has_its_licence() -> None:
    """The list in the package says where it is from, when it was taken, and under which licence."""
    file = read_price_file(BUNDLED)
    assert file.source.startswith("genai-prices ")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", file.taken)
    assert "The MIT License" in file.licence
    assert "Pydantic" in file.licence
    assert file.currency == "USD"
    assert BUNDLED.stat().st_size < 2**20


def test_no_pattern_of_the_list_is_slow_for_a_name_that_somebody_chose() -> None:
    """A client chooses the name of a model: none of the patterns repeats without a bound twice."""
    for provider in read_price_file(BUNDLED).providers:
        re.compile(provider.address)
        for model in provider.models:
            for kind, text in (clause for clauses in model.match for clause in clauses):
                assert kind != "regex" or len(re.findall(r"[*+]|\{\d*,", text)) < 2, text


@pytest.mark.parametrize(
    ("url", "model", "received", "cached", "sent"),
    [
        ("https://api.openai.com/v1", "gpt-4o-mini", 0.15, 0.075, 0.60),
        ("https://api.openai.com/v1", "gpt-4o-mini-2024-07-18", 0.15, 0.075, 0.60),
        ("https://api.anthropic.com/v1", "claude-haiku-4-5-20251001", 1.0, 0.1, 5.0),
        ("https://api.mistral.ai/v1", "mistral-large-latest", None, None, None),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-pro", 1.25, 0.125, 10.0),
        ("https://api.openai.com/v1", "GPT-4o-Mini", 0.15, 0.075, 0.60),
        ("https://openrouter.ai/api/v1", "openai/gpt-4o-mini", 0.15, 0.075, 0.60),
    ],
)
def test_known_models_have_their_price(
    url: str, model: str, received: float | None, cached: float | None, sent: float | None
) -> None:
    """A model is found at its provider's own address, by its name and by those of its versions."""
    price = _at(url).of(model)
    assert price is not None
    if received is not None and cached is not None and sent is not None:
        assert (price.input, price.cached_input, price.output) == (
            round(received * DOLLAR), round(cached * DOLLAR), round(sent * DOLLAR)
        )  # fmt: skip


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://gateway.example.com/v1", ""])
def test_another_address_has_no_list(url: str) -> None:
    """A server of one's own is not billed by a provider's list, whatever its models are called."""
    assert listed_prices(read_price_file(BUNDLED), url, TODAY) is None


def test_a_price_holds_from_its_date() -> None:
    """Of several prices the last one counts that has begun; of two for times of a day, the dearer."""
    model = {
        "match": {"equals": "m"},
        "prices": [
            {"prices": {"input_mtok": 1, "output_mtok": 2}},
            {"constraint": {"start_date": "2026-06-01"}, "prices": {"input_mtok": 3, "output_mtok": 4}},
        ],
    }
    file = made(model)
    for today, expected in ((date(2026, 5, 31), 1), (date(2026, 6, 1), 3)):
        listed = listed_prices(file, "https://api.x.ai/v1", today)
        assert listed is not None
        price = listed.of("m")
        assert price is not None
        assert price.input == expected * DOLLAR
    hours = {"start_time": "00:30:00Z", "end_time": "16:30:00Z"}
    night = {
        "match": {"equals": "m"},
        "prices": [
            {"prices": {"input_mtok": 0.1}},
            {"constraint": hours, "prices": {"input_mtok": 0.2}},
        ],
    }
    listed = listed_prices(made(night), "https://api.x.ai", TODAY)
    assert listed is not None
    assert listed.of("m") == Price(DOLLAR // 5, DOLLAR // 5, DOLLAR // 5, 0)


def test_long_requests_cost_their_tier() -> None:
    """A request with more input tokens than a tier begins at costs the tier's prices for all tokens."""
    prices = {
        "input_mtok": {"base": 1, "tiers": [{"start": 200, "price": 2}]},
        "output_mtok": {"base": 10, "tiers": [{"start": 200, "price": 20}]},
        "cache_read_mtok": 0.5,
    }
    listed = listed_prices(made({"match": {"equals": "m"}, "prices": prices}), "https://api.x.ai", TODAY)
    assert listed is not None
    price = listed.of("m")
    assert price is not None
    assert price.cost(Usage(200, 10, 210)) == 200 * 1000 + 10 * 10_000
    assert price.cost(Usage(201, 10, 211, {}, 1)) == 200 * 2000 + 10 * 20_000 + 500


def test_every_kind_of_price_counts() -> None:
    """Cached input, images, thought and the request itself cost what they are given."""
    price = Price(1000, 100, 1250, 10_000, reasoning=20_000, image_input=4000, request=7)
    native = {"input_tokens_details": {"image_tokens": 200_000}}
    usage = Usage(1_000_000, 500_000, 1_500_000, native, 300_000, 100_000, 50_000)
    text = 1_000_000 - 300_000 - 50_000 - 200_000
    expected = text * 1000 + 200_000 * 4000 + 300_000 * 100 + 50_000 * 1250
    expected += 400_000 * 10_000 + 100_000 * 20_000
    assert price.cost(usage) == (expected + 500_000) // 10**6 + 7
    huge = Usage(5, 1, 6, {"input_tokens_details": {"image_tokens": 10**18}}, 0, 10**18)
    assert price.cost(huge) == 7 + (5 * 4000 + 1 * 20_000 + 500_000) // 10**6


def test_what_is_not_known_is_left_out() -> None:
    """Models without a price in a known unit, with unknown clauses or with slow patterns are left out."""
    good = {
        "match": {"or": [{"starts_with": "a"}, {"ends_with": "z"}, {"regex": r"^b-\d{4}$"}]},
        "prices": {"input_mtok": 1},
    }
    both = {"match": {"and": [{"contains": "c"}, {"contains": "d"}]}, "prices": {"requests_kcount": 5}}
    file = made(
        good,
        both,
        {"match": {"regex": r"^(a+)+$"}, "prices": {"input_mtok": 1}},
        {"match": {"sounds_like": "x"}, "prices": {"input_mtok": 1}},
        {"match": {"equals": "x"}, "prices": {"audio_hours": 1}},
        {"prices": {"input_mtok": 1}},
    )
    (provider,) = file.providers
    assert len(provider.models) == 2
    listed = listed_prices(json.decode(json.encode(file), type=PriceFile), "https://api.x.ai", TODAY)
    assert listed is not None
    assert all(listed.of(name) for name in ("abc", "xyz", "b-2024", "cd"))
    assert not any(listed.of(name) for name in ("b-20245", "c", "x", "a" * 201))
    once = listed.of("cd")
    assert once is not None
    assert once.request == 5 * DOLLAR // 1000
    several: list[Any] = [{}, [], [{"id": "x"}], [1], "x"]
    for wrong in several:
        with pytest.raises(ValueError, match="it "):
            compact(wrong, source="", taken="", licence="")


class _Upstream:
    def __init__(self, *, free: bool = False, listed: ListedPrices | None = None) -> None:
        self.free = free
        self.listed = listed


def test_own_prices_come_before_the_list() -> None:
    """A free upstream costs nothing; else ``[prices]`` count, and then the list by the upstream's name."""
    listed = _at("https://api.openai.com/v1")
    own = Prices({"fast": Price(1, 1, 1, 1)})
    assert own.at(_Upstream(listed=listed), "fast", "gpt-4o-mini") == Price(1, 1, 1, 1)
    assert own.at(_Upstream(listed=listed), "other", "gpt-4o-mini") == listed.of("gpt-4o-mini")
    assert own.at(_Upstream(), "other", "gpt-4o-mini") is None
    assert own.at(_Upstream(free=True, listed=listed), "fast", "gpt-4o-mini") == FREE


def test_a_price_changes_while_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The price of a request is that of its day, not that of the day on which the server started."""
    dated = [
        {"prices": {"input_mtok": 1}},
        {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 2}},
    ]

    class Clock(date):
        now = date(2026, 12, 31)

        @classmethod
        def today(cls) -> Any:
            return cls.now

    monkeypatch.setattr(price_list, "date", Clock)
    listed = listed_prices(made({"match": {"equals": "m"}, "prices": dated}), "https://api.x.ai")
    assert listed is not None
    amounts = []
    for Clock.now in (date(2026, 12, 31), date(2027, 1, 1)):
        price = listed.of("m")
        assert price is not None
        amounts.append(price.input)
    assert amounts == [DOLLAR, 2 * DOLLAR]
