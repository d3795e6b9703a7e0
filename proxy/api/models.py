"""Lists the models of all upstreams as one list, in the client's dialect."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
import structlog
from aiohttp import web
from msgspec.structs import replace

from proxy.api.context import Context
from proxy.api.generate.forwarder import Forwarder
from proxy.api.generate.request_reader import RequestReader
from proxy.api.routes import routes_of_model
from proxy.base.errors import RequestError, UpstreamError
from proxy.http.headers import Headers
from proxy.relay.body import Body
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Router, ServedUpstream
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.dialect import Dialect, ModelLists
from proxy.wires.registry.table import BY_WIRE, dialect_of

_MAX_BYTES = 8 * 1024 * 1024


class Models:
    """The handler of requests for models."""

    def __init__(self, forwarder: Forwarder, request_reader: RequestReader, prices: Prices) -> None:
        self._forwarder = forwarder
        self._request_reader = request_reader
        self._prices = prices

    async def answer(self, context: Context) -> web.StreamResponse:
        """Return the models that the caller may use; see
        :class:`~proxy.api.pipeline.EndpointHandler`."""
        router, endpoint = context.permissions.router, context.target.endpoint
        dialect = dialect_of(endpoint, context.request.headers)
        if endpoint.action == "show":
            return await self._shown(context, router)
        if router.is_plain and _lists(router.default, dialect) is dialect.models:
            return await self._forwarder.send_to_default(context)
        headers = self._forwarder.headers(context, None, identity=True)
        query = dict(parse_qsl(context.target.query))
        match endpoint.action:
            case "version":
                found: Any = {"version": dialect.models.version}
            case "running":
                found = await _running(router, dialect, endpoint.path, headers)
            case "list":
                found = await _list_models(router, dialect, headers, query)
            case _:
                model = unquote(endpoint.stored_id(context.target.below or ""))
                found = await (
                    _find_model(router, dialect, model, headers)
                    if "{" in endpoint.path
                    else _list_models(router, dialect, headers, query)
                )
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    async def _shown(self, context: Context, router: Router) -> web.StreamResponse:
        """Answer Ollama's ``show`` request for one model: its upstream answers if it speaks that dialect,
        else the proxy."""
        body = await self._request_reader.read(context)
        named = body.payload.get("model") or body.payload.get("name")
        older = isinstance(named, str) and body.payload.get("model") != named
        if older:
            body = Body(body.raw, {**body.payload, "model": named})
        await self._request_reader.check_rights(context, body, self._request_reader.principal(context, body))
        dialect = context.target.endpoint.dialect
        route = routes_of_model(context, self._prices, body.payload, tuple(BY_WIRE))[0]
        if dialect.wire in route.served.wires:
            # Not every upstream reads the field's name that older clients use.
            route = replace(route, renamed=route.renamed or older)
            return await self._forwarder.send(context, body, Candidates.of([route], body.payload))
        headers = self._forwarder.headers(context, None, identity=True)
        lists = _lists(route.served, dialect)
        listed = await _ask(route.served, lists, lists.path, headers)
        entry = {} if isinstance(listed, UpstreamError) else listed.get(route.model, {})
        owner = route.served.upstream.name
        shown = dialect.models.show(owner, entry, route.served.tools)
        return web.Response(body=orjson.dumps(shown), content_type="application/json")


def _lists(served: ServedUpstream, own: Dialect) -> ModelLists:
    """Return the form in which an upstream lists its models: the client's own if the upstream speaks it."""
    spoken = [BY_WIRE[wire].models for wire in sorted(served.wires)]
    return own.models if own.models in spoken else spoken[0]


async def _list_models(router: Router, dialect: Dialect, headers: Headers, query: Mapping[str, str]) -> Any:
    """Return one list of the served models under the names that clients use, each once. ``query`` may ask
    for a page of it.

    It leaves out upstreams that do not answer. Raises :class:`UpstreamError` if none answers.
    """
    models, failures = await _gather(router, dialect, headers)
    if failures and len(failures) == len(router.served):
        raise failures[0][1]
    lists = dialect.models
    return lists.page(list(models.values()), query) if lists.page else lists.whole(list(models.values()))


