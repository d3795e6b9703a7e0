"""When a tool's HTTP request is sent once more: what the service says of it, and what may be repeated."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from proxy.tools.contract.capabilities import IdempotencyKey

__all__ = ["names_its_effect", "told_wait", "wait_before_retry"]

_RETRIED = frozenset({429, 503})
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 2.0


def names_its_effect(headers: Mapping[str, str], body: Any) -> bool:
    """Whether a request bears a key by which a service knows it again, so that a repeat changes nothing.

    That is a header ``Idempotency-Key``, or an :class:`~proxy.tools.contract.capabilities.IdempotencyKey`
    as a header or as a member of the JSON body, wherever the service wants it.
    """
    given = [*headers.values(), *(body.values() if isinstance(body, dict) else ())]
    named = any(name.lower() == "idempotency-key" for name in headers)
    return named or any(isinstance(value, IdempotencyKey) for value in given)


def told_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds after which a service wants to be asked again; ``None`` for no word on it.

    ``headers`` are found in any case.  Where ``Retry-After`` is missing, a 429 may say in
    ``ratelimit-reset`` when its limit begins anew, if that limit is the one with nothing left: Duffel as
    a date (https://duffel.com/docs/api/overview/response-handling), drafts of the IETF in seconds
    (draft-ietf-httpapi-ratelimit-headers-06).  How large the limit is (``ratelimit-limit``) decides
    nothing.
    """
    told = _seconds(headers.get("Retry-After"))
    if told is None and status == 429 and headers.get("RateLimit-Remaining", "0").strip() == "0":
        told = _seconds(headers.get("RateLimit-Reset"))
    return told


def wait_before_retry(status: int, told: float | None, attempt: int, *, repeatable: bool) -> float | None:
    """Seconds until another try; ``None`` for none, also where the service wants a longer wait.

    ``told`` is what :func:`told_wait` read, ``attempt`` counts the retries so far.  A request that is
    not ``repeatable`` goes out again only where the service did not act on it: after 429, and after a
    503 that says when to come again.  Any other 503 may have come after the effect.
    """
    if status not in _RETRIED or (status == 503 and told is None and not repeatable):
        return None
    wait_s = told if told is not None else _FIRST_WAIT_S * 2.0**attempt
    return wait_s if wait_s <= _MAX_WAIT_S else None


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` (RFC 9110, section 10.2.3) in seconds from now; ``None`` for what is neither form."""
    if value is None or len(value) > 64 or not value.isascii():
        return None
    if value.isdigit():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError, OSError):
        return None
