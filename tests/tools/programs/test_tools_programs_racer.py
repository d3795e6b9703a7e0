"""Programs in JavaScript: they call tools, run again up to where they were, and cannot get out."""

import json
import resource
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from proxy.base.events import ToolDefinition
from proxy.tools.programs.engine import Binding, ProgramFailed, ProgramLimits, Step
from proxy.tools.programs.racer import RacerEngine, RacerSession
from proxy.tools.programs.stubs import TYPESCRIPT, stubs, type_of

TOOLS = {"echo": Binding("probe__echo", ("text",)), "read_file": Binding("mcp__files__read-file", ())}
LIMITS = ProgramLimits(seconds=PATIENCE_S)
HASTY = ProgramLimits(seconds=0.5)


@asynccontextmanager
async def session(limits: ProgramLimits = LIMITS) -> AsyncIterator[RacerSession]:
    """A session, which is closed at the end."""
    opened = RacerEngine(limits).session()
    try:
        yield opened
    finally:
        await opened.close()


def ok(value: Any) -> str:
    """A result as an engine takes it."""
    return json.dumps({"ok": True, "value": value})


async def run(code: str, results: Mapping[int, str] | None = None, limits: ProgramLimits = LIMITS) -> Any:
    """What a program puts out that makes its calls in one step."""
    async with session(limits) as opened:
        step = await opened.start(code, TOOLS)
        if results is not None:
            step = await opened.resume(results)
    assert step.result is not None
    return json.loads(step.result)


async def test_a_program_makes_calls_and_goes_on_with_their_results() -> None:
    """Calls of one step have ids in order; a name with other signs is found by its spelling of Python."""
    async with session() as opened:
        first = await opened.start(
            "const found = await Promise.all([tools.echo({text: 'é'}), tools.read_file()]);"
            "text(found[0].n + 1); text({n: found[1]});",
            TOOLS,
        )
        assert [(call.id, call.tool, json.loads(call.arguments)) for call in first.calls] == [
            (1, "probe__echo", {"text": "é"}),
            (2, "mcp__files__read-file", {}),
        ]
        done = await opened.resume({2: ok("two"), 1: ok({"n": 1})})
    assert json.loads(str(done.result)) == '2\n{"n":"two"}'


async def test_a_failed_call_throws() -> None:
    """The message is the tool's."""
    code = "try { await tools.echo({}) } catch (error) { text(error.message) }"
    assert await run(code, {1: json.dumps({"ok": False, "message": "denied: no"})}) == "denied: no"


async def test_a_state_leads_to_the_same_place() -> None:
    """A program that goes on elsewhere sees the same clock and the same chance, and names no call again."""
    code = """
    const drawn = [Math.random(), Date.now(), String(new Date())];
    await tools.echo({text: String(drawn)});
    await tools.echo({text: "second"});
    text([drawn[0] === Math.random(), drawn]);
    """
    async with session() as one:
        await one.start(code, TOOLS)
        await one.resume({1: ok(None)})
        state = await one.dump()
        told = await one.resume({2: ok(None)})
    async with session() as other:
        assert await other.start("", {}, state) == Step()
        assert await other.dump() == state
        assert await other.resume({2: ok(None)}) == told
    assert json.loads(json.loads(str(told.result)))[0] is False


async def test_a_program_that_goes_another_way_is_stopped() -> None:
    """If it made other calls when it ran again, none of them is made."""
    async with session() as one:
        await one.start("await tools.echo({text: 'a'})", TOOLS)
        state = json.loads(await one.dump())
    state["code"] = "await tools.echo({text: 'b'})"
    async with session() as other:
        with pytest.raises(ProgramFailed, match="other calls than before"):
            await other.start("", {}, json.dumps(state).encode())


async def test_calls_that_nobody_awaits_are_made() -> None:
    """A program ends when its calls have ended."""
    assert await run("tools.echo({text: 'a'}); text('end')", {1: ok(1)}) == "end"


async def test_images_come_at_the_end() -> None:
    """They are data URLs, also in the form of a part of a message."""
    async with session() as opened:
        done = await opened.start(
            "image('data:image/png;base64,AA'); image({image_url: 'data:image/png;base64,BB'}); return 5", {}
        )
    assert (done.result, done.images) == ('"5"', ("data:image/png;base64,AA", "data:image/png;base64,BB"))


