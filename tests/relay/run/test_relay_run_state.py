"""The changing parts of a run: approvals of tools, masked arguments, waiting calls and left-out fields."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from proxy.base.events import Frame, ToolCall
from proxy.relay.memory.hidden.agent_turns import wait_of
from proxy.relay.offering.offer import Offer
from proxy.relay.run.job import ToolAccess
from proxy.relay.run.state import ClientOutput, Outcome, RunClock, ToolState, TurnProgress
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.wires.approving.shown import APPROVE
from proxy.wires.client_port import StreamWriter
from proxy.wires.upstream_port import Mask

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}, "to": {"type": "string"}}}


def spec(name: str, effect: ToolEffect = ToolEffect.READ_ONLY) -> ToolSpec:
    """Return a tool whose argument ``text`` is private."""
    redaction = Redaction(private_arguments=("text",))
    return ToolSpec(
        f"core__{name}", "It does", PARAMETERS, effect, "core", lambda value: value, "d", redaction=redaction
    )


READ, SEND, DELETE = (
    spec("read"),
    spec("send", ToolEffect.EXTERNAL_SIDE_EFFECT),
    spec("delete", ToolEffect.EXTERNAL_SIDE_EFFECT),
)
ALL = ("core__*",)


class Provider:
    """The provider of the tools; no test calls it."""

    name = "core"


PROVIDER = Provider()


def tools(
    policy: Policy,
    *,
    asks: bool = False,
    sealed: bool = False,
    offered: Sequence[ToolSpec] = (READ, SEND),
    clients: frozenset[str] = frozenset({"theirs"}),
) -> ToolState:
    """Return a run's tools: it offers some of three under upper-case names; ``theirs`` is the client's."""
    catalog = Catalog((one, cast("ToolProvider", PROVIDER)) for one in (READ, SEND, DELETE))
    offer = Offer(names={one.name.upper(): one.name for one in offered}, client_names=clients)
    access = ToolAccess(offer, policy, catalog.select(policy, asks=asks), RunLedger())
    return ToolState(access, cast("RunContext", None), sealed=sealed, offer=access.offer)


def call(name: str) -> ToolCall:
    """Return a call without arguments."""
    return ToolCall("1", name, "{}", 0)


# ---------------------------------------------------------------- names


def test_a_name_on_the_wire_has_the_id_of_its_tool() -> None:
    """The name that the model sees leads to the id of its tool; any other name stays the same."""
    state = tools(Policy(allow=ALL))
    assert [state.id_of(name) for name in ("CORE__READ", "theirs")] == ["core__read", "theirs"]
    assert state.catalog is state.access.selection.catalog


def test_the_function_that_asks_is_hidden_until_the_proxy_asks_by_it() -> None:
    """The function for approvals is hidden from the client, unless the proxy itself asks by a call of it."""
    state = tools(Policy(allow=ALL))
    assert (state.is_hidden("CORE__READ"), state.is_hidden("theirs")) == (True, False)
    assert state.is_hidden(APPROVE)
    state.asks_by_call = True
    assert not state.is_hidden(APPROVE)


# ---------------------------------------------------------------- approvals


@pytest.mark.parametrize("asks", [False, True])
def test_a_tool_that_the_policy_asks_about_needs_an_approval(asks: bool) -> None:
    """A tool under ``approve`` needs an approval; if somebody can be asked, only an offered one does."""
    policy = Policy(allow=ALL, approve=("core__send", "core__delete"))
    state = tools(policy, asks=asks)
    assert not state.needs_approval(call("CORE__READ"), 1)
    assert state.needs_approval(call("CORE__SEND"), 1)
    assert state.needs_approval(call("core__delete"), 1) is not asks
    assert not state.needs_approval(call("theirs"), 1)


def test_a_call_after_an_untrusted_result_needs_an_approval() -> None:
    """After a turn with an untrusted result, calls of offered tools with effects need an approval."""
    state = tools(Policy(allow=ALL, after_untrusted="approve"))
    send = call("CORE__SEND")
    assert not state.needs_approval(send, 9)
    assert state.untrusted_read() == ""
    state.access.ledger.mark_untrusted("core__read", 2)
    assert [state.needs_approval(send, turn) for turn in (1, 2, 3)] == [False, False, True]
    assert not state.needs_approval(call("CORE__READ"), 3)
    assert not state.needs_approval(call("core__delete"), 3)
    assert not state.needs_approval(call("unknown"), 3)
    assert state.untrusted_read() == "core__read"


def test_untrusted_results_need_nothing_if_the_operator_allows_it() -> None:
    """With ``after_untrusted = "allow"``, an untrusted result causes no approval."""
    state = tools(Policy(allow=ALL, after_untrusted="allow"))
    state.access.ledger.mark_untrusted("core__read", 0)
    assert not state.needs_approval(call("CORE__SEND"), 1)


def test_an_offered_tool_that_has_left_the_catalog_needs_no_approval() -> None:
    """A tool that has left the catalog cannot run, so that nobody is asked about it."""
    gone = spec("gone", ToolEffect.EXTERNAL_SIDE_EFFECT)
    state = tools(Policy(allow=ALL, after_untrusted="approve"), offered=(gone,))
    state.access.ledger.mark_untrusted("core__read", 0)
    assert not state.needs_approval(call("CORE__GONE"), 1)


# ---------------------------------------------------------------- private fields

SECRET = '{"text":"secret","to":"me"}'


def test_private_arguments_are_masked_before_they_are_written() -> None:
    """Rule R3: a tool's own rule masks its arguments; of an unknown tool only their size is kept."""
    state = tools(Policy(allow=ALL))
    masked = '{"text":"[private]","to":"me"}'
    assert state.mask("CORE__SEND", SECRET) == masked
    assert state.mask("core__delete", SECRET) == masked
    assert state.mask("theirs", SECRET) == SECRET
    assert state.mask("unknown", SECRET) == '{"[private]":"27 characters"}'


