"""What passed between a client and programs is taken out of a request, in time that grows with its items."""

import sys
from types import FrameType
from typing import Any

import orjson

from proxy.wires.responses.own_items.programs import joined_programs

CALLS = "call_toolrelay_p"


def body(many: int) -> bytes:
    """A long conversation, with half as many programs as calls that wait at its end."""
    items: list[dict[str, Any]] = []
    for number in range(many):
        items += ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})
        if number % 2 == 0:
            items.append({"type": "program", "call_id": f"call_toolrelay{number // 2}", "code": ""})
    for number in range(many):
        caller = {"type": "program", "caller_id": f"call_toolrelay{number // 2}"}
        call = {"type": "function_call", "call_id": f"{CALLS}{number}", "name": "f", "arguments": "{}"}
        items.append({**call, "caller": caller})
    items += (
        {"type": "function_call_output", "call_id": f"{CALLS}{at}", "output": "1"} for at in range(many)
    )
    return orjson.dumps({"input": items})


def work(raw: bytes) -> int:
    """How many instructions of Python it takes to join a body."""
    done = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        done += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        joined_programs(raw)
    finally:
        sys.settrace(before)
    return done


def test_each_waiting_program_is_found_in_its_answer() -> None:
    """The places say where the answers begin whose programs wait."""
    joined = joined_programs(body(4))
    assert joined is not None
    assert joined[1].pending == {f"{CALLS}{number}" for number in range(4)}
    assert joined[1].places == {1, 6}


def test_the_work_grows_with_the_items() -> None:
    """Twice the programs, calls and answers are twice the work, not four times."""
    assert work(body(800)) < 2.5 * work(body(400))
