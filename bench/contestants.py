"""The commands and configurations of all measured proxies, which share one upstream."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.processes import Process, free_port, python, started
from bench.wire import KEY

HERE = Path(__file__).resolve().parent
PROXY_CORE, INSTRUMENT_CORE = 0, 1
_WIRES = ("chat", "responses")

_NGINX = """\
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 8192; }}
http {{
  access_log {folder}/nginx.log; keepalive_requests 1000000000;
  client_max_body_size 64m; client_body_buffer_size 8m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 2048; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s; tcp_nodelay on;
    }}
  }}
}}
"""
_TOOLRELAY = """\
[server]
port = {port}
[upstreams.default]
base_url = "http://127.0.0.1:{upstream}/v1"
api_key = ""
text_calls = "{text_calls}"
wires = [{wires}]
[keys.bench]
secret = "env:BENCH_KEY"
[tools]
modules = ["{here}/bench_tools.py"]
[policy]
allow = [{allow}]
max_argument_bytes = 16777216
[store]
url = "sqlite:///{store}"
[log]
format = "json"
"""
_LIMITS = """\
[limits]
requests = ["100000000/minute"]
tool_calls = ["100000000/minute"]
concurrent_streams = 100000
"""
_NO_LIMITS = """\
[limits]
requests = []
tool_calls = []
"""


@dataclass(frozen=True)
class Field:
    """The processes that run side by side in one measurement."""

    mock: Process
    proxies: Mapping[str, Process]


def toolrelay_config(
    folder: Path,
    port: int,
    upstream: int,
    *,
    tools: bool,
    store: Path,
    limits: bool = True,
    text_calls: str = "off",
    wires: Sequence[str] = _WIRES,
    more: str = "",
) -> Path:
    """Write a configuration with every check on, and limits that are counted and never reached.

    ``more`` is TOML that is added at the end.
    """
    allow = '"bench_tools__*"' if tools else ""
    text = _TOOLRELAY.format(
        port=port,
        upstream=upstream,
        here=HERE,
        allow=allow,
        store=store,
        text_calls=text_calls,
        wires=", ".join(f'"{wire}"' for wire in wires),
    )
    path = folder / f"toolrelay-{port}.toml"
    path.write_text(text + (_LIMITS if limits else _NO_LIMITS) + more)
    return path


@contextlib.contextmanager
def toolrelay(
    name: str,
    folder: Path,
    upstream: int,
    *,
    tools: bool,
    store: Path | None = None,
    core: int | None,
    workers: int | None = None,
    text_calls: str = "off",
    wires: Sequence[str] = _WIRES,
    more: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Process]:
    """Run a proxy as ``serve`` starts it, with ``env`` in its environment; its log goes to a file.

    With a number of ``workers`` there are no limits, because several workers would need a Redis to count.
    """
    port = free_port()
    store = store or folder / f"record-{port}.db"
    config = toolrelay_config(
        folder,
        port,
        upstream,
        tools=tools,
        store=store,
        limits=workers is None,
        text_calls=text_calls,
        wires=wires,
        more=more,
    )
    command = python("-m", "proxy", "serve", "--config", str(config), "--workers", str(workers or 1))
    log = folder / f"{name.replace(' ', '-')}.log"
    with started(name, port, command, log, core=core, env={"BENCH_KEY": KEY, **env}) as process:
        yield process


@contextlib.contextmanager
def field_of(folder: Path, *, core: int | None, instruments: int | None) -> Iterator[Field]:
    """Run the upstream and every contestant that is installed here."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        mock = stack.enter_context(
            started(
                "mock", port, python("-m", "bench.mock", str(port)), folder / "mock.log", core=instruments
            )
        )
        proxies: dict[str, Process] = {}
        nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if nginx:
            own = free_port()
            config = folder / "nginx.conf"
            config.write_text(_NGINX.format(folder=folder, upstream=mock.port, port=own))
            command = [nginx, "-c", str(config), "-p", str(folder), "-e", str(folder / "nginx.err")]
            proxies["nginx"] = stack.enter_context(
                started("nginx", own, command, folder / "nginx.out", core=core)
            )
        own = free_port()
        command = python("-m", "bench.passthrough", str(own), f"http://127.0.0.1:{mock.port}")
        proxies["aiohttp"] = stack.enter_context(
            started("aiohttp", own, command, folder / "aiohttp.log", core=core)
        )
        for name, tools, text_calls in (
            ("toolrelay", False, "off"),
            ("toolrelay, tools offered", True, "off"),
            ("toolrelay, text read for calls", True, "hermes"),
        ):
            proxies[name] = stack.enter_context(
                toolrelay(name, folder, mock.port, tools=tools, core=core, text_calls=text_calls)
            )
        yield Field(mock, proxies)
