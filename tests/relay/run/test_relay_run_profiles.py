"""Translated requests to upstreams that do not take everything: what is known is right at once, what is
not is learnt."""

import json
from typing import Any

import pytest
from chat_script import content, finish, reply, role, stream
from messages_script import user
from raw_upstream import RawRequest, RawUpstream, Step, whole
from running_proxy import make_config, running

from proxy.config.per_model import ProfileConfig

PATH = "/v1/messages"
LEFT_OUT = "x-toolrelay-left-out"
ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32_000,
    "messages": [user(text="hi")],
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": "user_" + "0" * 120},
}


class Refusing:
    """An upstream that refuses each of these fields, one at a time, in the words of a provider.

    ``named`` says that its error has the field's name in ``param``.
    """

    def __init__(self, *, named: bool = False, **words: str) -> None:
        self._named = named
        self._words = words

    def __call__(self, request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        for name, words in self._words.items():
            if name in body:
                error = {"message": words, "type": "invalid_request_error", "code": None}
                if self._named:
                    error["param"] = name
                return whole(json.dumps({"error": error}).encode(), status="400 Bad Request")
        return list(stream(role(), content("Hello."), finish()) if body.get("stream") else reply("Hello."))


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "reply"])
async def test_a_refused_field_is_left_out_and_remembered(streams: bool) -> None:
    """The client gets its answer, the header names the fields, and the next request is right at once."""
    refusing = Refusing(
        reasoning_effort="Unrecognized request argument supplied: reasoning_effort",
        user="body.user: Extra inputs are not permitted",
    )
    ask = {**ASK, "stream": streams}
    async with RawUpstream(*[refusing] * 4) as upstream:
        async with running(make_config({"base_url": upstream.url, "wires": ("chat",)})) as proxy:
            for count in (3, 4):
                answer = await proxy.ask(ask, path=PATH)
                assert answer.status == 200, answer.body
                named = set((answer.header(LEFT_OUT) or "").split(", "))
                assert named == {"output_config.effort", "metadata.user_id"}
                assert len(upstream.requests) == count
        assert not {"user", "reasoning_effort"} & json.loads(upstream.requests[-1].body).keys()


async def test_a_field_that_only_param_names_is_left_out() -> None:
    """OpenAI names the field of some errors only in ``param``."""
    words = "Unsupported value: 'medium' is not supported with the 'm' model. Supported values are: 'high'."
    async with RawUpstream(Refusing(named=True, reasoning_effort=words), reply("Hello.")) as upstream:
        async with running(make_config({"base_url": upstream.url, "wires": ("chat",)})) as proxy:
            answer = await proxy.ask(ASK, path=PATH)
            assert answer.status == 200, answer.body
        assert json.loads(upstream.requests[1].body)["reasoning_effort"] == "high"


async def test_a_limit_is_lowered_to_what_the_error_names() -> None:
    """A limit above the model's maximum becomes the maximum that the refusal names."""
    words = "max_tokens is too large: 32000. This model supports at most 4096 completion tokens."

    def upstream_says(request: RawRequest) -> list[Step]:
        if json.loads(request.body)["max_tokens"] > 4096:
            return Refusing(max_tokens=words)(request)
        return list(reply("Hello."))

    async with RawUpstream(*[upstream_says] * 3) as upstream:
        async with running(make_config({"base_url": upstream.url, "wires": ("chat",)})) as proxy:
            for _ in range(2):
                answer = await proxy.ask(ASK, path=PATH)
                assert answer.status == 200, answer.body
                assert "max_tokens" in (answer.header(LEFT_OUT) or "")
        assert [json.loads(one.body)["max_tokens"] for one in upstream.requests] == [32_000, 4096, 4096]


async def test_settings_of_a_profile() -> None:
    """``upstreams.*.profile`` and ``per_model`` say what is sent the first time."""
    profile = ProfileConfig(limit_field="max_completion_tokens", efforts=("low",), user_chars=8)
    served = {
        "wires": ("chat",),
        "profile": profile.model_dump(exclude_none=True),
        "per_model": {"m*": {"profile": {"max_output_tokens": 100}}},
    }
    async with RawUpstream(reply("Hello.")) as upstream:
        async with running(make_config({"base_url": upstream.url, **served})) as proxy:
            answer = await proxy.ask(ASK, path=PATH)
            assert answer.status == 200, answer.body
        body = json.loads(upstream.requests[0].body)
    assert (body["max_completion_tokens"], body["reasoning_effort"], len(body["user"])) == (100, "low", 8)
    assert set((answer.header(LEFT_OUT) or "").split(", ")) == {
        "max_tokens", "output_config.effort", "metadata.user_id",
    }  # fmt: skip


async def test_a_request_that_stays_in_one_dialect_is_not_changed() -> None:
    """A profile does not touch requests that pass through."""
    served = {"wires": ("chat",), "profile": {"efforts": (), "max_output_tokens": 5, "user_chars": 0}}
    ask = {
        "model": "m", "max_tokens": 50, "user": "u", "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip
    async with RawUpstream(reply("Hello.")) as upstream:
        async with running(make_config({"base_url": upstream.url, **served})) as proxy:
            await proxy.ask(ask)
        assert ask.items() <= json.loads(upstream.requests[0].body).items()
