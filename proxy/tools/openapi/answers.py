"""Turn an API's answer into what the model reads. It is untrusted, and bounded before it comes here."""

import json
from collections.abc import Iterable
from typing import Any, Final

import orjson

from proxy.base.errors import ToolFailure
from proxy.http.secrets import Secrets
from proxy.json.in_thread import in_thread
from proxy.json.size import count_values
from proxy.tools.access.egress import Answer, HttpFailure, decode_text
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import RichResult
from proxy.tools.mcp.definitions import visible_text

_MOST_VALUES: Final = 200_000
_MOST_WORDS: Final = 900
"""The most characters of a service's own words about a failure; what a model reads of one has 1,000."""

_SHORTEST_SECRET: Final = 6
_TEXTS: Final = ("application/xml", "application/xhtml+xml", "application/javascript", "application/yaml")


def secrets_in(headers: Iterable[str]) -> Secrets | None:
    """Return what answers must not repeat of the operator's headers; short values could be any word."""
    shapes = [value.encode() for value in headers if len(value) >= _SHORTEST_SECRET]
    return Secrets(shapes) if shapes else None


async def read_answer(answer: Answer, secrets: Secrets | None = None) -> RichResult:
    """Return the content of a 2xx answer, without the secrets.

    Raises :class:`ToolFailure` for an answer that cannot be read.
    """
    media_type, _, parameters = answer.content_type.partition(";")
    media_type = media_type.strip().lower()
    if not answer.body:
        return RichResult(json.dumps({"status": answer.status}), data={"status": answer.status})
    if media_type.startswith("image/"):
        return RichResult(images=[Image(data=answer.body, media_type=media_type)])
    # Many services give no type, or a wrong one, to their JSON.
    body = secrets.blanked(answer.body) if secrets is not None else answer.body
    if media_type == "application/json" or media_type.endswith("+json") or body[:1] in b"{[":
        value = await in_thread(_json, body)
        if value is not None:
            return RichResult(await in_thread(_text_of, value), data=value)
    if (
        not media_type
        or media_type.startswith("text/")
        or media_type.endswith("+xml")
        or media_type in _TEXTS
    ):
        return RichResult(visible_text(decode_text(body, parameters, is_html="html" in media_type)))
    size = len(answer.body)
    return RichResult(
        f"[toolrelay: the answer was left out ({visible_text(media_type)[:100]}, {size} bytes)]"
    )


def explained(failure: HttpFailure, secrets: Secrets | None = None) -> ToolFailure:
    """Return the failure for the model, with what the service says about it; without an answer, the same."""
    if failure.status is None:
        return failure
    body = secrets.blanked(failure.body) if secrets is not None else failure.body
    value = _parsed(body) if len(body) <= 1 << 16 else None
    text = _text_of(value) if value is not None else visible_text(decode_text(body[:8192]))
    words = " ".join(text.split())[:_MOST_WORDS]
    return ToolFailure(
        failure.message + (f": {words}" if words else ""), code=failure.code, transient=failure.transient
    )


def _json(body: bytes) -> Any:
    """Return the JSON of a body; ``None`` if it is not JSON. Raises :class:`ToolFailure` for too much."""
    if count_values(body, _MOST_VALUES) > _MOST_VALUES:
        raise ToolFailure(f"the service answered with more than {_MOST_VALUES} JSON values")
    return _parsed(body)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _text_of(value: Any) -> str:
    try:
        return visible_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        raise ToolFailure("the service answered with JSON that is nested too deeply") from None
