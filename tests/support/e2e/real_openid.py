"""A real OpenID provider, the npm package ``oidc-provider``, in a process of its own."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from child_server import reserved_port
from waiting import PATIENCE_S

AUDIENCE = "urn:toolrelay"


class OpenIdProvider:
    """A running provider."""

    def __init__(self, process: asyncio.subprocess.Process, issuer: str) -> None:
        self._process = process
        self.issuer = issuer

    async def token(self, audience: str = AUDIENCE) -> str:
        """Log in as the service, and return its access token."""
        pair = base64.b64encode(b"service:secret-of-the-service").decode()
        form = {"grant_type": "client_credentials", "resource": audience}
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Basic {pair}"}) as session,
            session.post(f"{self.issuer}/token", data=form) as response,
        ):
            return str((await response.json())["access_token"])

    async def rotate(self) -> None:
        """Have the provider sign with another key, and show that one alone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"rotate\n")
        async with asyncio.timeout(PATIENCE_S):
            assert json.loads(await self._process.stdout.readline()) == {"rotated": True}


@asynccontextmanager
async def openid_process(
    scripts: Path,
    groups: Sequence[str] = (),
    *,
    url: str = "",
    accounts: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[OpenIdProvider]:
    """Run the provider; its tokens name these groups.

    With the ``url`` of a proxy, people log in there: ``accounts`` maps their names to their groups.
    """
    with reserved_port() as port:
        process = await asyncio.create_subprocess_exec(
            *("node", "oidc_provider.mjs"),
            cwd=scripts,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "NODE_OPTIONS": ""},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        question = {
            "port": port,
            "groups": list(groups),
            "audience": AUDIENCE,
            "url": url,
            "accounts": accounts,
        }
        process.stdin.write(json.dumps(question).encode() + b"\n")
        try:
            async with asyncio.timeout(PATIENCE_S):
                line = await process.stdout.readline()
            yield OpenIdProvider(process, json.loads(line)["issuer"])
        finally:
            process.stdin.close()
            await process.wait()
