"""Tell the service manager how the server does.

systemd gives a service of ``Type=notify`` a datagram socket in ``NOTIFY_SOCKET``; a name that begins with
``@`` is in the abstract namespace (``man 3 sd_notify``).
"""

import contextlib
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def notify_manager(state: str) -> None:
    """Send a state to the service manager, if there is one. Never raises: the server works without it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
