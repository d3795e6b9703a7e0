"""Dates and times in system prompts: a prompt with the current time differs in each request."""

import re
import time
from typing import Any, Final, Literal

SystemRule = Literal["exact", "clock", "ignore"]
"""How to compare the system messages at the beginning: exactly, without dates and times, or not at all."""

_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?"
_TIME: Final = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?"
_ZONE: Final = r"(?:\s?(?:z\b|utc\b|gmt\b|[+-]\d{2}:?\d{2}\b))?"
_YEAR: Final = r"20\d{2}"
_DATE: Final = (
    rf"{_YEAR}-\d{{2}}-\d{{2}}|{_YEAR}/\d{{1,2}}/\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]{_YEAR}"
    rf"|{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s{_YEAR})?"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.)?\s{_MONTH}\.?(?:,?\s{_YEAR})?"
)
_CLOCK: Final = re.compile(
    rf"\b(?:{_DAY},?\s)?(?:{_DATE})(?:(?:t|,?\s(?:at\s)?){_TIME}{_ZONE})?(?!\w)"
    rf"|\b{_TIME}{_ZONE}(?!\w)"
    r"|\b(?P<epoch>[12]\d{9})(?:\d{3}|\.\d{1,9})?(?!\w)"
    rf"|\b{_DAY}\b(?=[\s,.;)\]]*(?:$|\n))",
    re.IGNORECASE,
)
"""Dates and times as programs write them: ISO 8601, RFC 2822, with names of months, and seconds or
milliseconds since the epoch. A weekday alone only counts at the end of a line."""
_MAY_HAVE: Final = re.compile(r"\d|day\b", re.IGNORECASE)
_YEARS: Final = re.compile(_YEAR)
_MARK: Final = "\u0001"
_YEAR_S: Final = 366 * 86400.0


def without_clock(value: Any) -> Any:
    """Return a JSON value without the current dates and times in its strings.

    Dates outside last year, this year and next year stay: they are content, such as a date of birth.
    """
    if isinstance(value, str):
        return _CLOCK.sub(_marked, value) if _MAY_HAVE.search(value) else value
    if isinstance(value, list):
        return [without_clock(inner) for inner in value]
    if isinstance(value, dict):
        return {key: without_clock(inner) for key, inner in value.items()}
    return value


def _marked(found: re.Match[str]) -> str:
    now = time.time()
    if (epoch := found["epoch"]) is not None:
        return _MARK if abs(int(epoch) - now) < _YEAR_S else found[0]
    this_year = time.gmtime(now).tm_year
    years = map(int, _YEARS.findall(found[0]))
    return _MARK if all(abs(year - this_year) <= 1 for year in years) else found[0]
