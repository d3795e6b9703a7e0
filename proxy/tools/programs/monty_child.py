"""Runs one program with Monty, an interpreter of a part of Python, in a process of its own.

A program is hostile. It runs in a worker that Monty starts, with limits of time and memory. But what it
returns becomes Python objects here, and a list that holds itself twice, forty times over, would fill any
memory. So this file is run as a program too: its memory and time are limited, it gets no environment, it
imports nothing of this package, and its parent can kill it with all that it started. Only texts cross to the
parent: the arguments and results of tools are JSON that the program's own side writes and reads.

Each message is one line of JSON, on standard input and output. The parent sends ``{"do": "start", "code",
"tools", "limits"}`` or ``{"do": "restore", "state"}`` once, then ``{"do": "resume", "results"}`` and
``{"do": "dump"}``. The answers are ``{"calls", "printed"}``, ``{"result", "printed"}``,
``{"error", "printed"}`` and ``{"state"}``.
"""

import ast
import base64
import contextlib
import json
import resource
import sys
import threading
from typing import Any

_MEMORY = 1 << 30
"""The address space of this process and its worker beside twice the program's own memory."""
_CPU_S = 120
_MOST_PRINTED = 1 << 18
_MOST_ERROR = 2000
_MOST_CALLS = 64
"""The most calls that may wait for results at the same time."""
_SUSPENSIONS = 10_000

_PRELUDE = """
import json as _json

def _tool(name, parameters):
    async def call(*given, **named):
        if len(given) > len(parameters):
            raise TypeError(name + " takes at most " + str(len(parameters)) + " arguments")
        arguments = dict(zip(parameters, given))
        arguments.update(named)
        answer = _json.loads(await _call(name, _json.dumps(arguments)))
        if answer["ok"]:
            return answer["value"]
        raise RuntimeError(answer["message"])
    return call

def _finish(value):
    try:
        return _json.dumps(value)
    except Exception:
        return _json.dumps(repr(value))
"""


