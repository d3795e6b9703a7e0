"""``probe`` turns each answer of an upstream into a result and never into an exception."""

import asyncio
from collections.abc import AsyncIterator, Callable

import orjson
import pytest

from proxy.base.errors import UpstreamBroken, UpstreamUnreachable
from proxy.commands.doctor.probing.probe import ProbeResult, lacks_v1, probe, v1_fault
from proxy.http.headers import Headers
from proxy.upstreams.base import PulledResponse, UpstreamRequest

MODELS = orjson.dumps({"object": "list", "data": [{"id": "m-1"}, {"id": "m-2"}]})
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


class Answer(PulledResponse):
    """One prepared response; with ``breaks``, its stream ends like a lost connection."""

    def __init__(
        self, *chunks: bytes, status: int = 200, kind: str = "text/event-stream", breaks: bool = False
    ) -> None:
        self.status, self.content_type, self._chunks, self._breaks = status, kind, chunks, breaks
        self.headers: Headers = ()
        self.closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._breaks:
            raise UpstreamBroken("the connection was reset")

    async def read(self, limit: int) -> bytes:
        return b"".join(self._chunks)[:limit]

    async def aclose(self) -> None:
        self.closed = True


class Scripted:
    """An upstream that answers from a function and keeps what it was asked."""

    name = "scripted"

    def __init__(self, answer: Callable[[UpstreamRequest], Answer]) -> None:
        self._answer = answer
        self.asked: list[UpstreamRequest] = []
        self.given: list[Answer] = []

    async def open(self, request: UpstreamRequest) -> Answer:
        self.asked.append(request)
        self.given.append(self._answer(request))
        return self.given[-1]

    def body(self, at: int) -> bytes:
        body = self.asked[at].body
        assert isinstance(body, bytes)
        return body

    async def aclose(self) -> None:
        raise AssertionError("a probe does not close what it was lent")


NOT_FOUND = Answer(b"<html>", status=404, kind="text/html")
LISTED = Answer(MODELS, kind="application/json")
REFUSED = Answer(b"{}", status=401, kind="application/json")


def upstream(*chat: Answer, models: Answer = LISTED, below: Answer = NOT_FOUND) -> Scripted:
    left = list(chat)
    at = {"/models": models, "/v1/models": below}
    return Scripted(lambda request: at.get(request.path) or left.pop(0))


async def test_a_good_upstream() -> None:
    """For a correct upstream, the probe reports every ability and no problem."""
    asked = upstream(Answer(DELTA, USAGE, DONE))
    result = await probe(asked)
    assert result == ProbeResult(
        reachable=True,
        models=("m-1", "m-2"),
        model="m-1",
        streams=True,
        tools=True,
        usage=True,
        end_mark=True,
    )
    assert [(request.method, request.path) for request in asked.asked] == [
        ("GET", "/models"),
        ("POST", "/chat/completions"),
    ]
    body = orjson.loads(asked.body(1))
    assert body["model"] == "m-1"
    assert body["stream"] is True
    assert body["tools"][0]["function"]["parameters"]["type"] == "object"
    assert all(answer.closed for answer in asked.given)


async def test_a_named_model_is_asked() -> None:
    """The probe asks the model that the configuration names, not a listed one."""
    asked = upstream(Answer(DONE))
    assert (await probe(asked, "mine")).model == "mine"
    assert orjson.loads(asked.body(1))["model"] == "mine"


async def test_an_upstream_without_tools_is_asked_again_without() -> None:
    """If the upstream refuses a request with a tool, the probe reports no tools and asks again without."""
    asked = upstream(Answer(b"{}", status=400, kind="application/json"), Answer(DELTA, DONE))
    result = await probe(asked)
    assert (result.tools, result.streams, result.usage, result.end_mark, result.problem) == (
        False,
        True,
        False,
        True,
        "",
    )
    assert b"tools" not in asked.body(2)


@pytest.mark.parametrize("cut", range(1, 40, 3))
async def test_marks_are_found_however_the_stream_is_cut(cut: int) -> None:
    """The probe finds usage and the end mark however the stream is cut into chunks."""
    body = DELTA + USAGE + DONE
    pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
    result = await probe(upstream(Answer(*pieces)))
    assert (result.usage, result.end_mark) == (True, True)


@pytest.mark.parametrize(
    ("chat", "models", "words"),
    [
        ([], Answer(b"{}", status=401, kind="application/json"), "refuses the key (status 401)"),
        ([], Answer(b"<html>", status=404, kind="text/html"), "lists no models (status 404)"),
        ([], Answer(b'{"data":[{"id":3},null]}', kind="application/json"), "lists no models (status 200)"),
        ([Answer(b"", status=500), Answer(b"", status=503)], LISTED, "got status 503"),
        ([Answer(DELTA, breaks=True)], LISTED, "the stream broke: the connection was reset"),
        ([Answer(b'{"usage":{}}', kind="application/json")], LISTED, "with Content-Type application/json"),
        ([Answer(b"", kind="")], LISTED, "with Content-Type (none)"),
        ([Answer(*[DELTA * 20000] * 4)], LISTED, "is larger than 4194304 bytes"),
        ([Answer(b"data: " + b"x" * 20_000_000)], LISTED, "is not a valid event stream"),
    ],
)
async def test_each_fault_is_one_line(chat: list[Answer], models: Answer, words: str) -> None:
    """Each fault of an upstream that can be reached is reported in one line."""
    result = await probe(upstream(*chat, models=models))
    assert result.reachable
    assert words in result.problem
    assert "\n" not in result.problem


@pytest.mark.parametrize(
    ("models", "below", "lacks"),
    [
        (NOT_FOUND, LISTED, True),
        (NOT_FOUND, REFUSED, True),
        (Answer(b"<html>", kind="text/html"), LISTED, True),
        (NOT_FOUND, NOT_FOUND, False),
        (NOT_FOUND, Answer(b"<html>", kind="text/html"), False),
        (LISTED, LISTED, False),
        (REFUSED, REFUSED, False),
    ],
)
async def test_an_address_without_v1(models: Answer, below: Answer, lacks: bool) -> None:
    """``lacks_v1`` holds only if an API answers below /v1 and none at the address; no model is asked then."""
    assert await lacks_v1(upstream(models=models, below=below), timeout_s=10) is lacks
    asked = upstream(Answer(DONE), Answer(DONE), models=models, below=below)
    assert (await probe(asked, "mine")).lacks_v1 is lacks
    if lacks:
        assert [request.path for request in asked.asked] == ["/models", "/v1/models"]


def test_what_to_write_for_v1() -> None:
    """The message names the setting and the value to write."""
    line = v1_fault("x", "http://127.0.0.1:11434/")
    assert line.startswith("upstreams.x.base_url: ")
    assert 'Set upstreams.x.base_url = "http://127.0.0.1:11434/v1"' in line


async def test_an_upstream_that_is_not_there() -> None:
    """If no connection can be made, the probe returns a result and raises nothing."""

    def refuse(request: UpstreamRequest) -> Answer:
        raise UpstreamUnreachable("connection refused")

    assert await probe(Scripted(refuse)) == ProbeResult(reachable=False, problem="connection refused")
    assert not await lacks_v1(Scripted(refuse), timeout_s=10)


async def test_an_upstream_that_never_answers_is_given_up() -> None:
    """If the upstream stays silent, the probe ends at its timeout."""

    class Silent(Scripted):
        async def open(self, request: UpstreamRequest) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError("never")

    result = await probe(Silent(lambda request: Answer()), timeout_s=0.05)
    assert not result.reachable
    assert "no complete response within" in result.problem
