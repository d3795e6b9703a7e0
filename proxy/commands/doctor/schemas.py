"""Which tools have schemas that some model providers refuse."""

from collections.abc import Mapping

from proxy.schemas.portable import REFUSED_BY
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy


def schema_lines(catalog: Catalog, policy: Policy) -> list[str]:
    """Return a line for each offered tool, of any provider, whose schema some model provider refuses."""
    return [
        f"{spec.name}: {_refused(spec.unportable)}. Models that refuse it are asked without this tool"
        for spec in catalog.select(policy, asks=True).offered
        if spec.unportable
    ]


def _refused(refusals: Mapping[str, str]) -> str:
    """Return who refuses what in a schema, by provider."""
    by_provider: dict[str, list[str]] = {}
    for feature, path in refusals.items():
        for provider in REFUSED_BY[feature]:
            by_provider.setdefault(provider, []).append(f"{feature} ({path})")
    lines = (f"{provider}: {', '.join(by_provider[provider])}" for provider in sorted(by_provider))
    return f"some providers refuse its schema ({'; '.join(lines)})"