def test_a_wrapper_is_masked_call_by_call() -> None:
    """Rule R3: a wrapper's calls are masked by their tools; an offered tool ``parallel`` is no wrapper."""
    wrapped = '{"tool_uses":[{"recipient_name":"functions.CORE__SEND","parameters":%s}]}'
    state = tools(Policy(allow=ALL))
    assert state.mask("parallel", wrapped % SECRET) == wrapped % '{"text":"[private]","to":"me"}'
    state.offer = Offer(names={"parallel": "core__send"})
    assert state.mask("parallel", SECRET) == '{"text":"[private]","to":"me"}'


def test_an_encrypted_record_keeps_arguments_as_they_are() -> None:
    """Rule R3 covers only unencrypted text: a sealed record keeps arguments as they are."""
    assert tools(Policy(allow=ALL), sealed=True).mask("CORE__SEND", SECRET) == SECRET


def test_the_same_arguments_of_two_tools_are_masked_each_by_its_own_rule() -> None:
    """Equal arguments of two tools are masked each by its own rule, also on repeated calls."""
    state = tools(Policy(allow=ALL))
    for _ in range(2):
        assert state.mask("theirs", SECRET) == SECRET
        assert state.mask("CORE__SEND", SECRET) == '{"text":"[private]","to":"me"}'
        assert state.mask("CORE__SEND", '{"to":"me"}') == '{"to":"me"}'


# ---------------------------------------------------------------- the client


class Client:
    """A client's response that notes what happens to it."""

    def __init__(self) -> None:
        self.started = False
        self.noted: list[Any] = []

    def start(self, status: int, headers: Any) -> None:
        """Note the head."""
        self.started = True
        self.noted.append((status, headers))

    def push(self, data: bytes, last: bool = False) -> Any:
        """Note the data; return an awaitable if the client is slow."""
        self.noted.append((data, last))
        return self._read() if data == b"slow" else None

    async def _read(self) -> None:
        self.noted.append("read")


