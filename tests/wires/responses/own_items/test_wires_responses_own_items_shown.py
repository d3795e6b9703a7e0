"""The proxy's own item in an answer that holds an encrypted turn."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseReasoningItem
from responses_check import Reading, check_response_stream
from responses_rig import HIDDEN, OURS, WIRE, play, writer_of
from responses_script import function, function_call, message, reasoning, turn

from proxy.base.events import FinishReason
from proxy.wires.client_port import CarriedTurn, ClientView, StreamWriter
from proxy.wires.responses.items import is_ours, sealed_turn, sealed_turn_item, without_sealed_turns
from proxy.wires.responses.reader import ResponsesTurnReader
from proxy.wires.responses.reply import ResponsesReplyWriter

ASK: dict[str, Any] = {"model": "m", "store": False, "tools": [function("mine")]}
SEALED = "AbC+/=" * 20
TURN = turn(
    reasoning("Both."), message("Wait."), function_call("call_h", OURS), function_call("call_c", "mine")
)
ANEW = re.compile(rb'rs_toolrelay[0-9a-f]{40}|"completed_at":[0-9]+')
"""Values that are new in each answer."""


def carried(writer: StreamWriter, out: bytes) -> bytes:
    """Return the complete stream of a turn that the client carries; ``out`` is its beginning."""
    out += writer.turn_ended("suspended") + writer.carry(SEALED)
    return out + writer.turn_ended("final") + writer.finish(FinishReason.TOOL_CALLS)


def read(out: bytes) -> Reading:
    """Check the stream against all rules, and read it."""
    return check_response_stream(out, hidden=HIDDEN)


@given(at=st.lists(st.integers(1, len(TURN)), max_size=12))
def test_the_stream_does_not_depend_on_how_it_was_cut(at: list[int]) -> None:
    """Rules W3, W4, W6: the item comes last with its index, however the bytes are cut."""
    whole, pieces = writer_of(ASK), writer_of(ASK)
    expected = carried(whole, play(TURN, whole, "mine").out)
    out = carried(pieces, play(TURN, pieces, "mine", at=at).out)
    assert ANEW.sub(b"", out) == ANEW.sub(b"", expected)
    output = read(out).response["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "reasoning"]
    assert sealed_turn(output[-1]) == SEALED


def test_the_item_has_two_events() -> None:
    """The item's first event is empty, so that only its last event has the encrypted turn."""
    writer = writer_of(ASK)
    events = read(carried(writer, play(TURN, writer, "mine").out)).events
    added, done = [one for one in events if one.get("output_index") == 3]
    assert added["type"] == "response.output_item.added"
    assert added["item"] == {"id": done["item"]["id"], "type": "reasoning", "summary": []}
    assert done["type"] == "response.output_item.done"
    item = ResponseReasoningItem.model_validate(done["item"], strict=True)
    assert item.encrypted_content == f"toolrelay-turn:{SEALED}"


def test_an_answer_that_is_one_object() -> None:
    """In a reply that is not streamed, the item follows the client's calls."""
    writer = WIRE.writer(WIRE.parse(ASK), ClientView("m", lambda name: name != "mine"))
    assert isinstance(writer, ResponsesReplyWriter)
    reader = WIRE.reader({"mine", OURS}, lambda name: name != "mine", 8192)
    assert isinstance(reader, ResponsesTurnReader)
    items = [function_call("call_h", OURS), function_call("call_c", "mine")]
    body = {"id": "resp_1", "object": "response", "status": "completed", "output": items}
    writer.write(reader.read_reply(json.dumps(body).encode()))
    output = json.loads(carried(writer, b""))["output"]
    assert [item["type"] for item in output] == ["function_call", "reasoning"]
    assert sealed_turn(output[-1]) == SEALED


def test_a_request_says_what_it_carries() -> None:
    """The proxy finds carried turns by their text alone, even without an id."""
    item = {"type": "reasoning", "encrypted_content": f"toolrelay-turn:{SEALED}"}
    request = WIRE.parse({**ASK, "input": [{"role": "user", "content": "hi"}, item, item]})
    assert request.carried() == [CarriedTurn(1, SEALED), CarriedTurn(2, SEALED)]
    assert request.has_proxy_calls


NOT_SEALED = [
    {"type": "reasoning", "encrypted_content": "gAAAA"},
    {"type": "reasoning", "encrypted_content": None},
    {"type": "reasoning", "summary": []},
    {"type": "reasoning", "encrypted_content": ["toolrelay-turn:"]},
    {"type": "compaction", "encrypted_content": "toolrelay-turn:"},
    {"type": "message", "role": "user", "content": "toolrelay-turn:"},
    "toolrelay-turn:",
    None,
]


@pytest.mark.parametrize("item", NOT_SEALED, ids=range(len(NOT_SEALED)))
def test_what_is_not_a_sealed_turn(item: Any) -> None:
    """Items that are not sealed turns keep their bytes when sealed turns are removed."""
    assert sealed_turn(item) is None
    if isinstance(item, dict):
        assert not is_ours(item)
    sealed = sealed_turn_item("rs_1", SEALED)
    raw = f'{{"input":[{json.dumps(item)}, {json.dumps(sealed)} ],"model":"toolrelay-turn:"}}'.encode()
    assert without_sealed_turns(raw) == f'{{"input":[{json.dumps(item)}],"model":"toolrelay-turn:"}}'.encode()


@pytest.mark.parametrize(
    "raw", [b'{"input":"\\"toolrelay-turn:"}', b'{"model":"toolrelay-turn:"}', b'{"input": [ "a" ]}', b"{ }"]
)
def test_a_body_without_sealed_turns_keeps_its_bytes(raw: bytes) -> None:
    """A body without sealed turns is returned as the same object, even if it contains the prefix."""
    assert without_sealed_turns(raw) is raw
