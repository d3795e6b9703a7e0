"""Content in traces: only on request, redacted, bounded, and in the form of the GenAI conventions."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from cases import each
from chat_script import call, content, finish, reply, role, stream
from running_proxy import SERVER_KEY
from span_collector import Collector, attributes, trace

from proxy.telemetry.content import INPUT, INSTRUCTIONS, OUTPUT, ContentReader, Exchange, bounded
from proxy.wires.registry.table import SERVED
from proxy.wires.registry.wires import built_in_wires

ROOT = Path(__file__).resolve().parents[2]
ON = {"content": True}
TIME = "core__get_current_time"
UNLOCK = "probe_tools__unlock"
PICTURE = base64.b64encode(b"picture-bytes" * 200).decode()

MEMBERS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "text": {"content": str},
    "reasoning": {"content": str},
    "tool_call": {"name": str},
    "tool_call_response": {"response": object},
    "uri": {"modality": str, "uri": str},
    "file": {"modality": str, "file_id": str},
    "blob": {"modality": str, "content": str},
    "compaction": {},
    "server_tool_call": {"name": str, "server_tool_call": dict},
    "server_tool_call_response": {"server_tool_call_response": dict},
}
"""What each type of part must have; any other type is a generic part, which needs its type alone.

Source: ``model/gen-ai/gen-ai-input-messages.json`` and ``-output-messages.json`` of
``open-telemetry/semantic-conventions-genai``, the members ``required`` of each definition.
"""
REASONS = {"stop", "length", "content_filter", "tool_call", "error"}
"""``finish_reason``, which the schema of version 1.41 requires of each output message."""
ROLES = {"system", "user", "assistant", "tool"}


def check_part(part: Any) -> None:
    """Check one part against the conventions."""
    assert isinstance(part, dict)
    assert isinstance(part["type"], str)
    for name, kind in MEMBERS.get(part["type"], {}).items():
        assert isinstance(part[name], kind), part
    assert not {name for name in part if "." in name}


def check(about: dict[str, Any]) -> None:
    """Check the attributes of a span against the conventions."""
    for part in orjson.loads(about.get(INSTRUCTIONS, "[]")):
        check_part(part)
    for name in (INPUT, OUTPUT):
        for message in orjson.loads(about.get(name, "[]")):
            assert message["role"] in ROLES
            assert isinstance(message["parts"], list)
            for part in message["parts"]:
                check_part(part)
            assert name == INPUT or message["finish_reason"] in REASONS


def messages(about: dict[str, Any], name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the messages of an attribute: the role and the parts of each."""
    return [(message["role"], message["parts"]) for message in orjson.loads(about[name])]


def ask(text: Any = "What time is it?", **more: Any) -> dict[str, Any]:
    """A request."""
    system = {"role": "system", "content": "Be brief."}
    return {"model": "m", "stream": True, "messages": [system, {"role": "user", "content": text}], **more}


async def test_a_run_with_its_content() -> None:
    """Each turn has what the model got and said, and each tool call its arguments and redacted result."""
    first = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))
    second = stream(role(), content("It is noon."), finish())
    collector, upstream = await trace(first, second, ask=ask(), telemetry=ON)
    one, two = (attributes(span) for span in collector.named("chat m"))
    for about in (one, two):
        check(about)
        assert orjson.loads(about[INSTRUCTIONS]) == [{"type": "text", "content": "Be brief."}]
    assert messages(one, INPUT) == [("user", [{"type": "text", "content": "What time is it?"}])]
    asked = {"type": "tool_call", "id": "c1", "name": TIME, "arguments": {"timezone": "UTC"}}
    assert messages(one, OUTPUT) == [("assistant", [asked])]
    given = orjson.loads(upstream.requests[1].body)["messages"][-1]["content"]
    answered = {"type": "tool_call_response", "id": "c1", "response": given}
    assert messages(two, INPUT)[1:] == [("assistant", [asked]), ("tool", [answered])]
    assert messages(two, OUTPUT) == [("assistant", [{"type": "text", "content": "It is noon."}])]
    assert [orjson.loads(about[OUTPUT])[0]["finish_reason"] for about in (one, two)] == ["tool_call", "stop"]
    (tool,) = (attributes(span) for span in collector.named(f"execute_tool {TIME}"))
    assert orjson.loads(tool["gen_ai.tool.call.arguments"]) == {"timezone": "UTC"}
    shown = orjson.loads(tool["gen_ai.tool.call.result"])
    assert shown
    assert set(shown) <= set(orjson.loads(given))


