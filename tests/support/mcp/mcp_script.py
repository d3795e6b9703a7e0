"""An MCP server that does as a script says, over standard input and output; of the standard library alone.

The script is a JSON file.  ``tools`` are definitions as they are listed; ``answers`` says by the name of a
tool what a call of it comes to: ``{"result": …}``, ``{"error": …}``, ``{"raw": TEXT}`` for a line as it is
(``ID`` in it becomes the id of the request), ``{"bytes": HEX}``, ``{"sleep": SECONDS}``, ``{"until": FILE}``
for as long as that file is not there, ``{"die": true}``, ``{"long": MEBIBYTES}`` without an end of the line,
``{"flood": NOTIFICATIONS}``, ``{"progress": [[DONE, TOTAL, WORDS], …]}`` to who wants to be told,
``{"become": TOOLS}`` for other tools from now on, which is announced; of ``{}`` no answer comes at all.
``calls`` is a file to which each call adds a line, and each call that is cancelled the line ``cancelled``.
The server speaks 2025-11-25.
"""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.tools.mcp.servers import Server

__all__ = ["calls_of", "scripted", "tool_definition"]

PROGRAM = textwrap.dedent(
    """
    import json, os, sys, time

    script = json.load(open(sys.argv[1]))

    def send(message):
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
        sys.stdout.flush()

    def answer(number, what, token):
        for done, total, words in what.get("progress", ()) if token is not None else ():
            params = {"progressToken": token, "progress": done, "total": total, "message": words}
            send({"method": "notifications/progress", "params": params})
        if "bytes" in what:
            sys.stdout.buffer.write(bytes.fromhex(what["bytes"]))
            sys.stdout.buffer.flush()
        if "raw" in what:
            sys.stdout.write(what["raw"].replace("ID", json.dumps(number)) + "\\n")
            sys.stdout.flush()
        if "long" in what:
            for _ in range(what["long"]):
                sys.stdout.write("x" * 1048576)
            sys.stdout.flush()
        if "sleep" in what:
            time.sleep(what["sleep"])
        while "until" in what and not os.path.exists(what["until"]):
            time.sleep(0.01)
        if what.get("die"):
            os._exit(3)
        if "become" in what:
            script["tools"] = what["become"]
            send({"method": "notifications/tools/list_changed"})
        if "flood" in what:
            for _ in range(what["flood"]):
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        if "result" in what:
            send({"id": number, "result": what["result"]})
        if "error" in what:
            send({"id": number, "error": what["error"]})

    sys.stderr.write(script.get("stderr", ""))
    sys.stderr.flush()
    called = 0
    for line in sys.stdin:
        asked = json.loads(line)
        number, method = asked.get("id"), asked.get("method")
        if method == "initialize":
            info = {"name": "scripted", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            result["instructions"] = script["instructions"]
            send({"id": number, "result": result})
        elif method == "tools/list":
            send({"id": number, "result": script.get("list") or {"tools": script["tools"]}})
        elif method == "tools/call":
            name = asked["params"]["name"]
            with open(script["calls"], "a") as file:
                file.write(name + "\\n")
            called += 1
            if called == script["dies_on"]:
                os._exit(3)
            token = asked["params"].get("_meta", {}).get("progressToken")
            answer(number, script["answers"].get(name, {"result": {"content": []}}), token)
        elif method == "notifications/cancelled":
            with open(script["calls"], "a") as file:
                file.write("cancelled\\n")
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": "not known"}})
    """
)


def tool_definition(name: str, description: str = "Does something.", **more: Any) -> dict[str, Any]:
    """A definition as a server lists it."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema, **more}


def scripted(
    folder: Path,
    tools: Sequence[Any],
    answers: Mapping[str, Any] | None = None,
    *,
    name: str = "toy",
    stderr: str = "",
    listed: Mapping[str, Any] | None = None,
    dies_on: int = 0,
    instructions: str = "",
    **server: Any,
) -> Server:
    """A server with these tools and answers, not started; ``listed`` is what it lists in place of them.

    It dies on the call of the number ``dies_on``, each time that it has been started.
    """
    program, script = folder / f"{name}.py", folder / f"{name}.json"
    program.write_text(PROGRAM)
    said = {
        "tools": list(tools),
        "answers": dict(answers or {}),
        "calls": str(folder / f"{name}.calls"),
        "stderr": stderr,
        "list": listed,
        "dies_on": dies_on,
        "instructions": instructions,
    }
    script.write_text(json.dumps(said))
    return Server(name, command=sys.executable, args=(str(program), str(script)), **server)


def calls_of(folder: Path, name: str = "toy") -> Sequence[str]:
    """The names of the tools that were called at a scripted server, in order."""
    path = folder / f"{name}.calls"
    return path.read_text().split() if path.exists() else ()
