"""Real reverse proxies in front of a proxy under test, each with the shortest configuration that works."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from child_server import child_server, reserved_port
from require import require
from running_proxy import ProxyAddress

_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.err;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {upstream}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://{behind};
      {more}
    }}
  }}
}}
"""
_HAPROXY = """\
defaults
  mode http
  timeout connect 60s
  timeout client 600s
  timeout server 600s
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  {more}
  server one {host}:{behind} {server}
"""


@asynccontextmanager
async def nginx(
    folder: Path, behind: int, more: str = "", *others: int, balance: str = ""
) -> AsyncIterator[ProxyAddress]:
    """Run nginx with a plain ``proxy_pass`` to the port ``behind``, and with the directives ``more``.

    ``others`` are the ports of more servers, and ``balance`` says which request goes to which.
    """
    found = _program("nginx")
    with reserved_port() as port:
        file = folder / f"nginx-{port}.conf"
        servers = " ".join(f"server 127.0.0.1:{each};" for each in (behind, *others))
        file.write_text(
            _NGINX.format(
                folder=folder,
                port=port,
                upstream=f"upstream behind {{ {balance} {servers} }}" if others else "",
                behind="behind" if others else f"127.0.0.1:{behind}",
                more=more,
            )
        )
        command = (found, "-c", str(file), "-p", str(folder), "-e", str(folder / "nginx.err"))
        async with child_server(*command, port=port):
            yield ProxyAddress(port)


@asynccontextmanager
async def haproxy(
    folder: Path, behind: int, more: str = "", server: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[ProxyAddress]:
    """Run HAProxy with one server at ``host`` and the port ``behind``.

    ``more`` are further directives of the backend, and ``server`` those of its server.
    """
    found = _program("haproxy")
    with reserved_port() as port:
        file = folder / f"haproxy-{port}.cfg"
        file.write_text(_HAPROXY.format(port=port, host=host, behind=behind, more=more, server=server))
        async with child_server(found, "-db", "-q", "-f", str(file), port=port):
            yield ProxyAddress(port)


def _program(name: str) -> str:
    # Debian installs them in folders that are only in root's PATH.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    require(name, found is not None, f"{name} is not installed")
    return found or ""
