"""A program in its own namespace whose only DNS server never answers; it prints what happened.

``python silent_dns.py upstreams`` sends many requests to an upstream by name, and meanwhile some by
address.
``python silent_dns.py others`` instead keeps libuv's threads busy with look-ups of other libraries.
"""

import asyncio
import os
import socket
import sys
import threading

from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from waiting import LATE_S, until

from proxy.commands.common import run_async

ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def main(kind: str) -> None:
    """Serve two upstreams, keep requests to the dead one waiting, and send requests to the live one."""
    # The socket is bound and never read, so look-ups wait.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dns:
        dns.bind(("127.0.0.1", 53))
        async with RawUpstream(whole(b'{"ok":true}')) as raw:
            config = make_config(
                {"name": "dead", "base_url": "http://api.silent.test/v1", "models": ("dead",)},
                {"name": "live", "base_url": raw.url, "models": ("live",), "connect_timeout_s": LATE_S},
            )
            async with running(config) as proxy:
                loop = asyncio.get_running_loop()
                if kind == "others":
                    tasks = [
                        asyncio.create_task(super(type(loop), loop).getaddrinfo(f"db{n}.silent.test", 5432))  # type: ignore[misc]
                        for n in range(8)
                    ]
                else:
                    tasks = [asyncio.create_task(proxy.ask({"model": "dead", **ASK})) for _ in range(8)]
                    await until(lambda: any(t.name == "look up for upstreams" for t in threading.enumerate()))
                await asyncio.sleep(0.2)
                live = [(await proxy.ask({"model": "live", **ASK})).status for _ in range(10)]
                pending = sum(not task.done() for task in tasks)
                print(f"said: live {live.count(200)} of 10, {pending} of 8 wait", flush=True)
                if kind == "others":
                    os._exit(0)  # libuv waits for its threads.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    threads = [thread for thread in threading.enumerate() if thread.name == "look up for upstreams"]
    print(f"said: {len(threads)} look-up under way at the end", flush=True)


run_async(main(sys.argv[1]))
