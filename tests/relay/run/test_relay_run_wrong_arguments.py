"""Arguments that are no JSON object, of a server tool and a client tool in one turn, over real sockets."""

import json
from typing import Any

import pytest
import responses_script as responses
from chat_script import call, content, finish, role, stream, usage
from looping import ECHO
from pair_kits import SPEAKERS
from raw_upstream import RawUpstream
from running_proxy import make_config, running
from speaker import Call, Message

WRONG = '{"text": ""}{"text": "noon"}{}'
UPSTREAMS = {
    "chat": (
        stream(
            role(),
            call("call_1", ECHO, WRONG),
            call("call_2", "mine", '{"text": ""}', 1),
            call(None, None, '{"text": "noon"}{}', 1),
            finish("tool_calls"),
            usage(1, 1),
        ),
        stream(role(), content("Sorry."), finish(), usage(2, 1)),
    ),
    "responses": (
        responses.stream(
            responses.function_call("call_1", ECHO, WRONG), responses.function_call("call_2", "mine", WRONG)
        ),
        responses.stream(responses.message("Sorry.", id="msg_2"), id="resp_2"),
    ),
}


def made_in(body: dict[str, Any]) -> dict[str, str]:
    """Return tools and arguments of the calls in a request."""
    calls = [
        call["function"] for message in body.get("messages", ()) for call in message.get("tool_calls", ())
    ]
    calls += [item for item in body.get("input", ()) if item.get("type") == "function_call"]
    return {call["name"]: call["arguments"] for call in calls}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", ["anthropic", "ollama"])
async def test_both_calls_are_refused_alike(client: str, upstream: str) -> None:
    """Rules T3, R4: the server call does not run, the client gets a marked one, and both are restored."""
    speaker, said = SPEAKERS[client], [Message("user", "What time is it?")]
    async with RawUpstream(*UPSTREAMS[upstream]) as server:
        served = {"base_url": server.url, "wires": (upstream,)}
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            first = await proxy.ask(speaker.ask(said, tools=["mine"]), path=speaker.path)
            (shown,) = speaker.read_stream(first.body, (ECHO,)).calls
            assert (shown.name, shown.arguments) == ("mine", {"INVALID_JSON": WRONG})
            said += [
                Message("assistant", "", (Call(shown.id, shown.name, shown.arguments),)),
                Message("tool", "These are no arguments.", call_id=shown.id),
            ]
            second = await proxy.ask(speaker.ask(said, tools=["mine"]), path=speaker.path)
            assert speaker.read_stream(second.body, (ECHO,)).text == "Sorry."
        sent = json.loads(server.requests[1].body)
    assert made_in(sent) == {ECHO: "{}", "mine": WRONG}
    assert "invalid_json" in json.dumps(sent)
    assert "These are no arguments." in json.dumps(sent)
