"""``toolrelay prices``: where prices come from, and the update of their list."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web
from authority import Authority
from forward_proxies import ForwardProxy
from in_process import serving_app

RAW = [
    {
        "id": "x",
        "api_pattern": r"https://api\.openai\.com",
        "models": [{"match": {"equals": "m"}, "prices": {"input_mtok": 2, "output_mtok": 8}}],
    }
]


def configured(folder: Path, text: str) -> None:
    (folder / "toolrelay.toml").write_text(text)


OPENAI = '[upstreams.default]\nbase_url = "https://api.openai.com/v1"\n'


def test_sources_and_a_price_are_shown(tmp_path: Path, here: Any) -> None:
    """``prices list`` names the list and its date, and the price of a model with its currency."""
    configured(
        tmp_path,
        OPENAI + '[upstreams.own]\nbase_url = "http://127.0.0.1:8000/v1"\napi_key = ""\nfree = true\n'
        '[prices."gpt-4o"]\ninput = 1\noutput = 3\n',
    )
    shown = here("prices", "--config", "toolrelay.toml").stdout.splitlines()
    assert shown[0].startswith("list: genai-prices ")
    assert shown[1:] == ["default: the list of openai and 1 price in [prices]", "own: free"]
    line, free = here("prices", "list", "--model", "gpt-4o-mini").stdout.splitlines()[1:]
    assert line == (
        "default: gpt-4o-mini: input 0.15, cached input 0.075, cache write 0.15, output 0.60 USD "
        "per million tokens"
    )
    assert free == "own: gpt-4o-mini: input 0.00, output 0.00 USD per million tokens"
    (row, _) = map(json.loads, here("prices", "list", "--model", "gpt-4o", "--json").stdout.splitlines())
    assert (row["price"]["input"], row["price"]["output"], row["currency"]) == (1.0, 3.0, "USD")
    assert "has no price" in here("prices", "list", "--upstream", "default", "--model", "nope").stdout
    wrong = here("prices", "list", "--upstream", "nope")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (
        1, "toolrelay: --upstream: there is no upstream 'nope'. Choose one of: default, own"
    )  # fmt: skip


def test_a_list_is_updated_only_on_request(tmp_path: Path, here: Any) -> None:
    """``prices update`` converts the project's data into the file that ``billing.price_list`` names."""
    (tmp_path / "raw.json").write_text(json.dumps(RAW))
    configured(tmp_path, OPENAI)
    refused = here("prices", "update", "--from", "raw.json")
    assert refused.returncode == 1
    assert "--out FILE" in refused.stderr
    configured(tmp_path, OPENAI + '[billing]\nprice_list = "prices.json"\n')
    missing = here("prices", "list")
    assert "toolrelay prices update --out" in missing.stderr
    done = here("prices", "update", "--from", "raw.json")
    assert done.stdout == f"wrote {tmp_path}/prices.json: 1 model of 1 provider\n"
    assert "input 2.00" in here("prices", "list", "--model", "m").stdout
    before = (tmp_path / "prices.json").read_bytes()
    (tmp_path / "raw.json").write_text('{"no": "data"}')
    broken = here("prices", "update", "--from", "raw.json")
    assert broken.returncode == 1
    assert "no data of genai-prices" in broken.stderr
    assert (tmp_path / "prices.json").read_bytes() == before
    assert "cannot be read" in here("prices", "update", "--from", "nowhere.json").stderr
    (tmp_path / "prices.json").write_text("{}")
    assert "it is no list of prices" in here("prices", "list").stderr


async def test_the_update_leaves_by_the_way_that_the_settings_say(tmp_path: Path, here: Any) -> None:
    """``prices update`` goes through ``network.https_proxy`` with its password, and trusts
    ``network.ca_file``."""
    authority = Authority(tmp_path)
    configured(tmp_path, OPENAI + '[network]\nca_file = "authority.pem"\nhttps_proxy = "env:WAY"\n')
    app = web.Application()
    app.router.add_get("/data.json", _answer)
    update = ("prices", "update", "--from", "https://prices.test/data.json", "--out", "prices.json")
    async with serving_app(app, ssl=authority.server("prices.test")) as address:
        port = int(address.rpartition(":")[2])
        async with ForwardProxy({"prices.test": port}, credentials="anna:hunter2") as proxy:
            env = {"WAY": f"http://anna:hunter2@127.0.0.1:{proxy.port}"}
            done = await asyncio.to_thread(here, *update, env=env)
            assert done.stdout.startswith(f"wrote prices.json: 1 model of 1 provider{chr(10)}"), done.stderr
            assert proxy.asked == ["prices.test:443"]
            configured(tmp_path, OPENAI + '[network]\nhttps_proxy = "env:WAY"\n')
            assert "cannot be read" in (await asyncio.to_thread(here, *update, env=env)).stderr
    refused = await asyncio.to_thread(here, *update)
    assert "network.https_proxy" in refused.stderr


async def _answer(request: web.Request) -> web.Response:
    return web.json_response(RAW)


def test_another_currency_does_not_use_the_bundled_list(tmp_path: Path, here: Any) -> None:
    """With another currency, or the list turned off, only ``[prices]`` count; a limit of cost says so."""
    for billing in ('currency = "EUR"', 'price_list = "off"'):
        configured(tmp_path, OPENAI + f"[billing]\n{billing}\n")
        assert "default: no prices" in here("prices").stdout
        configured(tmp_path, OPENAI + f'[billing]\n{billing}\n[limits]\ncost = ["1/day"]\n')
        assert "there are no prices" in here("prices").stderr
    configured(tmp_path, OPENAI + '[limits]\ncost = ["1/day"]\n')
    assert here("prices").returncode == 0
    configured(
        tmp_path, OPENAI.replace("api.openai.com", "models.example.com") + '[limits]\ncost = ["1/day"]\n'
    )
    assert "there are no prices" in here("prices").stderr
