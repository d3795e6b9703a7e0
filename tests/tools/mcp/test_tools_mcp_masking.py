"""What may be a secret in command lines and addresses is not shown."""

import pytest

from proxy.tools.mcp.masking import HIDDEN, masked_args, masked_url
from proxy.tools.mcp.servers import Server

TOKEN = "ghp_0123456789abcdefghijklmnop"
KEY = "a1b2c3d4e5f6a7b8c9d0e1f2"


@pytest.mark.parametrize(
    "args",
    [
        ("--token", "hunter2"),
        ("--api-key=hunter2",),
        ("-y", TOKEN),
        ("run", "-e", "GITHUB_TOKEN=hunter2"),
        ("--header", "Authorization: Bearer hunter2"),
        ("--header", "Authorization:Bearer hunter2"),
        ("postgresql://me:hunter2@db/x",),
        (f"https://x.example/mcp?api_key={TOKEN}",),
        (f"https://me:hunter2@x.example/s/{KEY}/mcp?a=b",),
    ],
)
def test_a_secret_of_a_command_line_is_not_shown(args: tuple[str, ...]) -> None:
    """Options, variables, headers, addresses and tokens lose their secrets, and nothing else."""
    shown = " ".join(masked_args(args))
    assert HIDDEN in shown
    assert not any(word in shown for word in ("hunter2", TOKEN, KEY))
    assert "hunter2" not in Server("a", command="x", args=args).shown


@pytest.mark.parametrize(
    "args",
    [
        ("-y", "@modelcontextprotocol/server-filesystem", "/srv/docs"),
        ("--token-file", "/run/token", "--path=/srv", "--local-timezone=Europe/Berlin"),
        ("run", "-e", "GITHUB_TOKEN", "--header", "Authorization:${AUTH}"),
        ("https://mcp-server-production-eu1.example/mcp-server-production-eu1?q=a%20b&page=2",),
    ],
)
def test_ordinary_arguments_are_shown_as_they_are(args: tuple[str, ...]) -> None:
    """Paths, packages, names of variables and ordinary addresses stay."""
    assert masked_args(args) == args


def test_an_address_keeps_what_is_no_secret() -> None:
    """Host, path and ordinary parameters of a server's address stay."""
    assert masked_url(f"https://x.example/s/{KEY}/mcp?team=red&key=1") == (
        f"https://x.example/s/{HIDDEN}/mcp?team=red&key={HIDDEN}"
    )
