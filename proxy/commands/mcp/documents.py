"""Read the OpenAPI documents of configured APIs, as the commands that show and allow operations need it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.app.compose.tools import open_egress
from proxy.base.errors import ConfigError, ToolFailure
from proxy.config.load import Config
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import host_entry
from proxy.tools.mcp.host_client import ServerListing, ServerStatus
from proxy.tools.openapi.api import Api
from proxy.tools.openapi.document import MAX_DOCUMENT, read_document
from proxy.tools.openapi.operations import read_operations

_FETCH_S = 30.0


async def list_operations(config: Config, apis: Mapping[str, Api]) -> Sequence[ServerListing]:
    """Return the operations of each API, or in its status why its document cannot be read."""
    async with _fetching(config) as pool:
        return [await _listing(api, pool) for api in apis.values()]


async def _listing(api: Api, pool: EgressPool) -> ServerListing:
    setting = f"{api.setting}.{'url' if api.url else 'file'}"
    try:
        raw = await (_fetched(api.url, setting, pool) if api.url else asyncio.to_thread(_read, api, setting))
        # Run in a thread: a large document in YAML takes many seconds.
        found = await asyncio.to_thread(lambda: read_operations(read_document(raw, setting, api.url), api))
    except ConfigError as fault:
        return ServerListing(ServerStatus("unreadable", f"{fault.problem}. {fault.remedy or ''}".strip()))
    digests = {definition.name: definition.digest for definition in found.definitions}
    status = ServerStatus("ready", digests=digests, left_out=found.left_out)
    return ServerListing(status, found.definitions)


def _read(api: Api, setting: str) -> bytes:
    try:
        with Path(api.file).open("rb") as file:
            return file.read(MAX_DOCUMENT + 1)
    except OSError as error:
        raise ConfigError(setting, f'"{api.file}" cannot be read: {error.strerror}') from None


async def _fetched(url: str, setting: str, pool: EgressPool) -> bytes:
    """Fetch a document as tools fetch: from public addresses and ``tools.networks``, without credentials."""
    try:
        client = pool.client((host_entry(url),))
        answer = await client.exchange(
            "GET", url, {"Accept": "application/json, */*;q=0.5"}, None, repeatable=True
        )
    except ToolFailure as failure:
        raise ConfigError(
            setting, f"cannot be fetched: {failure.message}", "Save it, and name the file"
        ) from None
    return answer.body


@asynccontextmanager
async def _fetching(config: Config) -> AsyncIterator[EgressPool]:
    pool = open_egress(config, max_bytes=MAX_DOCUMENT, timeout_s=_FETCH_S)
    try:
        yield pool
    finally:
        await pool.aclose()
