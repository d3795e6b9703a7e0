"""``toolrelay requests``: lists the requests that have no run."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import asdict, replace
from rich.console import Console
from rich.text import Text

from proxy.base.plain_text import safe_cell
from proxy.commands.common import console, say_json
from proxy.commands.fitting import Column, print_fitting
from proxy.commands.runs.runs import opened_runs
from proxy.commands.runs.text_output import moment, shown_caller
from proxy.config.load import Config
from proxy.records.requests import RequestRecord
from proxy.relay.routing.prices import cost_number, cost_text
from proxy.server.auth.key_names import named_callers, recorded_caller
from proxy.store.base import RequestFilter

_PAGE: Final = 500
_NAME_LIMIT: Final = 64
_LIST: Final = (
    Column("started"),
    Column("status", right=True),
    Column("path", rank=1, least=12),
    Column("model", rank=2, least=12),
    Column("caller", rank=4, least=8),
    Column("tokens", rank=5, right=True),
    Column("cost", rank=3, right=True),
    Column("first byte", rank=6, right=True),
    Column("time", right=True),
    Column("error", rank=7, least=10),
    Column("request", rank=8),
)


async def list_requests(config: Config, wanted: RequestFilter, limit: int, *, as_json: bool) -> None:
    """Print the newest matching requests, one line each."""
    found: list[RequestRecord] = []
    async with opened_runs(config) as store:
        if wanted.caller:
            caller = await recorded_caller(store, config.keys, wanted.caller)
            wanted = replace(wanted, caller=caller)
        while len(found) < limit:
            before = found[-1].id if found else None
            page = replace(wanted, limit=min(_PAGE, limit - len(found)), before=before)
            more = await store.list_requests(page)
            found += more
            if len(more) < page.limit:
                break
        names = named_callers((await store.read_keys()).keys)
    if as_json:
        shown = {"currency": config.billing.currency}
        say_json(*(asdict(request) | {"cost": cost_number(request.cost)} | shown for request in found))
    else:
        _render(console(), found, names)


def _render(console: Console, requests: Sequence[RequestRecord], names: Mapping[str, str]) -> None:
    if not requests:
        console.print("No requests without a run.", highlight=False)
        return
    rows = [
        (
            Text(moment(request.started_at)),
            Text(str(request.status), style="red" if request.status >= 400 else "green"),
            safe_cell(request.endpoint, limit=_NAME_LIMIT),
            safe_cell(request.model or "-", limit=_NAME_LIMIT),
            safe_cell(shown_caller(request.caller, names) or "-", limit=_NAME_LIMIT),
            Text("-" if request.total_tokens is None else str(request.total_tokens)),
            Text(cost_text(request.cost)),
            Text(_seconds(request.first_byte_s)),
            Text(_seconds(request.duration_s)),
            safe_cell(request.error_code or "-", limit=_NAME_LIMIT),
            safe_cell(request.request_id, "dim", limit=_NAME_LIMIT),
        )
        for request in requests
    ]
    print_fitting(console, _LIST, rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