@pytest.mark.parametrize("streams", [True, False])
async def test_what_passes_through_has_its_content(streams: bool) -> None:
    """A request without server tools has its content, too; the client's bytes are the same."""
    answer = stream(role(), content("It is noon."), finish()) if streams else reply("It is noon.")
    collector, _ = await trace(answer, ask=ask(stream=streams), telemetry=ON, allow=())
    (about,) = (attributes(span) for span in collector.named("chat m"))
    check(about)
    assert messages(about, INPUT) == [("user", [{"type": "text", "content": "What time is it?"}])]
    assert messages(about, OUTPUT) == [("assistant", [{"type": "text", "content": "It is noon."}])]


async def test_without_the_setting_nothing_is_kept() -> None:
    """By default no attribute has content; nobody turns it on by a header or a body."""
    collector, _ = await trace(stream(role(), content("It is noon."), finish()), ask=ask(), allow=())
    assert not named(collector) & {INPUT, OUTPUT, INSTRUCTIONS}
    assert b"noon" not in collector.raw


def named(collector: Collector) -> set[str]:
    """Return the names of all attributes."""
    return {name for span in collector.spans for name in attributes(span)}


async def test_private_arguments_secrets_and_pictures_stay_here() -> None:
    """Private arguments are masked in every message and call, secrets of the configuration blanked out, and
    base64 is left out."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    said = ask([{"type": "text", "text": f"My key is {SERVER_KEY}."}, picture])
    first = stream(role(), call("c1", UNLOCK, '{"pin":"canary-4711"}'), finish("tool_calls"))
    second = stream(role(), content(f"Done, {SERVER_KEY}."), finish())
    collector, upstream = await trace(
        first, second, ask=said, telemetry=ON, modules=("probe_tools",), allow=("probe_tools__*",)
    )
    assert b"canary-4711" in upstream.requests[1].body
    for secret in (b"canary-4711", SERVER_KEY.encode(), PICTURE[:200].encode()):
        assert secret not in collector.raw
    one, two = (attributes(span) for span in collector.named("chat m"))
    check(one)
    check(two)
    (_, parts), *_ = messages(one, INPUT)
    assert parts[1] == {"type": "omitted", "modality": "image", "mime_type": "image/png", "bytes": 2600}
    (_, (asked,)) = messages(one, OUTPUT)[0]
    assert asked["arguments"] == {"pin": "[private]"}
    (tool,) = (attributes(span) for span in collector.named(f"execute_tool {UNLOCK}"))
    assert orjson.loads(tool["gen_ai.tool.call.arguments"]) == {"pin": "[private]"}
    assert orjson.loads(tool["gen_ai.tool.call.result"]) == {"ok": True}


async def test_attributes_are_bounded_and_stay_json() -> None:
    """A long conversation keeps its newest messages, and a long text its beginning."""
    long = [{"role": "user", "content": f"{number} " + "x" * 3000} for number in range(40)]
    telemetry = {**ON, "content_max_chars": 8192}
    collector, _ = await trace(
        stream(role(), content("y" * 50_000), finish()),
        ask={"model": "m", "stream": True, "messages": long},
        telemetry=telemetry,
        allow=(),
    )
    (about,) = (attributes(span) for span in collector.named("chat m"))
    check(about)
    assert all(len(about[name]) <= 8192 for name in (INPUT, OUTPUT))
    ((_, (left,)), *_, (_, (newest,))) = messages(about, INPUT)
    assert (left["type"], left["count"] > 30) == ("omitted", True)
    assert newest["content"].startswith("39 xxx")
    assert newest["content"].endswith("more characters]")


async def test_who_wants_nothing_stored_is_not_traced() -> None:
    """A request with ``store: false`` has spans without content, with tools and without."""
    for allow in ((), ("core__*",)):
        collector, _ = await trace(
            stream(role(), content("canary-answer"), finish()),
            ask=ask("canary-question", store=False),
            telemetry=ON,
            allow=allow,
        )
        assert collector.named("chat m")
        assert b"canary" not in collector.raw


def turns() -> Iterator[Path]:
    """Yield each recorded turn of each dialect."""
    for folder in sorted((ROOT / "fixtures").glob("*.*/*/turn-*")):
        if folder.parents[1].name.rpartition(".")[2] in built_in_wires():
            yield folder


def unchanged(name: str, arguments: str) -> str:
    """Mask nothing."""
    return arguments


@each("folder", list(turns()), lambda folder: "/".join(folder.parts[-3:]))
def test_every_recorded_turn_is_read(folder: Path) -> None:
    """The request and the answer of each recorded turn fit the conventions, streamed or not."""
    wire = folder.parents[1].name.rpartition(".")[2]
    reader = ContentReader(SERVED, built_in_wires(), unchanged, None, 100_000)
    for answer in sorted(folder.glob("response.*")):
        if answer.suffix == ".toml":
            continue
        request, body = (folder / "request.json").read_bytes(), answer.read_bytes()
        streams = answer.suffix != ".json"
        exchange = Exchange(wire, request, streams=streams)
        exchange.keep(body)
        about = reader.attributes(exchange)
        check(about)
        is_error = not streams and bool(orjson.loads(body).get("error"))
        unstored = orjson.loads(request).get("store") is False
        assert ((INPUT in about), (OUTPUT in about)) == (not unstored, not unstored and not is_error)


@pytest.mark.parametrize("name", [b'"store"', b'"st\\u006fre"'])
def test_a_request_that_is_not_understood_stays_unstored(name: bytes) -> None:
    """Rule R3 holds for the answer, too, where nothing but ``store: false`` can be read of a request."""
    reader = ContentReader(SERVED, built_in_wires(), unchanged, None, 100_000)
    shown = 0
    for folder in turns():
        wire, answer = folder.parents[1].name.rpartition(".")[2], folder / "response.json"
        if answer.exists():
            for body in (b'{"messages":7,"input":{}}', b'{"messages":7,"input":{},%b:false}' % name):
                exchange = Exchange(wire, body, bytearray(answer.read_bytes()))
                about = reader.attributes(exchange)
                shown += OUTPUT in about
                assert not (about and name in body)
    assert shown


def test_what_cannot_be_read_has_no_content() -> None:
    """Bodies that are no requests, and answers that are none, cost their attribute and nothing else."""
    reader = ContentReader(SERVED, built_in_wires(), unchanged, None, 1024)
    for wire in built_in_wires():
        for body in (b"", b"[]", b"{", b'{"model":7}', b"\xff", b'{"messages":{}}'):
            for streams in (True, False):
                exchange = Exchange(wire, body, bytearray(b"data: {\n\n{{{"), streams)
                assert OUTPUT not in reader.attributes(exchange)


def test_one_entry_that_is_too_long_is_left_out() -> None:
    """Nothing is longer than the bound, whatever an entry holds."""
    entry = {
        "role": "user",
        "parts": [{"type": "tool_call", "name": "x" * 90, "arguments": list(range(9000))}],
    }
    text = bounded([entry], 1024)
    assert orjson.loads(text) == [{"role": "system", "parts": [{"type": "omitted", "count": 1}]}]