HOSTILE = [
    ("for (;;);", "too long"),
    ("let a = []; for (;;) a.push(new Array(1e5).fill(1.5))", ""),
    ("let a = []; for (;;) a.push(new Uint8Array(5e7).fill(1))", "allocation failed"),
    ("'x'.repeat(5e8).split('')", ""),
    ("let s = 'x'; for (;;) s += s", "Invalid string length"),
    ("function f() { f() } f()", "call stack"),
    ("text('x'.repeat(3e5))", "can put out"),
    ("for (;;) image('data:image/png;base64,')", "4 images"),
    ("await Promise.all(Array.from({length: 65}, () => tools.echo()))", "at most 64 calls"),
    ("await tools.echo('x')", "takes one object"),
    ("await tools.hidden({})", "not a function"),
    ("tools.hidden = tools.echo", ""),
    ("await import('fs')", ""),
    ("require('fs')", "not defined"),
    ("process.env", "not defined"),
    ("fetch('http://127.0.0.1')", "not defined"),
    ("console.log(1)", "not defined"),
    ("setTimeout(() => {}, 1)", "not a function"),
    ("new WebAssembly.Memory({initial: 1})", "not defined"),
    ("new SharedArrayBuffer(8)", "not defined"),
    ("await new Promise(() => {})", "never comes"),
    ("}); text(1); (async () => {", "SyntaxError"),
    ("throw {get stack() { throw 1 }}", "cannot be shown"),
    ("throw new Error('x'.repeat(1e6))", "xxx"),
    ("throw null", "null"),
    ("Array.prototype.push = () => { throw new Error('poison') }; await tools.echo()", "poison"),
]


@pytest.mark.parametrize(("code", "said"), HOSTILE)
async def test_a_hostile_program_in_javascript_ends_in_an_error(code: str, said: str) -> None:
    """A program that wants too much, or out, gets an error of a bounded length, and nothing of the host."""
    limits = HASTY if code == "for (;;);" else LIMITS
    with pytest.raises(ProgramFailed) as failed:
        await run(f"'use strict';\n{code}", limits=limits)
    assert said in failed.value.message
    assert len(failed.value.message) < 2500
    assert str(Path.cwd()) not in failed.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the limits of other processes")
async def test_the_process_of_a_program_can_open_nothing() -> None:
    """Also a program that breaks out of V8 finds no environment and opens no file and no socket."""
    async with session() as opened:
        await opened.start("await tools.echo({})", TOOLS)
        assert opened.pid is not None
        assert resource.prlimit(opened.pid, resource.RLIMIT_NOFILE) == (0, 0)
        proc = Path(f"/proc/{opened.pid}")
        assert (proc / "environ").read_bytes() == b""
        assert (proc / "cwd").readlink() == Path("/")
        assert json.loads(str((await opened.resume({1: ok(1)})).result)) == ""


async def test_half_a_character_is_replaced() -> None:
    """JavaScript cuts texts between the two halves of a character; what cannot be shown does not end it."""
    half = "'a😀'.slice(0, 2)"
    assert await run(f"text({half}); return '日😀'") == "a\ufffd\n日😀"
    with pytest.raises(ProgramFailed, match="Error: a\ufffd") as failed:
        await run(f"text({half}); throw new Error({half})")
    assert failed.value.printed == "a\ufffd"


@pytest.mark.parametrize("code", ["for (;;) await null;", "throw {get stack() { for (;;); }}"])
async def test_what_v8_does_not_stop_is_killed(code: str) -> None:
    """Endless promises run where no timeout of V8 sees them; the process ends all the same."""
    with pytest.raises(ProgramFailed, match="stopped"):
        await run(code, limits=HASTY)


POISON = """
Object.prototype.toJSON = () => ({poisoned: true});
Object.prototype.ok = true;
Array.prototype.toJSON = Array.prototype.join = () => { throw new Error('poison') };
String.prototype.startsWith = () => true;
String.prototype.slice = () => 'poison';
JSON.parse = JSON.stringify = () => '{"calls":[[1,"read_file","{}"]]}';
Reflect.apply = Reflect.ownKeys = () => ['poison'];
"""


async def test_poisoned_prototypes_change_nothing_of_the_bridge() -> None:
    """What a program replaces is its own; its calls and what it puts out stay what they are."""
    code = f"{POISON}\nconst made = tools.echo({{toJSON: undefined, text: 'a'}}); text('said'); await made;"
    async with session() as opened:
        first = await opened.start(code, TOOLS)
        assert [(call.tool, json.loads(call.arguments)) for call in first.calls] == [
            ("probe__echo", {"text": "a"})
        ]
        done = await opened.resume({1: ok("b")})
    assert json.loads(str(done.result)) == "said"


def test_tools_are_declared_with_types_of_typescript() -> None:
    """Arguments come as one object; what has no type is any."""
    tool = ToolDefinition(
        "get-stock",
        "Look up\nstock.",
        {
            "type": "object",
            "properties": {
                "sku": {"type": "string", "description": "Its name"},
                "kinds": {"type": "array", "items": {"enum": ["a", "b"]}},
            },
            "required": ["sku"],
        },
    )
    assert stubs([tool], "javascript") == (
        "tools.get_stock({'sku': string, 'kinds'?: Array<\"a\" | \"b\">}): Promise<any>\n"
        "    // Look up stock.\n"
        "    // sku: Its name"
    )
    assert type_of({"type": ["integer", "null"]}, written=TYPESCRIPT) == "number | null"
