"""``GET /v1/models`` over all upstreams."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import structlog

from proxy.errors import RequestError, UpstreamError
from proxy.http.headers import Headers
from proxy.relay.routing.router import Router, Served
from proxy.upstreams.base import UpstreamRequest

__all__ = ["list_models", "show_model"]

_MAX_BYTES = 8 * 1024 * 1024


async def list_models(router: Router, headers: Headers) -> bytes:
    """One list of the models that are served, under the names that clients use, each once.

    An upstream that does not answer is left out.  Raises :class:`UpstreamError` where none does.
    """
    models, failures = await _gather(router, headers)
    if failures and len(failures) == len(router.served):
        raise failures[0][1]
    return orjson.dumps({"object": "list", "data": list(models.values())})


async def show_model(router: Router, model: str, headers: Headers) -> bytes:
    """One model by the name that clients use.

    Raises :class:`RequestError` (404) for any other, and :class:`UpstreamError` where an upstream that may
    serve it does not answer: nobody knows then that there is no such model.
    """
    if router.permits(model):
        models, failures = await _gather(router, headers)
        if model in models:
            return orjson.dumps(models[model])
        for served, failure in failures:
            if served.model_name(model) is not None:
                raise failure
    raise RequestError(
        404,
        f"The model {model[:100]!r} does not exist or is not served here.",
        param="model",
        code="model_not_found",
    )


async def _gather(
    router: Router, headers: Headers
) -> tuple[dict[str, dict[str, Any]], list[tuple[Served, UpstreamError]]]:
    """The models that are served, by name; and the upstreams that did not say theirs, with why."""
    answers = await asyncio.gather(*(_ask(served, headers) for served in router.served))
    models: dict[str, dict[str, Any]] = {}
    failures: list[tuple[Served, UpstreamError]] = []
    for served, answer in zip(router.served, answers, strict=True):
        if isinstance(answer, UpstreamError):
            structlog.get_logger("proxy.server").warning(
                "models_left_out", upstream=served.upstream.name, error_code=answer.code
            )
            failures.append((served, answer))
            continue
        for model in _shown(served, answer):
            if router.permits(model["id"]):
                models.setdefault(model["id"], model)
    return models, failures


async def _ask(served: Served, headers: Headers) -> list[dict[str, Any]] | UpstreamError:
    """The upstream's models, or why it did not say."""
    try:
        response = await served.upstream.open(UpstreamRequest("GET", "/models", headers=headers))
        try:
            body = await response.read(_MAX_BYTES)
        finally:
            await response.aclose()
    except UpstreamError as error:
        return error
    if response.status != 200:
        return UpstreamError(f"The upstream answered {response.status} for its models.")
    if served.secrets is not None:
        # What is composed here passes no stream that would take our key out.
        body = served.secrets.blanked(body)
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return UpstreamError("The upstream's list of models is not JSON.")
    data = payload.get("data") if isinstance(payload, dict) else None
    return [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []


def _shown(served: Served, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The models this upstream serves to clients; a renamed one needs not be on its list."""
    by_id = {name: model for model in models if isinstance(name := model.get("id"), str)}
    if served.renamed is not None:
        return [
            {**_entry(target, served), **by_id.get(target, {}), "id": name}
            for name, target in served.renamed.items()
        ]
    return [model for name, model in by_id.items() if served.shown_name(name) is not None]


def _entry(model: str, served: Served) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": served.upstream.name}
