"""One upstream for models that call agents and for the agents' own models; the model's name decides."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_script import call, content, finish, reply, role, stream, usage
from raw_upstream import RawRequest, Step

RESEARCHER = "agent__researcher"
AGENT: Mapping[str, Any] = {
    "description": "Finds things out.",
    "instructions": "You are a researcher. Report in one sentence.",
    "model": "small",
    "tools": ("probe_tools__*",),
}


def agents(**fields: Any) -> dict[str, Any]:
    """Return a configuration section with one agent, ``researcher``."""
    return {"researcher": {**AGENT, **fields}}


@dataclass(frozen=True)
class Asked:
    """The body of a request to a model, and what it contains."""

    body: dict[str, Any]

    @property
    def results(self) -> list[str]:
        """The results of tools in the conversation, in order."""
        return [str(said["content"]) for said in self.body["messages"] if said["role"] == "tool"]

    @property
    def tools(self) -> list[str]:
        """The names of the offered tools."""
        return [one["function"]["name"] for one in self.body.get("tools", ())]

    @property
    def text(self) -> str:
        """The whole conversation as text."""
        return json.dumps(self.body["messages"])


@dataclass(frozen=True)
class Turn:
    """A model's text, or its calls as (name, arguments); the steps ``before`` come before the turn's end."""

    text: str | None = None
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    used: tuple[int, int] = (10, 5)
    reason: str | None = None
    before: Sequence[Step] = ()


@dataclass
class Models:
    """The script of an upstream: for each model a function that makes a turn from a request."""

    by_name: Mapping[str, Callable[[Asked], Turn]]
    asked: dict[str, list[Asked]] = field(default_factory=dict)
    count: int = 0

    def __call__(self, request: RawRequest) -> Sequence[Step]:
        """Return the answer to a request, streamed or not."""
        body = json.loads(request.body)
        asked = Asked(body)
        self.asked.setdefault(body["model"], []).append(asked)
        turn = self.by_name[body["model"]](asked)
        self.count += 1
        calls = [
            (f"call_{self.count}_{at}", name, json.dumps(given))
            for at, (name, given) in enumerate(turn.calls)
        ]
        if not body.get("stream"):
            return [*turn.before, *reply(turn.text, *calls, reason=turn.reason, used=turn.used)]
        pieces = [role()]
        if turn.text:
            pieces.append(content(turn.text))
        pieces += [call(id_, name, given, at) for at, (id_, name, given) in enumerate(calls)]
        end = [finish(turn.reason or ("tool_calls" if calls else "stop")), usage(*turn.used)]
        if not turn.before:
            return stream(*pieces, *end)
        opening, *rest = stream(*pieces, *end)
        return [opening, *rest[: len(pieces)], *turn.before, *rest[len(pieces) :]]
