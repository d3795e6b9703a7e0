"""Download the list prices of providers."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import orjson
from yarl import URL

from proxy.app.compose.upstreams import own_authorities
from proxy.base.errors import ConfigError
from proxy.base.plain_text import counted
from proxy.commands.common import say
from proxy.config.load import Config
from proxy.config.sections.network import NetworkConfig
from proxy.relay.routing.price_list import BUNDLED, SOURCE, PriceFile, compact, read_price_file
from proxy.tools.access.addresses import proxy_headers

_MAX_BYTES: Final = 16 * 2**20
_WITHIN_S: Final = 60.0


async def update_prices(config: Config, out: Path | None, source: str | None) -> None:
    """Read the data, convert it and write it in place of the file.

    Raises :class:`ConfigError` if there is no file to write, or the data cannot be read.
    """
    wanted = config.billing.price_list
    if out is None and wanted in ("bundled", "off"):
        raise ConfigError(
            "billing.price_list",
            f'is "{wanted}", so it names no file to update',
            'Set it to a file, such as "prices.json", or give --out FILE',
        )
    target = Path(wanted) if out is None else out
    given = source or SOURCE
    if given.startswith("https://"):
        raw = await _download(given, config.network)
    else:
        raw = await asyncio.to_thread(_read, given)
    today = datetime.now(UTC).date().isoformat()
    try:
        licence = read_price_file(BUNDLED).licence
        file = compact(orjson.loads(raw), source=given, taken=today, licence=licence)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            "--from", f"{given} is no data of genai-prices: {error}", f"Read {SOURCE}"
        ) from error
    await asyncio.to_thread(_write, target, file)
    models = sum(len(provider.models) for provider in file.providers)
    say(f"wrote {target}: {counted(models, 'model')} of {counted(len(file.providers), 'provider')}")
    if wanted != str(target.absolute()):
        say(f'To use it, write: [billing] price_list = "{target}"')


async def _download(url: str, network: NetworkConfig) -> bytes:
    """Return what is at an https URL, by the way out that the settings of the network say."""
    tls = own_authorities(network)
    try:
        to = URL(url)
        proxy = network.rules().proxy_for(to.scheme, to.host or "", to.port)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN_S)) as session,
            session.get(
                to,
                allow_redirects=False,
                ssl=True if tls is None else tls,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=proxy_headers(proxy),
            ) as answer,
        ):
            if answer.status != 200:
                raise ConfigError("--from", f"{url} answered with status {answer.status}", "Try again later")
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > _MAX_BYTES:
                    raise ConfigError("--from", f"{url} is larger than 16 MiB", f"Read {SOURCE}")
            return bytes(data)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(
            "--from", f"{url} cannot be read: {reason}", "Download it elsewhere, and give --from FILE"
        ) from error


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            "--from", f"{path} cannot be read: {error.strerror}", "Name a file, or an https URL"
        ) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError("--from", f"{path} is larger than 16 MiB", f"Read {SOURCE}")
    return data


def _write(path: Path, file: PriceFile) -> None:
    """Write the file beside its place, then move it there, so that no reader sees half of it."""
    half = path.with_name(f"{path.name}.part")
    try:
        half.write_bytes(msgspec.json.encode(file) + b"\n")
        half.replace(path)
    except OSError as error:
        raise ConfigError(
            "--out", f"{path} cannot be written: {error.strerror}", "Name another file"
        ) from error