async def _find_model(router: Router, dialect: Dialect, model: str, headers: Headers) -> Any:
    """Return one model by the name that clients use.

    Raises :class:`RequestError` (404) for any other. Raises :class:`UpstreamError` if an upstream that may
    serve it does not answer, because then the model may still exist.
    """
    if router.permits(model):
        models, failures = await _gather(router, dialect, headers)
        if model in models:
            return models[model]
        for served, failure in failures:
            if served.model_name(model) is not None:
                raise failure
    raise RequestError(
        404,
        f"The model {model[:100]!r} does not exist or is not served here.",
        param="model",
        code="model_not_found",
    )


async def _running(router: Router, dialect: Dialect, path: str, headers: Headers) -> Any:
    """Return the models that upstreams of the client's dialect have in memory; others do not report this."""
    asked = [served for served in router.served if dialect.wire in served.wires]
    answers = await asyncio.gather(*(_ask(served, dialect.models, path, headers) for served in asked))
    models: dict[str, dict[str, Any]] = {}
    for served, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, UpstreamError):
            models |= _permitted(router, _renamed(served, dialect.models, answer))
    return dialect.models.whole(list(models.values()))


async def _gather(
    router: Router, dialect: Dialect, headers: Headers
) -> tuple[dict[str, dict[str, Any]], list[tuple[ServedUpstream, UpstreamError]]]:
    """Return the served models by name, and the upstreams that did not list theirs, each with its error."""
    lists = [_lists(served, dialect) for served in router.served]
    answers = await asyncio.gather(
        *(_ask(served, own, own.path, headers) for served, own in zip(router.served, lists, strict=True))
    )
    models: dict[str, dict[str, Any]] = {}
    failures: list[tuple[ServedUpstream, UpstreamError]] = []
    for served, own, answer in zip(router.served, lists, answers, strict=True):
        if isinstance(answer, UpstreamError):
            structlog.get_logger("proxy.server").warning(
                "models_left_out", upstream=served.upstream.name, error_code=answer.code
            )
            failures.append((served, answer))
            continue
        if own is not dialect.models:
            answer = {name: dialect.models.entry(name, served.upstream.name) for name in answer}
        for name, model in _permitted(router, _shown(served, dialect.models, answer)).items():
            models.setdefault(name, model)
    return models, failures


async def _ask(
    served: ServedUpstream, lists: ModelLists, path: str, headers: Headers
) -> Mapping[str, dict[str, Any]] | UpstreamError:
    """Return the upstream's models by name, or the error if it did not list them."""
    try:
        query = lists.query if path == lists.path else ""
        request = UpstreamRequest("GET", path, query, headers=headers, rooted=lists.rooted)
        response = await served.upstream.open(request)
        try:
            body = await response.read(_MAX_BYTES)
        finally:
            await response.aclose()
    except UpstreamError as error:
        return error
    if response.status != 200:
        return UpstreamError(
            f"The upstream answered the request for its models with status {response.status}."
        )
    if served.secrets is not None:
        # This response is built here and passes no stream that would remove the operator's key.
        body = served.secrets.blanked(body)
    try:
        return lists.read(orjson.loads(body))
    except orjson.JSONDecodeError:
        return UpstreamError("The upstream's list of models is not valid JSON.")


def _shown(
    served: ServedUpstream, lists: ModelLists, models: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the models that this upstream serves to clients; a renamed one need not be on its list."""
    if served.renamed is None:
        return {name: model for name, model in models.items() if served.shown_name(name) is not None}
    owner = served.upstream.name
    return {
        name: {**lists.entry(target, owner), **models.get(target, {}), **dict.fromkeys(lists.names, name)}
        for name, target in served.renamed.items()
    }


def _renamed(
    served: ServedUpstream, lists: ModelLists, models: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the models of an upstream that it serves to clients, under the names that clients use."""
    shown = {name: served.shown_name(name) for name in models}
    return {
        name: {**models[model], **dict.fromkeys(lists.names, name)}
        for model, name in shown.items()
        if name is not None
    }


def _permitted(router: Router, models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: model for name, model in models.items() if router.permits(name)}
