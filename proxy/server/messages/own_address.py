"""Find the address by which a client calls this server, from the client's request."""

import re
from typing import Final

from aiohttp import hdrs

from proxy.server.messages.heads.head import Head

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_.-]{1,253}))(?::[0-9]{1,5})?\Z")


def host_name(host: str) -> str:
    """Return the name or address in a ``Host`` header, in lower case; empty if the header is malformed."""
    matched = _HOST.match(host.lower())
    return (matched[1] or matched[2]) if matched else ""


def own_origin(head: Head) -> str:
    """Return the origin that a request was sent to (``http://127.0.0.1:8080``); empty if unknown.

    A client can invent it, but the proxy shows the result only to that client.
    """
    hosts = head.headers.getall(hdrs.HOST, ())
    if len(hosts) != 1 or not host_name(hosts[0]):
        return ""
    secure = head.headers.get(hdrs.X_FORWARDED_PROTO, "").strip().lower() == "https"
    return f"{'https' if secure else 'http'}://{hosts[0].lower()}"