def confine(memory: int) -> None:
    """Limit the memory and time of this process and of those that it starts; let it write no file."""
    for limit, most in (
        (resource.RLIMIT_AS, _MEMORY + 2 * memory),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Not every system accepts every limit. A stricter limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def prepared(code: str) -> str:
    """Return a program whose last line hands out its value: that of its last expression, or what it returns.

    Lines keep their numbers, except in a program that returns outside of a function. Raise ``SyntaxError``.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # Python counts each of them as the end of a line.
    tree = ast.parse(code)
    if any(isinstance(node, ast.Return) for node in _outside_functions(tree)):
        made = ast.parse("async def _program(): pass")
        made.body[0].body = tree.body  # type: ignore[attr-defined]
        return f"{ast.unparse(made)}\n_finish(await _program())"
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return f"{code}\n_finish(None)"
    lines = code.encode().split(b"\n")
    at, column = last.lineno - 1, last.col_offset
    lines[at] = lines[at][:column] + b"_value = (" + lines[at][column:]
    end, stop = (last.end_lineno or last.lineno) - 1, last.end_col_offset or 0
    stop += len(b"_value = (") if end == at else 0
    lines[end] = lines[end][:stop] + b"\n)" + lines[end][stop:]
    return b"\n".join(lines).decode() + "\n_finish(_value)"


def _outside_functions(node: ast.AST) -> Any:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _outside_functions(child)


class Printed:
    """What a program has printed since it was last asked, up to a limit."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = _MOST_PRINTED

    def __call__(self, stream: str, text: str) -> None:
        kept = text[: self._room]
        self._room -= len(kept)
        if kept:
            self._pieces.append(kept)

    def take(self) -> str:
        """Return it, and forget it."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


class Child:
    """The program, from its start or from a state in which it waited for calls."""

    def __init__(self, monty: Any, session: Any) -> None:
        self._monty = monty
        self._session = session
        self._printed = Printed()
        self._waiting: Any = None

    def start(self, code: str, tools: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
        """Run a program until it waits for calls, or ends."""
        bound = "".join(
            f"{name} = _tool({json.dumps(tool)}, {json.dumps(taken)})\n"
            for name, (tool, taken) in tools.items()
        )
        self._session.feed_run(_PRELUDE + bound)
        try:
            made = prepared(code)
        except SyntaxError as error:
            return self._failed(f"SyntaxError: {error.msg} (line {error.lineno})")
        except (ValueError, RecursionError, MemoryError) as error:
            return self._failed(f"{type(error).__name__}: {error}")
        return self._drive(lambda: self._session.feed_start(made, print_callback=self._printed))

    def restore(self, state: bytes) -> dict[str, Any]:
        """Load a program that waits for calls."""
        self._waiting = self._session.load_snapshot(state, print_callback=self._printed)
        return {"calls": [], "printed": ""}

    def resume(self, results: dict[str, str]) -> dict[str, Any]:
        """Give the program the results of all calls that it waits for."""
        waiting = self._waiting
        made = {int(call): {"return_value": text} for call, text in results.items()}
        return self._drive(lambda: waiting.resume(made))

    def dump(self) -> dict[str, Any]:
        """Return the state of the program while it waits."""
        return {"state": base64.b64encode(self._waiting.dump()).decode()}

    def _drive(self, begin: Any) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []
        monty = self._monty
        try:
            at = begin()
            while not isinstance(at, monty.MontyComplete):
                if isinstance(at, monty.FutureSnapshot):
                    self._waiting = at
                    pending = set(at.pending_call_ids)
                    made = [call for call in calls if call["id"] in pending]
                    return {"calls": made, "printed": self._printed.take()}
                if isinstance(at, monty.NameLookupSnapshot):
                    at = at.resume()
                elif at.is_os_function:
                    at = at.resume_not_handled()
                elif (refusal := _refusal(at, len(calls))) is not None:
                    at = at.resume(refusal)
                else:
                    name, arguments = at.args
                    calls.append({"id": at.call_id, "name": name, "arguments": arguments})
                    at = at.resume({"future": ...})
            result = at.output
        except monty.MontyError as error:
            shown = error.display() if hasattr(error, "display") else str(error)
            return self._failed(shown)
        if not isinstance(result, str):
            return self._failed("the program has replaced a function that hands out its value")
        return {"result": result, "printed": self._printed.take()}

    def _failed(self, text: str) -> dict[str, Any]:
        # The end of a traceback says what happened; its beginning says where it began.
        if len(text) > _MOST_ERROR:
            text = f"{text[: _MOST_ERROR // 2]}\n…\n{text[-_MOST_ERROR // 2 :]}"
        return {"error": text, "printed": self._printed.take()}


def _refusal(at: Any, made: int) -> dict[str, Any] | None:
    """Return the exception that answers a call which is none of a tool, or is one too many."""
    if at.function_name != "_call" or at.object_id is not None:
        return {"exc_type": "NameError", "message": f"name {str(at.function_name)[:80]!r} is not defined"}
    taken = at.args
    if at.kwargs or len(taken) != 2 or not all(isinstance(one, str) for one in taken):
        return {"exc_type": "TypeError", "message": "call the tools by their names"}
    if made >= _MOST_CALLS:
        return {"exc_type": "RuntimeError", "message": f"at most {_MOST_CALLS} calls can wait at once"}
    return None


def main() -> None:
    """Answer the parent until it closes the input. A fault ends the process."""
    lines = sys.stdin.buffer
    first = json.loads(lines.readline())
    limits = first["limits"]
    confine(int(limits["memory"]))
    import pydantic_monty as monty  # Here, so that it is loaded within the limits.

    seconds = float(limits["seconds"])
    with (
        monty.Monty(min_processes=0, max_processes=1, request_timeout=seconds + 2.0) as pool,
        pool.checkout(
            script_name="program.py",
            limits={
                "max_memory": int(limits["memory"]),
                "max_feed_duration_secs": seconds,
                "max_recursion_depth": 200,
                "max_suspensions": _SUSPENSIONS,
            },
        ) as session,
    ):
        child = Child(monty, session)
        message: dict[str, Any] = first
        while True:
            match message["do"]:
                case "start":
                    answer = child.start(message["code"], message["tools"])
                case "restore":
                    answer = child.restore(base64.b64decode(message["state"]))
                case "resume":
                    answer = child.resume(message["results"])
                case _:
                    answer = child.dump()
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            if not (line := lines.readline()):
                return
            message = json.loads(line)


if __name__ == "__main__":
    # The parser of Python recurses on the C stack; a thread has the stack that it is given.
    threading.stack_size(64 << 20)
    runner = threading.Thread(target=main)
    runner.start()
    runner.join()
