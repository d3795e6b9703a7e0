"""Stores the findings of doctor in the record, where the web UI of a server finds them."""

import time
from collections.abc import Sequence
from typing import Final

from proxy.app.open_record import opened_record
from proxy.base.errors import NoRecord, StoreError
from proxy.commands.common import say_error
from proxy.config.load import Config
from proxy.config.shown import shown_address
from proxy.ui.diagnoses import KeptFinding, encode_diagnosis

_MEMORY: Final = "memory:"


async def keep_diagnosis(config: Config, name: str, model: str, findings: Sequence[KeptFinding]) -> None:
    """Store the findings about the upstream ``name``, replacing earlier ones. They contain no secret.

    A missing record is not created. A failure is printed but does not fail the command, because the findings
    were shown.
    """
    if config.store.url.startswith(_MEMORY):
        say_error("the web UI will not show these results: store.url is memory:, which keeps nothing")
        return
    address = shown_address(config.upstreams[name].base_url)
    diagnosis = encode_diagnosis(address, model, time.time(), findings)
    try:
        async with opened_record(config, must_exist=True) as store:
            await store.put_diagnosis(name, diagnosis)
    except NoRecord:
        say_error("the web UI will not show these results: there is no record yet; toolrelay serve makes one")
    except StoreError as error:
        say_error(f"the web UI will not show these results: {error}")
