"""The model of a form chooses the upstream, and a key's models hold for it."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from client_keys import ALICE, bearer, declared
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running

from proxy.base.errors import RequestError
from proxy.server.messages.forms import Form

PATH = "/v1/audio/transcriptions"
TYPE = "multipart/form-data; boundary=xYzZY"
HEADERS = {"content-type": TYPE, "authorization": "Bearer x"}
ANSWER = whole(b'{"text": "hello"}')
SOUND = ("file", b"RIFF\r\n--xYz\r\n\r\n" * 40)
MODEL = ("model", b"whisper-1")


def form(*parts: tuple[str, bytes], disposition: str = "Content-Disposition") -> bytes:
    """A form with these fields; a field ``file`` is a file."""
    written = b""
    for name, value in parts:
        more = '; filename="a.wav"\r\nContent-Type: audio/wav' if name == "file" else ""
        written += (
            f'--xYzZY\r\n{disposition}: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
        )
    return written + b"--xYzZY--\r\n"


FORMS = {
    "model first": form(MODEL, ("language", b"en"), SOUND),
    "same value twice": form(("prompt", b"whisper-1"), MODEL, SOUND),
    "file first": form(SOUND, ("language", b"en"), MODEL),
    "value like a delimiter": form(("prompt", b"a\r\n--xYzZYx\r\n\r\nwhisper-1"), MODEL, SOUND),
    "line end first": b"\n" + form(MODEL, SOUND),
    "header in other letters": form(MODEL, SOUND, disposition="content-disposition"),
}


@pytest.mark.parametrize("said", FORMS)
@pytest.mark.parametrize("rename", [False, True])
async def test_the_model_of_a_form_chooses_the_upstream(said: str, rename: bool) -> None:
    """Of two upstreams the one that serves the model gets the form, with its own name of the model."""
    async with RawUpstream(ANSWER) as one, RawUpstream(ANSWER) as other:
        models = {"whisper-1": "large-v3"} if rename else ["whisper-*"]
        config = make_config(
            {"base_url": one.url, "models": ["gpt-*"]}, {"base_url": other.url, "models": models}
        )
        async with running(config) as proxy:
            answer = await proxy.ask(FORMS[said], HEADERS, path=PATH)
    assert (answer.status, answer.json) == (200, {"text": "hello"})
    assert not one.requests
    (request,) = other.requests
    parts = FORMS[said].split(b"--xYzZY\r\n")
    wanted = [
        part.replace(b"whisper-1", b"large-v3") if b'"model"' in part and rename else part for part in parts
    ]
    assert request.body == b"--xYzZY\r\n".join(wanted)
    assert request.header("content-length") == str(len(request.body))


async def test_a_form_without_a_model_goes_to_the_first_upstream() -> None:
    """A form that names no model passes to the first upstream; a model that nobody serves is a 404."""
    async with RawUpstream(ANSWER) as one, RawUpstream(ANSWER) as other:
        config = make_config(
            {"base_url": one.url, "models": ["gpt-*"]}, {"base_url": other.url, "models": ["whisper-*"]}
        )
        async with running(config) as proxy:
            assert (await proxy.ask(form(SOUND), HEADERS, path=PATH)).status == 200
            answer = await proxy.ask(form(("model", b"unknown"), SOUND), HEADERS, path=PATH)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert [request.body for request in one.requests] == [form(SOUND)]
    assert not other.requests


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (form(MODEL, SOUND), 200),
        (form(("model", b"tts-1"), SOUND), 404),
        (form(SOUND, MODEL), 403),
        (form(SOUND), 403),
        (form(MODEL, ("model", b"tts-1"), SOUND), 403),
        (form(MODEL, SOUND, ("model", b"tts-1")), 403),
        (form(MODEL, SOUND, ("MODEL", b"tts-1")), 403),
        (form(MODEL, SOUND, ("model[]", b"tts-1")), 403),
        (form(MODEL, ("models", b"tts-1"), SOUND), 403),
        (form(MODEL, ("preset", b"x"), SOUND), 403),
        (form(('a"; filename="b', b"c"), MODEL), 403),
        (b"no form", 400),
        (form(MODEL, SOUND).replace(b"\r\n", b"\n"), 400),
    ],
)
async def test_the_models_of_a_key_hold_for_forms(body: bytes, status: int) -> None:
    """A key that is limited to models sends a form only with one model of its own, before the file."""
    async with RawUpstream(ANSWER) as upstream:
        config = make_config(upstream.url, keys={"alice": declared(ALICE, models=("whisper-*",))})
        async with running(config) as proxy:
            answer = await proxy.ask(body, {**bearer(ALICE), "content-type": TYPE}, path=PATH)
    assert answer.status == status
    assert [request.body for request in upstream.requests if request.body == body] == [body] * (status == 200)


def renamed(body: bytes, model: str | None) -> bytes:
    """The form with another value of its field ``model``."""
    head, field, rest = body.partition(b'name="model"\r\n\r\n')
    return body if model is None else head + field + model.encode() + rest.removeprefix(b"whisper-1")


@given(
    st.sampled_from(sorted(FORMS)), st.sets(st.integers(1, 900)), st.sampled_from([None, "v3", "large-v3"])
)
async def test_the_cuts_never_matter(said: str, cuts: set[int], model: str | None) -> None:
    """The model is found and replaced, and all other bytes pass whole, however the form arrives."""
    body = FORMS[said]
    edges = [0, *sorted(place for place in cuts if place < len(body)), len(body)]

    async def pieces() -> AsyncIterator[bytes]:
        for start, end in pairwise(edges):
            yield body[start:end]

    read = Form(TYPE, pieces(), strict=False)
    assert await read.read_model(10_000) == "whisper-1"
    upload = read.upload(model)
    sent = b"".join([chunk async for chunk in upload.chunks])
    assert (sent, len(sent) - len(body)) == (renamed(body, model), upload.added)


async def test_a_form_is_held_only_up_to_its_bound() -> None:
    """A form whose file comes first is held only so far; the error says what to send instead."""

    async def pieces() -> AsyncIterator[bytes]:
        for place in range(0, len(body), 100):
            yield body[place : place + 100]

    body = form(("file", b"x" * 5000), MODEL)
    with pytest.raises(RequestError, match="before the file") as refusal:
        await Form(TYPE, pieces(), strict=False).read_model(1000)
    assert refusal.value.status == 400
