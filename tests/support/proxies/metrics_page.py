"""Reads the samples of /metrics."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from running_proxy import Proxy

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: bytes) -> Samples:
    """Return every sample by name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def scrape(proxy: Proxy, headers: Mapping[str, str] | None = None) -> Samples:
    """Return the samples that the proxy shows now."""
    answer = await proxy.get("/metrics", headers or {})
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain; version=")
    return parse(answer.body)


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of the sample with exactly these labels, or 0 if there is none."""
    return samples.get((name, frozenset(labels.items())), 0.0)
