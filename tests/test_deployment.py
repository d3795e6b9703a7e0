"""The deployment kit: its files name settings, metrics, paths and files that exist."""

import json
import re
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.load import Config, find_faults
from proxy.telemetry.hooks import OWN_PATHS
from proxy.telemetry.metric_families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
MONITORING = ROOT / "examples" / "monitoring"
KUBERNETES = ROOT / "examples" / "deploy" / "kubernetes"
UNIT = ROOT / "examples" / "deploy" / "systemd" / "toolrelay.service"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
LABELS = {
    f"{family.name}{suffix}": {*family.labels, "instance", "job", *(["le"] if suffix == "_bucket" else [])}
    for family in FAMILIES
    for suffix in SUFFIXES[family.kind]
}
_METRIC = re.compile(r"\b((?:toolrelay|gen_ai|process)_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_PASSED = {"POSTGRES_PASSWORD": "x" * 24}


def texts(value: Any) -> Iterator[str]:
    """Yield every expression in a dashboard or a file of rules."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in ("expr", "definition") and isinstance(each, str):
                yield each
            else:
                yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def unknown(expression: str) -> list[str]:
    """Return the metrics and labels of an expression that do not exist."""
    grouped = {name.strip() for found in _GROUPED.findall(expression) for name in found.split(",")}
    bare = _GROUPED.sub("", re.sub(r'"[^"]*"', '""', expression))
    wrong, known = [], {"le", "instance", "job"}
    for name, inside in _METRIC.findall(bare):
        if name not in LABELS:
            wrong.append(name)
            continue
        known |= LABELS[name]
        wrong += [label for label in re.findall(r"(\w+)\s*[=!]", inside) if label not in LABELS[name]]
    return wrong + sorted(grouped - known)


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    """Each metric and each label in the dashboard and the alerts is one that the proxy has."""
    dashboard = json.loads((MONITORING / "grafana" / "toolrelay.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    for what, least in ((dashboard, 25), (rules, 12)):
        expressions = list(texts(what))
        assert len(expressions) >= least
        assert {text: found for text in expressions if (found := unknown(text))} == {}
    assert unknown('rate(toolrelay_requests_total{stat="x"}[5m])') == ["stat"]
    assert unknown("toolrelay_gone") == ["toolrelay_gone"]
    assert unknown("sum by (color) (toolrelay_open_streams)") == ["color"]


def loaded(folder: Path, environment: dict[str, str], text: str = "") -> Config:
    """Load a configuration whose secrets are files below /run/secrets; every secret file gets a value."""
    secrets = folder / "secrets"
    secrets.mkdir()

    def placed(value: str) -> str:
        for name in re.findall(r"file:/run/secrets/([\w/]+)", value):
            # Each has a value of its own: the proxy refuses one secret for two purposes.
            (secrets / Path(name).name).write_text(sha256(name.encode()).hexdigest())
        return re.sub(r"file:/run/secrets/(?:toolrelay/)?(\w+)", rf"file:{secrets}/\1", value)

    (folder / "toolrelay.toml").write_text(placed(text))
    given = {name: placed(value) for name, value in environment.items()}
    config, faults = find_faults(folder / "toolrelay.toml", given)
    assert [str(fault) for fault in faults] == []
    assert config is not None
    return config


def test_compose_sets_what_the_proxy_reads(tmp_path: Path) -> None:
    """The settings in compose.yaml are valid, and each secret and mounted file exists."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    proxy = compose["services"]["toolrelay"]
    environment = {
        name: re.sub(r"\$\{(\w+)[^}]*\}", lambda found: _PASSED[found[1]], value)
        for name, value in proxy["environment"].items()
    }
    config = loaded(tmp_path, environment)
    assert config.keys["metrics"].admin is True
    assert config.store.url == f"postgresql://toolrelay:{_PASSED['POSTGRES_PASSWORD']}@postgres/toolrelay"
    assert set(proxy["secrets"]) == set(compose["secrets"])
    assert {f"/run/secrets/{name}" for name in proxy["secrets"]} == {
        value.removeprefix("file:") for value in environment.values() if value.startswith("file:")
    }
    assert (proxy["read_only"], proxy["cap_drop"]) == (True, ["ALL"])
    assert int(proxy["stop_grace_period"].removesuffix("s")) > 2 * config.server.drain_s
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"]
        assert set(service.get("depends_on", ())) <= set(compose["services"])


def test_kubernetes_objects_fit_each_other(tmp_path: Path) -> None:
    """The kustomization lists its files; probes, keys, ports and times fit the settings in the ConfigMap."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    objects = {
        made["kind"]: made
        for name in kustomization["resources"]
        for made in [yaml.safe_load((KUBERNETES / name).read_text())]
    }
    assert set(objects) == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    text = (KUBERNETES / "toolrelay.toml").read_text()
    config = loaded(tmp_path, {"TOOLRELAY_STORE__URL": "postgresql://u:p@h/d"}, text)
    server = config.server
    assert pod["terminationGracePeriodSeconds"] >= server.notice_s + 2 * server.drain_s
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OWN_PATHS
    assert container["ports"][0]["containerPort"] == server.port
    named = set(re.findall(r"file:/run/secrets/toolrelay/(\w+)", text))
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert {item["key"] for item in secret["items"]} == named
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    readme = (KUBERNETES / "README.md").read_text()
    asked = {env["valueFrom"]["secretKeyRef"]["key"] for env in container["env"]}
    assert set(re.findall(r"--from-literal=(\w+)=", readme)) == named | asked
    (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in LABELS
    assert tomllib.loads(text)["server"]["notice_s"] == 5


@pytest.mark.parametrize(
    "setting", ["Type=notify", "NotifyAccess=main", "DynamicUser=yes", "ProtectSystem=strict"]
)
def test_the_unit_is_hardened_and_waits_for_the_server(setting: str) -> None:
    """The unit waits for the server's own sign, and gives it nothing that it does not need."""
    assert setting in UNIT.read_text().splitlines()


def test_the_image_says_what_it_is() -> None:
    """The base image is pinned to a patch version; the image has OCI labels and OpenTelemetry."""
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in text
    assert "opentelemetry-sdk==" in (ROOT / "requirements.lock").read_text()
