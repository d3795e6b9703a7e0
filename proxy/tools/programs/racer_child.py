"""Runs one program in JavaScript with V8, in a process of its own.

A program is hostile. Its side of V8 has nothing of the host: the bridge is in ``racer_bridge.js``, and only
texts cross it. V8 runs without its compilers (``--jitless``), in which most of its faults are, and so without
WebAssembly. This file is run as a program: its memory and time are limited, it gets no environment, it can
open no file and no socket once V8 is there, it imports nothing of this package, and its parent can kill it.
The messages are those of ``monty_child.py`` without ``restore`` and ``dump``, with the program's ``now`` and
``seed`` at the start and its ``images`` at the end.
"""

import codecs
import contextlib
import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

_DATA = 192 << 20
"""Bytes of memory that this process may write to beside twice the program's own. V8 reserves far more
addresses than that, so their number has no limit."""
_CPU_S = 120
_MOST_ERROR = 2000
_MOST_CALLS = 64
"""The most calls that may wait for results at the same time."""
_TOO_MUCH = "the program used too much memory and was stopped"
_FLAGS = ("--single-threaded", "--jitless", "--stack-size=800", "--no-harmony-shadow-realm")
_BRIDGE = Path(__file__).with_name("racer_bridge.js")


def confine(memory: int) -> None:
    """Limit the memory and time of this process; let it write no file."""
    for limit, most in (
        (resource.RLIMIT_DATA, _DATA + 2 * memory),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Not every system accepts every limit. A stricter limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def shut_in() -> None:
    """Let this process open nothing more: no file, no socket. Whatever is needed is open and imported."""
    for needed in ("utf-16", "utf-8"):
        codecs.lookup(needed)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


class Program:
    """The program in V8, and the seconds of computing that it has left."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._racer = racer = importlib.import_module("py_mini_racer")
        racer.init_mini_racer(flags=_FLAGS, ignore_duplicate_init=True)
        self._context = racer.MiniRacer()
        self._context.set_hard_memory_limit(int(first["limits"]["memory"]))
        self._tools: dict[str, str] = first["tools"]
        self._left = float(first["limits"]["seconds"])
        given = json.dumps([[*self._tools], first["now"], first["seed"], _MOST_CALLS])
        self._bridge = self._context.eval(f"({_BRIDGE.read_text()})({given})")

    def go_on(self, *message: str) -> dict[str, Any]:
        """Give the program a message and return how far it has come."""
        began = time.monotonic()
        try:
            self._bridge(*message, timeout_sec=max(self._left, 0.01))
            # Its promises go on after that call; this one waits for them.
            told = self._bridge("take", timeout_sec=max(self._left - (time.monotonic() - began), 0.01))
        except self._racer.JSTimeoutException:
            return _failed("the program computed for too long and was stopped")
        except self._racer.JSOOMException:
            return _failed(_TOO_MUCH)
        except self._racer.JSEvalException as error:
            # Out of memory while another call waits: the words are then "null".
            over = self._context.was_hard_memory_limit_reached()
            return _failed(_TOO_MUCH if over else f"the program could not go on: {error}")
        self._left -= time.monotonic() - began
        if not isinstance(told, str):
            return _failed("the program could not go on")
        return self._answer(json.loads(told))

    def _answer(self, told: dict[str, Any]) -> dict[str, Any]:
        if "error" in told:
            return _failed(_whole(told["error"]), _whole(told["text"]))
        if "calls" in told:
            calls = [
                {"id": id_, "name": self._tools[name], "arguments": arguments}
                for id_, name, arguments in told["calls"]
            ]
            return {"calls": calls, "printed": ""}
        return {"result": json.dumps(_whole(told["text"])), "printed": "", "images": told["images"]}


def _whole(text: str) -> str:
    """Return a text without the halves of characters that are left where JavaScript has cut one in two."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _failed(text: str, printed: str = "") -> dict[str, Any]:
    # The beginning of an exception says what happened.
    return {"error": text if len(text) <= _MOST_ERROR else f"{text[:_MOST_ERROR]}…", "printed": printed}


def main() -> None:
    """Answer the parent until it closes the input. A fault ends the process."""
    lines = sys.stdin.buffer
    message: dict[str, Any] = json.loads(lines.readline())
    confine(int(message["limits"]["memory"]))
    program = Program(message)
    shut_in()
    while True:
        if message["do"] == "start":
            answer = program.go_on("start", message["code"])
        else:
            answer = program.go_on("resume", json.dumps(message["results"]))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if not (line := lines.readline()):
            return
        message = json.loads(line)


if __name__ == "__main__":
    main()