class Writer:
    """A writer that only keeps a connection alive."""

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return b":"


async def test_the_head_goes_out_with_the_first_bytes() -> None:
    """The head goes out with the first data, and the proxy waits for a client that reads slowly."""
    client = Client()
    output = ClientOutput(cast("Any", client), lambda: cast("StreamWriter", Writer()), head=(("x-a", "b"),))
    assert output.push(b"") is None
    assert client.noted == []
    await output.send(b"a")
    await output.send(b"slow", last=True)
    assert client.noted == [(200, (("x-a", "b"),)), (b"a", False), (b"slow", True), "read"]


async def test_a_keep_alive_comment_is_sent_only_in_silence() -> None:
    """The client gets a keep-alive comment only if there is nothing to show."""
    client = Client()
    output = ClientOutput(cast("Any", client), lambda: cast("StreamWriter", Writer()))
    await output.keep_alive(False)
    assert client.noted == []
    await output.keep_alive(True)
    assert client.noted == [(200, ()), (b":", False)]


def test_time_does_not_run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's clock starts at the given Unix time and follows the monotonic clock if the other is set."""
    passed, wall = [50.0], [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.time", lambda: wall[0])
    clock = RunClock(1000.0, began=50.0)
    assert clock.now() == 1000.0
    for passed[0], wall[0] in ((52.5, 400.0), (53.0, 9000.0)):
        assert clock.now() == 950.0 + passed[0]


# ---------------------------------------------------------------- waiting


class Asked:
    """The part of an approval that matters here."""

    def __init__(self, id: str) -> None:
        self.id = id


def test_a_turn_waits_under_one_name_for_equal_calls() -> None:
    """Calls with one approval wait under its id; an agent's call under a name of all its approvals."""
    one, two, three = cast("Any", [Asked(f"appr_{n}") for n in (1, 2, 3)])
    turn = TurnProgress(waiting={0: one, 1: one}, of_agents={2: [two, three], 3: [one]})
    assert turn.approvals == [one, two, three]
    assert turn.wait_of(1) == "appr_1"
    assert turn.wait_of(2) == wait_of(["appr_2", "appr_3"])
    assert turn.wait_of(3) == wait_of(["appr_1"])


def test_a_turn_that_waits_for_nothing_has_no_approvals() -> None:
    """A turn that waits for nothing has no approvals."""
    assert TurnProgress().approvals == []


# ---------------------------------------------------------------- the outcome


class Reader:
    """A :class:`~proxy.wires.upstream_port.TurnReader` that has read its turn to the end."""

    fault = None
    has_unread = large_next = rewritten = False
    text = ""

    def __init__(self, *lost: str) -> None:
        self.left_out = lost

    def message(self) -> bytes:
        """Return the turn."""
        return b"{}"

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """Return nothing: no more data comes."""
        return []

    def close(self) -> list[Frame]:
        """Return nothing: no data is left."""
        return []

    def read_reply(self, body: bytes) -> Frame:
        """Fail: the turn was streamed."""
        raise NotImplementedError

    def native(self, call: ToolCall, mask: Mask) -> str:
        """Fail: the turn had no call."""
        raise NotImplementedError


def test_what_any_turn_lost_is_named_once() -> None:
    """The run names each field that any turn left out once and in order, the current turn included."""
    outcome = Outcome()
    assert list(outcome.left_out) == []
    for lost in (("logprobs", "audio"), ("audio",), ("citations",)):
        reader = Reader(*lost)
        assert outcome.read_by(reader) is reader
    assert list(outcome.left_out) == ["audio", "citations", "logprobs"]
    assert outcome.message() == b"{}"


def test_there_is_no_message_before_the_first_turn() -> None:
    """Reading a message before the first turn raises an error, because it is a fault of the proxy."""
    with pytest.raises(RuntimeError, match="no turn has been read yet"):
        Outcome().message()
