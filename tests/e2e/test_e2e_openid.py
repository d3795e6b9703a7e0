"""Clients with tokens of a real OpenID provider, the npm package ``oidc-provider``."""

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError
from proxy_process import ProxyProcess, serving
from real_openid import AUDIENCE, openid_process
from waiting import until


def configure(folder: Path, issuer: str, more: str = "") -> None:
    """Write a configuration that takes the provider's tokens."""
    (folder / "toolrelay.toml").write_text(
        '[server]\nport = 0\n[upstreams.demo]\nbase_url = "replay:"\napi_key = ""\n'
        f'[auth]\nmode = "jwt"\n[auth.jwt]\nissuer = "{issuer}"\naudience = ["{AUDIENCE}"]\n'
        f'networks = ["127.0.0.0/8"]\n{more}'
    )


def client(running: ProxyProcess, token: str) -> AsyncOpenAI:
    """OpenAI's SDK with a token in the place of its key."""
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key=token, max_retries=0)


async def models(running: ProxyProcess, token: str) -> list[str]:
    """Ask for the models with a token."""
    async with client(running, token) as asking:
        return [model.id async for model in await asking.models.list()]


async def fails(running: ProxyProcess, token: str) -> Any:
    """Ask for the models with a token, and return the error."""
    try:
        await models(running, token)
    except (AuthenticationError, PermissionDeniedError) as error:
        return error
    return None


async def test_tokens_of_a_real_provider(scripts: Path, tmp_path: Path) -> None:
    """Its tokens are taken, those for another audience are not; a rotation of its keys is noticed."""
    roles = "[auth.jwt.roles.developers]\nadmin = true\n"
    async with openid_process(scripts, ["developers"]) as provider:
        configure(tmp_path, provider.issuer, roles)
        async with serving(tmp_path) as running:
            await running.says(f"auth: tokens of {provider.issuer} for {AUDIENCE}")
            token = await provider.token()
            assert await models(running, token) != []
            assert "another audience" in str(await fails(running, await provider.token("urn:other")))
            head, body, signature = token.split(".")
            assert "signature" in str(await fails(running, f"{head}.{body}.{signature[:-8]}AAAAAAAA"))
            assert await fails(running, "sk-nobody") is not None
            admin = await running.ask(
                method="GET", path="/admin/runs", headers={"Authorization": f"Bearer {token}"}
            )
            assert admin.status == 200
            await provider.rotate()
            rotated = await provider.token()

            async def taken() -> bool:
                return await fails(running, rotated) is None

            await until(taken)
            assert "not signed by a key" in str(await fails(running, token))
        assert token not in "".join([*running.lines, *running.log])


async def test_a_role_that_may_do_less(scripts: Path, tmp_path: Path) -> None:
    """A token without a configured role is refused, and one with a role has its rights alone."""
    async with openid_process(scripts, ["guests"]) as provider:
        configure(tmp_path, provider.issuer, "[auth.jwt.roles.developers]\nadmin = true\n")
        async with serving(tmp_path) as running:
            error = await fails(running, await provider.token())
            assert (error.status_code, error.code) == (403, "role_not_allowed")
        configure(tmp_path, provider.issuer, '[auth.jwt.roles.guests]\nmodels = ["other"]\n')
        async with serving(tmp_path) as running:
            token = await provider.token()
            assert await models(running, token) == []
            admin = await running.ask(
                method="GET", path="/admin/runs", headers={"Authorization": f"Bearer {token}"}
            )
            assert admin.status == 401
