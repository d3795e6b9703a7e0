"""Stored turns of agents that wait for approvals, so that the agents can continue.

An agent's run suspends like a run of a client: :class:`History` holds its turn.
The records here say how to ask the agent's model again. They have the request, what the agent has used of
its budgets, and the agent's call in the run that called it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import orjson

from proxy.base.events import ToolCall
from proxy.base.values import value_class
from proxy.records.approvals import mention
from proxy.records.rows import SuspendedTurn
from proxy.relay.nested import AgentUsed
from proxy.store.base import Store

_WAIT: Final = "agent-"
_COMMIT_S: Final = 10.0
_PLACES_APART: Final = 10_000
"""The distance between the places of a call and of its continuations in the turn; no turn has so many
calls."""
_ATTEMPTS_APART: Final = 1000
"""The same for the attempts of one continuation."""


def wait_of(ids: Sequence[str]) -> str:
    """Return the name under which a held turn waits for an agent, which itself waits for these approvals, or
    for a program that waits for these calls of the client."""
    return _WAIT + ids[0]


def is_wait(name: str) -> bool:
    """Return whether a held turn waits under this name for an agent, and not for an approval of its own."""
    return name.startswith(_WAIT)


@value_class
class AgentTurn:
    """A turn of an agent that waits for approvals.

    ``run_id`` is the agent's run and ``caller`` its caller. ``approval_ids`` are the approvals that the
    turn waits for, in the order of its calls. ``body`` is the JSON request to the agent's model.
    ``parent_run`` is the run that called the agent, with the turn ``parent_turn`` and the ``call`` there.
    ``spec_digest`` is the definition of the agent's tool. ``invocation_id`` is the execution that led to
    this turn. ``used`` is all that the agent has used of its budgets. ``continued`` counts how often the
    agent has continued before. ``begun`` says that it has begun to continue from this turn. An
    ``ephemeral`` turn is never written to the database.

    A program can wait for its client instead: ``client_calls`` are the ids of the calls whose results the
    next request brings, together with the ``container``. ``part_id`` is the part that shows the program to
    the client, empty for none.
    """

    run_id: str
    caller: str
    approval_ids: tuple[str, ...]
    body: bytes = field(repr=False)
    parent_run: str
    parent_turn: int
    call: ToolCall = field(repr=False)
    spec_digest: str
    invocation_id: str
    used: AgentUsed = AgentUsed()
    continued: int = 0
    begun: bool = False
    ephemeral: bool = False
    client_calls: tuple[str, ...] = ()
    container: str = ""
    part_id: str = ""

    @property
    def name(self) -> str:
        """The name under which the turn of the calling run waits for this one."""
        return wait_of(self.approval_ids or self.client_calls)

    @property
    def said(self) -> str:
        """The message by which the held turn of the agent's run is found."""
        return "\n\n".join(map(mention, self.approval_ids))

    def next_call(self, attempt: int = 0) -> ToolCall:
        """Return the call with which the agent continues; it has its own place in the turn. So has each
        further ``attempt`` of one that was interrupted."""
        number = self.continued + 1
        call_id = f"{self.call.call_id}+{number}" + (f".{attempt}" if attempt else "")
        place = self.call.index + _PLACES_APART * number + _ATTEMPTS_APART * attempt
        return replace(self.call, call_id=call_id, index=place, native="")


@value_class
class AgentCall:
    """A call of an agent, with its place in the run that makes it.

    ``spec_digest`` is the definition of the agent's tool. ``goes_on`` is the turn from which the agent
    continues; ``None`` if it begins.
    """

    run_id: str
    turn: int
    call: ToolCall = field(repr=False)
    spec_digest: str
    goes_on: AgentTurn | None = None


class AgentTurns:
    """Stores turns of agents, encrypted like other content. The process has one instance."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    def put(self, turn: AgentTurn) -> None:
        """Queue a turn, in place of its earlier version. It is deleted with the agent's run."""
        self._store.put_suspended(
            SuspendedTurn(
                key=turn.name,
                run_id=turn.run_id,
                caller=turn.caller,
                wire="agent",
                payload=_written(turn),
                created_at=self._now(),
                ephemeral=turn.ephemeral,
            )
        )

    async def begin(self, turn: AgentTurn) -> bool:
        """Record that an agent continues from a turn; return whether this was committed in time."""
        self.put(replace(turn, begun=True))
        return await self._store.wait_until_visible(_COMMIT_S)

    async def find(self, names: Sequence[str], caller: str) -> Mapping[str, AgentTurn]:
        """Return the turns of a caller by the names of :func:`wait_of`; raise
        :class:`~proxy.base.errors.StoreError`."""
        if not names:
            return {}
        found = await self._store.find_all_suspended(names, caller)
        return {name: _read(kept) for name, kept in found.items() if kept.caller == caller}


def _written(turn: AgentTurn) -> bytes:
    call, used = turn.call, turn.used
    said: dict[str, Any] = {
        "approval_ids": turn.approval_ids,
        "body": turn.body.decode(),
        "parent_run": turn.parent_run,
        "parent_turn": turn.parent_turn,
        "call": [call.call_id, call.name, call.arguments, call.index],
        "spec_digest": turn.spec_digest,
        "invocation_id": turn.invocation_id,
        "used": [used.turns, used.calls, used.tokens, used.cost, used.seconds],
        "continued": turn.continued,
        "begun": turn.begun,
        "client_calls": turn.client_calls,
        "container": turn.container,
        "part_id": turn.part_id,
    }
    return orjson.dumps(said)


def _read(kept: SuspendedTurn) -> AgentTurn:
    said = orjson.loads(kept.payload)
    return AgentTurn(
        run_id=kept.run_id,
        caller=kept.caller,
        approval_ids=tuple(said["approval_ids"]),
        body=said["body"].encode(),
        parent_run=said["parent_run"],
        parent_turn=said["parent_turn"],
        call=ToolCall(*said["call"]),
        spec_digest=said["spec_digest"],
        invocation_id=said["invocation_id"],
        used=AgentUsed(*said["used"]),
        continued=said["continued"],
        begun=said["begun"],
        client_calls=tuple(said.get("client_calls", ())),
        container=said.get("container", ""),
        part_id=said.get("part_id", ""),
        ephemeral=kept.ephemeral,
    )
