"""OpenAI Responses: request, response and stream."""

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import orjson

from proxy.wires.base import BodyEditor, ClientRequest, StateHabit, StreamWriter, Trace, TurnReader
from proxy.wires.dialects.responses import RESPONSES
from proxy.wires.responses.body import ResponsesBody
from proxy.wires.responses.reader import ResponsesTurnReader
from proxy.wires.responses.reply import ResponsesReplyWriter
from proxy.wires.responses.request import ResponsesRequest, parse_responses_request
from proxy.wires.responses.signing import ItemSigner
from proxy.wires.responses.told_tools import ToldTools
from proxy.wires.responses.writer import ResponsesStreamWriter

__all__ = ["ResponsesWire"]


class ResponsesWire:
    """The Responses wire.  ``key`` signs the items that show server calls; without it only this process
    knows them again."""

    dialect = RESPONSES

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        return parse_responses_request(payload)

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        return ResponsesBody(raw, cast(ResponsesRequest, request), state, ItemSigner(self._key, caller))

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        return ResponsesTurnReader(declared, is_hidden, max_argument_bytes)

    def writer(
        self,
        request: ClientRequest,
        *,
        is_hidden: Callable[[str], bool],
        trace: Trace,
        model: str,
        usage_was_added: bool,
        caller: str = "",
    ) -> StreamWriter:
        asked = cast(ResponsesRequest, request)
        echo = _echo(asked)
        tools = ToldTools(asked.asked, is_hidden, open_names=asked.open_names)
        signer = ItemSigner(self._key, caller)
        if not asked.stream:
            return ResponsesReplyWriter(
                model=model,
                asked=asked.asked,
                echo=echo,
                tools=tools,
                signer=signer,
                is_hidden=is_hidden,
                trace=trace,
                last_text_only=asked.wants_json,
            )
        return ResponsesStreamWriter(
            model=model,
            asked=asked.asked,
            echo=echo,
            tools=tools,
            signer=signer,
            is_hidden=is_hidden,
            trace=trace,
            hold_text=asked.wants_json,
        )


def _echo(asked: ResponsesRequest) -> dict[str, bytes]:
    """What the resource must say of the fields that we change: what the client sent (rule W2).

    ``previous_response_id`` only where there is one, since only then it can differ.  Of ``tools`` it
    says what :class:`ToldTools` tells.
    """
    choice = asked.asked.get("tool_choice")
    echo = {"tool_choice": b'"auto"' if choice is None else orjson.dumps(choice)}
    if asked.continues is not None:
        echo["previous_response_id"] = orjson.dumps(asked.continues)
    return echo
