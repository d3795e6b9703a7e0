"""Probes what an upstream supports: streaming, tools, usage, the end mark.

It also detects an address without the ``/v1`` of the API, the most common mistake.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from proxy.base.errors import UpstreamError, WireError
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.chat.dialect import CHAT
from proxy.wires.dialect import ModelLists
from proxy.wires.registry.table import BY_WIRE

MAX_BODY_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 60.0
_HEADERS = (("content-type", "application/json"),)
_TOOL = {
    "type": "function",
    "function": {
        "name": "toolrelay_probe",
        "description": "Does nothing. Never call it.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}


class ProbeResult(Struct, frozen=True):
    """The result of a probe. ``None`` means not tested; ``problem`` is one line, empty if there is none."""

    reachable: bool
    models: tuple[str, ...] | None = None
    model: str | None = None
    streams: bool | None = None
    tools: bool | None = None
    usage: bool | None = None
    end_mark: bool | None = None
    problem: str = ""
    lacks_v1: bool = False
    refuses_key: bool = False


def v1_fault(name: str, base_url: str) -> str:
    """Return the fault of an upstream that :func:`lacks_v1`, and what to write instead."""
    right = f"{base_url.rstrip('/')}/v1"
    return (
        f"upstreams.{name}.base_url: no API answers at {base_url}, but one answers at {right}. Set "
        f'upstreams.{name}.base_url = "{right}" (or --upstream {right})'
    )


async def lacks_v1(upstream: Upstream, *, timeout_s: float) -> bool:
    """Return whether the API is below ``/v1`` of the upstream's address, and not at the address itself.

    Never raises for failures of the upstream: without an answer the result is false.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return not (await models_at(upstream)).is_api and await _is_below_v1(upstream)
    except (TimeoutError, UpstreamError):
        return False


class ListedModels(Struct, frozen=True):
    """The response to a request for the list of models; ``names`` is ``None`` if it is no list."""

    status: int
    names: tuple[str, ...] | None

    @property
    def is_api(self) -> bool:
        """Whether an API answered: it listed its models, or refused the key."""
        return self.names is not None or self.status in (401, 403)


def lists_of(wires: Iterable[str]) -> ModelLists:
    """Return how an upstream with these ``wires`` lists its models.

    The first dialect with paths below the upstream's address decides; if all are rooted, the first one does.
    """
    spoken = [BY_WIRE[wire].models for wire in wires if wire in BY_WIRE]
    return next((lists for lists in spoken if not lists.rooted), spoken[0] if spoken else CHAT.models)


async def models_at(upstream: Upstream, lists: ModelLists = CHAT.models, *, prefix: str = "") -> ListedModels:
    """Return the models that an upstream lists below its address and ``prefix``.

    Raises :class:`~proxy.base.errors.UpstreamError` if it does not answer.
    """
    response = await upstream.open(UpstreamRequest("GET", prefix + lists.path, rooted=lists.rooted))
    try:
        status, body = response.status, await response.read(MAX_BODY_BYTES)
    finally:
        await response.aclose()
    reply = _object(body)
    is_list = status == 200 and any(
        isinstance(reply.get(member), list)
        for member, empty in lists.whole([]).items()
        if isinstance(empty, list)
    )
    return ListedModels(status, tuple(lists.read(reply)) if is_list else None)


async def _is_below_v1(upstream: Upstream) -> bool:
    return (await models_at(upstream, prefix=CHAT.prefix)).is_api


async def probe(
    upstream: Upstream,
    model: str | None = None,
    *,
    wires: Sequence[str] = (CHAT.name,),
    timeout_s: float = TIMEOUT_S,
) -> ProbeResult:
    """Ask for the models, then for one word with a tool offered, and without one if that is refused.

    The question goes to ``model``, by default to the first model that the upstream lists. If Chat is not
    among its ``wires``, only its models are requested. Costs at most two tiny completions. Never raises for
    failures of the upstream.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _probe(upstream, model, wires)
    except TimeoutError:
        return ProbeResult(reachable=False, problem=f"no complete response within {timeout_s:.0f} s")
    except UpstreamError as error:
        return ProbeResult(reachable=False, problem=error.message)


async def _probe(upstream: Upstream, model: str | None, wires: Sequence[str]) -> ProbeResult:
    lists = lists_of(wires)
    listed = await models_at(upstream, lists)
    if not listed.is_api and not lists.rooted and await _is_below_v1(upstream):
        return ProbeResult(reachable=True, problem="the API is below /v1", lacks_v1=True)
    status, models = listed.status, listed.names
    if status == 200 and models is None:
        models = ()
    chosen = model or (models[0] if models else None)
    if status in (401, 403):
        return ProbeResult(
            reachable=True, problem=f"the upstream refuses the key (status {status})", refuses_key=True
        )
    if chosen is None:
        return ProbeResult(
            reachable=True,
            models=models,
            problem=f"the upstream lists no models (status {status}); name one in models",
        )
    if CHAT.name not in wires:
        return ProbeResult(reachable=True, models=models, model=chosen)
    first = await _ask(upstream, chosen, tools=True)
    takes_tools = first.status == 200
    answer = first if takes_tools else await _ask(upstream, chosen, tools=False)
    if answer.status != 200:
        return ProbeResult(
            reachable=True,
            models=models,
            model=chosen,
            problem=f"a chat request for {chosen} got status {answer.status}",
        )
    return ProbeResult(
        reachable=True,
        models=models,
        model=chosen,
        streams=answer.streams,
        tools=takes_tools,
        usage=answer.usage,
        end_mark=answer.end_mark,
        problem=answer.problem,
    )


class _Answer(Struct):
    status: int
    streams: bool = False
    usage: bool = False
    end_mark: bool = False
    problem: str = ""


async def _ask(upstream: Upstream, model: str, *, tools: bool) -> _Answer:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "stream": True,
        **CHAT.fields.usage_asked,
    }
    if tools:
        body["tools"] = [_TOOL]
    response = await upstream.open(
        UpstreamRequest("POST", CHAT.path, headers=_HEADERS, body=orjson.dumps(body), expect_stream=True)
    )
    try:
        return await _read(response)
    finally:
        await response.aclose()


async def _read(response: UpstreamResponse) -> _Answer:
    answer = _Answer(response.status)
    if response.status != 200:
        return answer
    if response.content_type != CHAT.framing.content_type:
        body = await response.read(MAX_BODY_BYTES)
        answer.usage = isinstance(_object(body).get("usage"), dict)
        answer.problem = (
            f"the upstream answered a streamed request with Content-Type {response.content_type or '(none)'}"
        )
        return answer
    answer.streams = True
    parser, received = CHAT.framing.parser(), 0
    try:
        async for chunk in response.chunks():
            received += len(chunk)
            for event in parser.feed(chunk):
                answer.end_mark = answer.end_mark or event.is_end_mark
                answer.usage = answer.usage or isinstance(_object(event.data).get("usage"), dict)
            if received > MAX_BODY_BYTES:
                answer.problem = f"the answer to a one-word prompt is larger than {MAX_BODY_BYTES} bytes"
                break
    except UpstreamError as error:
        answer.problem = f"the stream broke: {error.message}"
    except WireError as error:
        answer.problem = f"the stream is not a valid event stream: {error}"
    return answer


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
