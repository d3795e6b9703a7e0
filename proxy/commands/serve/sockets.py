"""The sockets that a server listens on."""

import errno
import socket
from collections.abc import Sequence

from proxy.base.errors import ConfigError
from proxy.commands.serve.port_holders import explain_holders, find_holders

BACKLOG = 1024


def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for every address that ``host`` stands for.

    This comes before anything else, so that a start on a used port has no other consequences. Raises
    :class:`~proxy.base.errors.ConfigError`.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            "server.host",
            f"{host!r} is not an address of this machine",
            "Use 127.0.0.1, or 0.0.0.0 for all addresses",
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            # With port 0 the first socket gets a free port, and the others use the same one.
            chosen = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_listen(family, kind, protocol, (address[0], chosen, *address[2:])))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise _bind_fault(error, host, port) from None
    return sockets


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_fault(error: OSError, host: str, port: int) -> ConfigError:
    other = "Choose another port with --port or server.port (0 takes any free one)"
    if error.errno == errno.EADDRINUSE:
        who, remedy = explain_holders(find_holders(port))
        remedies = f"{remedy}. Or choose another port with --port (0 takes any free one)" if remedy else other
        return ConfigError("server.port", f"port {port} on {host} is in use{who}", remedies)
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError("server.port", f"this user may not listen on port {port}", other)
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            "server.host",
            f"{host} is not an address of this machine",
            "Use 127.0.0.1, or 0.0.0.0 for all addresses",
        )
    return ConfigError("server.port", f"cannot listen on {host} port {port}: {error.strerror}", other)


def address_of(sockets: Sequence[socket.socket]) -> str:
    """Return the first listening address as a URL."""
    host, port = sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
