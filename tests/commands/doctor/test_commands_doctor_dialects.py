"""``find_dialects`` turns each answer of an upstream into a verdict and never into an exception."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from ollama_script import done
from recorded_answers import Asked, Given, Scripted

from proxy.base.errors import UpstreamUnreachable
from proxy.commands.doctor.probing.dialects import SpokenDialect, find_dialects
from proxy.wires.registry.wires import built_in_wires

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
REPLIES = {
    "/chat/completions": (FIXTURES / "llamacpp.chat/text-json/turn-1/response.json").read_bytes(),
    "/responses": (FIXTURES / "llamacpp.responses/text-json/turn-1/response.json").read_bytes(),
    "/messages": (FIXTURES / "llamacpp.anthropic/tool-json/turn-1/response.json").read_bytes(),
    "/api/chat": done(content="Ok."),
}
WIRES = {path: name for name, wire in built_in_wires().items() for path in [wire.dialect.path]}


def error(message: str, status: int) -> Given:
    return Given(orjson.dumps({"error": {"message": message}}), status)


async def found_by(answer: Callable[[Asked], Given]) -> dict[str, SpokenDialect]:
    spoken = await find_dialects(Scripted(answer), built_in_wires(), "m")
    return {one.name: one for one in spoken}


@pytest.mark.parametrize("path", REPLIES)
async def test_the_one_dialect_that_is_spoken_is_found(path: str) -> None:
    """If an upstream answers in one dialect and with 404 elsewhere, only this dialect is found."""
    said = await found_by(
        lambda asked: (
            Given(REPLIES[path])
            if (asked.path, asked.rooted) == (path, path.startswith("/api/"))
            else error("Not Found", 404)
        )
    )
    assert {name for name, one in said.items() if one.spoken} == {WIRES[path]}
    assert [one.spoken for one in said.values()].count(False) == len(said) - 1


async def test_all_are_found_and_asked_for_little() -> None:
    """Each dialect is asked with one unstreamed request for at most 16 tokens."""
    bodies: dict[str, Mapping[str, Any]] = {}

    def answer(asked: Asked) -> Given:
        bodies[asked.path] = asked.payload
        return Given(REPLIES[asked.path])

    said = await found_by(answer)
    assert all(one.spoken and not one.problem for one in said.values())
    for body in bodies.values():
        assert body["model"] == "m"
        assert not body.get("stream")
        assert 16 in {**body, **body.get("options", {})}.values()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"{}", b"[]", b'{"ok":true}', b""])
async def test_a_page_at_every_path_is_no_dialect(body: bytes) -> None:
    """An answer with status 200 that does not fit the dialect does not count as the dialect."""
    said = await found_by(lambda asked: Given(body))
    assert {one.spoken for one in said.values()} == {False}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error("The model 'm' does not exist", 404), "does not exist"),
        (error("Incorrect API key", 401), "Incorrect API key"),
        (error("overloaded", 503), "overloaded"),
        (error("\x1b[2J" + "x" * 5000, 400), "\\x1b[2J"),
        (UpstreamUnreachable("it takes no connection"), "it takes no connection"),
    ],
    ids=["model", "key", "busy", "hostile", "gone"],
)
async def test_what_says_nothing_of_the_dialect_is_left_open(answer: Given | Exception, words: str) -> None:
    """A refusal for another reason leaves the dialect open and is reported in one short line."""

    def give(asked: Asked) -> Given:
        if isinstance(answer, Exception):
            raise answer
        return answer

    said = await found_by(give)
    assert {one.spoken for one in said.values()} == {None}
    assert all(words in one.problem and "\n" not in one.problem for one in said.values())
    assert all(len(one.problem) < 400 for one in said.values())
