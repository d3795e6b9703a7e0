"""The environment variables in which clients of providers look for an address."""

from typing import Final, NamedTuple


class Provider(NamedTuple):
    """One provider: its clients' variables, where it is without them, and the end of its clients' addresses.

    ``key`` is the variable with its key; empty if it needs none.
    """

    variable: str
    usual: str
    end: str
    key: str


PROVIDERS: Final = {
    "openai": Provider("OPENAI_BASE_URL", "https://api.openai.com/v1", "/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("ANTHROPIC_BASE_URL", "https://api.anthropic.com", "", "ANTHROPIC_API_KEY"),
    "ollama": Provider("OLLAMA_HOST", "http://127.0.0.1:11434", "", ""),
}
"""The providers whose clients take an address from the environment. Source: the READMEs of openai, anthropic
and ollama for Python."""


def addresses(root: str) -> dict[str, str]:
    """Return the variables that lead clients to a server at ``root``, such as ``http://127.0.0.1:8090``."""
    return {provider.variable: f"{root}{provider.end}" for provider in PROVIDERS.values()}
