"""``toolrelay serve``: runs the proxy, and prints its state at the start."""

import os

from msgspec.structs import replace

from proxy.app.app import Overrides, create_app
from proxy.app.compose.services import Services
from proxy.base.plain_text import plain_text
from proxy.commands.common import MAX_LINE, say
from proxy.commands.doctor.check import token_lines, withheld_lines
from proxy.commands.doctor.connectivity import warn_of_upstreams
from proxy.commands.doctor.schemas import schema_lines
from proxy.commands.doctor.sealing import seal_lines
from proxy.commands.keys.keys import authentication_lines, bounds_of_keys
from proxy.commands.mcp.host import mcp_host
from proxy.commands.mcp.warnings import many_lines, plain_secret_lines, unallowed_lines
from proxy.commands.serve.run import run_server
from proxy.commands.serve.sockets import address_of, bind
from proxy.commands.ui import ui_lines
from proxy.config.load import Config
from proxy.server.auth.authenticate import Authentication


async def serve(config: Config, overrides: Overrides | None = None) -> None:
    """Serve until stopped. Raises ConfigError or StoreError before the first request."""
    sockets = bind(config.server.host, config.server.port)
    try:
        async with mcp_host(config) as mcp_socket:
            given = replace(overrides or Overrides(), mcp_socket=mcp_socket)
            app = await create_app(config, overrides=given)
            address = address_of(sockets)
            lines = banner(config, app.services, address, app.authentication)
            lines += ui_lines(app, config, address)
            await run_server(
                app,
                sockets,
                drain_s=config.server.drain_s,
                notice_s=config.server.notice_s,
                announce=lambda: say(*lines),
                ready=lambda: warn_of_upstreams(config, app.services.upstreams),
                draining=lambda: say(f"stopping: open streams have {config.server.drain_s:g} s to end"),
            )
    finally:
        for listener in sockets:
            listener.close()


def banner(config: Config, services: Services, address: str, authentication: Authentication) -> list[str]:
    """Return the lines that a start prints: address, authentication, upstreams, tools, and obstacles."""
    lines = [f"toolrelay listens on {address}/v1", *authentication_lines(config, authentication)]
    lines += bounds_of_keys(authentication, services.catalog)[1]
    for name, upstream in config.upstreams.items():
        key = "with a key" if upstream.api_key else "without a key"
        lines.append(f"upstream {name}: {upstream.base_url} ({key})")
        if upstream.base_url.startswith("replay:"):
            lines.append(f"warning: upstream {name} replays recordings; no model is asked")
    first = config.upstreams[config.default_upstream]
    if first.api_key is None and os.environ.get("OPENAI_API_KEY"):
        lines.append(
            f"OPENAI_API_KEY is not sent to {first.base_url}; to send it, set "
            f'upstreams.{config.default_upstream}.api_key = "env:OPENAI_API_KEY"'
        )
    tools = services.catalog.tools()
    allowed = [spec.name for spec in tools if services.policy.decide(spec).allowed]
    lines.append(f"tools loaded: {', '.join(spec.name for spec in tools) or 'none'}")
    if config.tools.enabled:
        lines.append(f"tools allowed: {', '.join(allowed) or 'none'}")
    lines.extend(withheld_lines(config, services))
    lines.extend(unallowed_lines(config, services.catalog))
    lines.extend(plain_secret_lines(config))
    lines.extend(many_lines(config, services.catalog, services.policy))
    lines.extend(schema_lines(services.catalog, services.policy))
    lines.extend(token_lines(config))
    lines.append(f"record: {config.store.shown_url}")
    lines.extend(seal_lines(config))
    lines.extend(_not_kept(config))
    return [plain_text(line, MAX_LINE) for line in lines]


def _not_kept(config: Config) -> list[str]:
    """Return what the chosen record cannot provide."""
    if config.store.url == "memory:":
        return [
            'store.url = "memory:" loses everything when this process ends: runs, suspended and hidden '
            "turns, responses, large results, and the protection against repeating side effects"
        ]
    if config.store.content == "none":
        return [
            'store.content = "none" writes no content: only this process knows suspended and hidden turns, '
            "responses and large results, until it ends; another process that gets a repeated request knows "
            "that a side effect happened, but not its result; runs replay cannot work"
        ]
    return []
