"""``toolrelay record``: serves as usual and saves every exchange with an upstream as a fixture."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from proxy.app.compose.overrides import Overrides
from proxy.base.errors import ConfigError
from proxy.commands.common import say
from proxy.commands.serve.serve import serve
from proxy.config.load import Config
from proxy.upstreams.base import Upstream
from proxy.upstreams.recorded.recorder import ClientExchanges, RecordingUpstream


async def record(config: Config, out: Path) -> None:
    """Serve until stopped, and write the exchanges with the upstreams below ``out``."""
    folder = await asyncio.to_thread(_private_folder, out)
    say(f"recording to {folder}; the files will contain what users ask and models answer")
    await serve(config, recording(folder, config.secrets()))


def recording(folder: Path, secrets: Iterable[str]) -> Overrides:
    """Return overrides that save both sides of each exchange below ``folder``, without the ``secrets``."""
    known, clients = list(secrets), ClientExchanges()

    def recorded(upstream: Upstream) -> Upstream:
        return RecordingUpstream(upstream, folder, secrets=known, clients=clients)

    return Overrides(wrap_upstream=recorded, listen=clients.listen)


def _private_folder(out: Path) -> Path:
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "--out", f"the folder {out} cannot be created: {error.strerror}", "Name another"
        ) from None
    return out.absolute()
