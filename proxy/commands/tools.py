"""``toolrelay tools``: lists the tools as a model would see them, and calls one by hand."""

import json
import sys
import time
import traceback
import uuid
from difflib import get_close_matches
from pathlib import Path

from msgspec.structs import replace

import proxy.tools as tools_room
from proxy.api.admin.tool_output import tool_to_json
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.services import Services, create_services
from proxy.base.events import ToolCall
from proxy.base.plain_text import plain_text
from proxy.commands.common import MAX_LINE, say, say_faults, say_json
from proxy.commands.doctor.check import print_tools, without_record
from proxy.commands.mcp.host import mcp_host
from proxy.commands.mcp.looking import pins_of_record, wait_for_server
from proxy.commands.mcp.warnings import many_lines
from proxy.config.load import Config
from proxy.records.rows import RunRecord
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.definitions import PROVIDER
from proxy.tools.running.ledger import RunContext


async def list_tools(config: Config, *, as_json: bool) -> None:
    """Print every loaded tool with its effect, the policy's decision and the rule."""
    services = await create_services(without_record(config), overrides=await pins_of_record(config))
    try:
        tools, policy = services.catalog.tools(), services.policy
        if as_json:
            prices = services.registry.prices
            say_json(*(tool_to_json(spec, policy.decide(spec), prices.of(spec.name)) for spec in tools))
        else:
            print_tools(tools, policy, services.registry.prices)
            for line in many_lines(config, services.catalog, policy):
                say(line)
    finally:
        await services.aclose()


async def call_tool(config: Config, name: str, arguments: str) -> bool:
    """Run one tool and print what a model would get; return whether it succeeded.

    The call is subject to policy and limits, and is recorded, as every call is. An exception of the tool is
    printed to standard error with its traceback, which no model, log or record ever gets.
    """
    server = name.split("__")[1] if name.startswith(f"{PROVIDER}__") and name.count("__") > 1 else ""
    async with mcp_host(config if server else None) as mcp_socket:
        given = Overrides(on_tool_crash=_show_crash, mcp_socket=mcp_socket)
        services = await create_services(config, overrides=given)
        if mcp_socket is not None:
            # The services authorize its requests.
            await wait_for_server(config, mcp_socket, server)
        return await _call(services, name, arguments)


async def _call(services: Services, name: str, arguments: str) -> bool:
    """Do the same with given services, and close them afterwards."""
    try:
        run = RunRecord(
            id=f"run_{uuid.uuid4().hex}",
            request_id=f"cli-{uuid.uuid4().hex[:12]}",
            caller="command-line",
            wire="command",
            model="",
            upstream="",
            stream=False,
            status="running",
            started_at=time.time(),
            tool_calls=1,
        )
        services.store.put_run(run)
        call = ToolCall(call_id=f"call_{uuid.uuid4().hex[:24]}", name=name, arguments=arguments, index=0)
        result = await services.runner.run(call, RunContext(run.id, 1, run.caller, run.request_id))
        services.store.put_run(
            replace(
                run,
                status="completed" if result.ok else "failed",
                error_code=result.error_code,
                ended_at=time.time(),
            )
        )
    finally:
        await services.aclose()
    if result.ok:
        say(_shown(result.content))
        for image in result.images:
            say(plain_text(f"[image {image.words}]", MAX_LINE))
    else:
        why = _rule(services, name, result.error_code)
        message = f"{name}: {result.error_code}: {result.safe_message or result.content}{why}"
        say_faults([message], [result.error_code or ""])
    return result.ok


def _rule(services: Services, name: str, code: str | None) -> str:
    """Return which rule the operator must change if the call was refused. Models never see this text."""
    spec = services.catalog.get(name)
    if spec is None:
        near = get_close_matches(name, [tool.name for tool in services.catalog.tools()], n=1, cutoff=0.6)
        return f'. Did you mean "{near[0]}"?' if near else ""
    decision = services.policy.decide(spec)
    refused = code in ("policy_denied", "approval_required") and not decision.allowed
    return f" ({decision.rule})" if refused else ""


def _show_crash(spec: ToolSpec, error: BaseException) -> None:
    """Print the traceback for the tool's author, from the tool's first line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    for line in "".join(traceback.format_exception(type(error), error, frames)).splitlines():
        print(plain_text(line, MAX_LINE), file=sys.stderr, flush=True)


def _is_ours(filename: str) -> bool:
    """Return whether a file belongs to the code that runs tools, not to a tool or the toolbox."""
    return Path(filename).is_relative_to(Path(tools_room.__file__).parent)


def _shown(content: str) -> str:
    """Format a result as ASCII JSON, safe for pipes and terminals; escape other text."""
    try:
        return json.dumps(json.loads(content))
    except ValueError:
        return plain_text(content, len(content))
