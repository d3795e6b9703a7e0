"""Decide whether and when to retry a tool's HTTP request, by the response and by what may be repeated."""

from collections.abc import Mapping
from typing import Any

from proxy.http.retry_after import wait_in_seconds
from proxy.tools.contract.capabilities import IdempotencyKey

_RETRIED = frozenset({429, 503})
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 2.0


def has_idempotency_key(headers: Mapping[str, str], body: Any) -> bool:
    """Return whether a request has an idempotency key, so that a repeat has no second effect.

    That is a header ``Idempotency-Key``, or an :class:`~proxy.tools.contract.capabilities.IdempotencyKey` as
    the value of any header or of any member of the JSON body.
    """
    given = [*headers.values(), *(body.values() if isinstance(body, dict) else ())]
    named = any(name.lower() == "idempotency-key" for name in headers)
    return named or any(isinstance(value, IdempotencyKey) for value in given)


def parse_retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which the service allows a retry; ``None`` if it does not say.

    ``headers`` is case-insensitive. If a 429 has no ``Retry-After``, its ``ratelimit-reset`` may say when
    the limit resets. It counts unless ``ratelimit-remaining`` shows that something is left. Duffel sends a
    date (https://duffel.com/docs/api/overview/response-handling), drafts of the IETF have seconds
    (draft-ietf-httpapi-ratelimit-headers-06). The size of the limit (``ratelimit-limit``) does not matter.
    """
    retry_after_s = wait_in_seconds(headers.get("Retry-After"))
    if retry_after_s is None and status == 429 and headers.get("RateLimit-Remaining", "0").strip() == "0":
        retry_after_s = wait_in_seconds(headers.get("RateLimit-Reset"))
    return retry_after_s


def wait_before_retry(
    status: int, retry_after_s: float | None, attempt: int, *, repeatable: bool
) -> float | None:
    """Return the seconds until the next try; ``None`` for no retry, also if the service wants a longer wait.

    ``retry_after_s`` is the result of :func:`parse_retry_after`; ``attempt`` is the number of retries so far.
    A request that is not ``repeatable`` is retried only if the service did not act on it: after a 429, and
    after a 503 that says when to retry. The effect may have happened before any other 503.
    """
    if status not in _RETRIED or (status == 503 and retry_after_s is None and not repeatable):
        return None
    wait_s = retry_after_s if retry_after_s is not None else _FIRST_WAIT_S * 2.0**attempt
    return wait_s if wait_s <= _MAX_WAIT_S else None
