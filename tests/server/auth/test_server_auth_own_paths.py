"""The paths below /v1/toolrelay belong to the proxy: in no mode of authentication does one go upstream."""

from typing import Any, get_args

import pytest
from client_keys import ALICE, OK, bearer, declared
from raw_upstream import RawUpstream
from running_proxy import make_config, running

from proxy.server.auth.authenticate import Mode

START = "tr_" + "s7" * 21 + "A"
TOKENS = "/v1/toolrelay/tokens"


REFUSALS = {
    "open": (404, "not_found"),
    "start_token": (403, "minting_not_allowed"),
    "forward": (404, "not_found"),
}
"""The answers to a request for a token in the modes in which nobody has a key that mints."""


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_nothing_of_our_own_goes_upstream(mode: Mode) -> None:
    """In each mode the proxy answers paths below /v1/toolrelay itself; only a key that mints gets a token."""
    has_keys = mode in ("keys", "jwt")
    secret = {"keys": ALICE, "jwt": ALICE, "start_token": START}.get(mode, "sk-of-the-provider")
    keys = {"alice": declared(ALICE, mint=True, endpoints=("/*",))} if has_keys else {}
    auth: dict[str, Any] = {"mode": mode}
    if mode == "jwt":
        auth["jwt"] = {"issuer": "https://id.example.com", "audience": ("toolrelay",)}
    async with RawUpstream(OK) as upstream:
        config = make_config(upstream.url, auth=auth, keys=keys).with_start_token(START)
        async with running(config) as proxy:
            made = await proxy.ask({"subject": "ann"}, bearer(secret), path=TOKENS)
            if has_keys:
                assert (made.status, made.json["token"][:4]) == (200, "trt_")
            else:
                assert (made.status, made.error["code"]) == REFUSALS[mode]
            for method, path in (("POST", "/x"), ("POST", "/"), ("GET", "/tokens"), ("DELETE", "/tokens/x")):
                body: dict[str, str] | None = {} if method == "POST" else None
                answer = await proxy.ask(body, bearer(secret), method=method, path=f"/v1/toolrelay{path}")
                assert (answer.status, answer.error["code"]) == (404, "not_found"), path
            assert upstream.requests == []
            # The same caller reaches the upstream on another path.
            assert (await proxy.get("/v1/files", bearer(secret))).status == 200
