"""An MCP server over standard input and output that follows a script and needs no other package.

The script is a JSON file. ``tools`` are the definitions that the server lists. ``answers`` has, by the name
of a tool, what a call does: ``{"result": …}``, ``{"error": …}``, ``{"raw": TEXT}`` for an unchanged line
(``ID`` in it becomes the id of the request), ``{"bytes": HEX}``, ``{"sleep": SECONDS}``, ``{"until": FILE}``
to wait until that file exists, ``{"die": true}``, ``{"long": MEBIBYTES}`` without an end of line,
``{"flood": NOTIFICATIONS}``, ``{"pings": REQUESTS}``, ``{"progress": [[DONE, TOTAL, WORDS], …]}`` if the
client wants progress, ``{"become": TOOLS}`` to change the tools, which the server announces. ``{}`` gives no
answer at all.
``calls`` is a file to which the server adds a line for each call, and ``cancelled`` for each cancellation.
The server speaks 2025-11-25, and refuses what :mod:`mcp_rules` says.
"""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp_rules

from proxy.tools.mcp.servers import Server

PROGRAM = Path(mcp_rules.__file__).read_text() + textwrap.dedent(
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
        for ping in range(what.get("pings", 0)):
            send({"id": ping, "method": "ping"})
        if "result" in what:
            send({"id": number, "result": what["result"]})
        if "error" in what:
            send({"id": number, "error": what["error"]})

    sys.stderr.write(script.get("stderr", ""))
    sys.stderr.flush()
    says = script["says"]
    if "start" in says:
        print(says["start"], flush=True)
    called = 0
    for line in sys.stdin:
        asked = json.loads(line)
        number, method = asked.get("id"), asked.get("method")
        if method in says:
            print(says[method], flush=True)
        if method is not None and (fault := message_fault(asked)):
            send({"id": number, "error": fault})
        elif method == "initialize":
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
    """Return a definition as a server lists it."""
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
    says: Mapping[str, str] | None = None,
    **server: Any,
) -> Server:
    """Return a server with these tools and answers, not started; ``listed`` replaces its list of tools.

    Each time that it has been started, it exits on the call with the number ``dies_on``. ``says`` has lines
    that it writes to its standard output at its ``start`` or before its answer to a method.
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
        "says": dict(says or {}),
    }
    script.write_text(json.dumps(said))
    return Server(name, command=sys.executable, args=(str(program), str(script)), **server)


def calls_of(folder: Path, name: str = "toy") -> Sequence[str]:
    """Return the lines of a scripted server's file of calls, in order."""
    path = folder / f"{name}.calls"
    return path.read_text().split() if path.exists() else ()
