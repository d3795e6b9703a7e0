"""Builds approvals and their webhook from the settings."""

from collections.abc import Mapping
from typing import Any

from proxy.api.admin.approval_webhook import ApprovalWebhook
from proxy.app.compose.upstreams import own_authorities
from proxy.config.load import Config
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.records.approvals import ApprovalLog
from proxy.relay.approvals.approvals import Approvals
from proxy.relay.approvals.rules import ApprovalRules
from proxy.relay.memory.hidden.agent_turns import AgentTurns
from proxy.store.base import Store
from proxy.telemetry.approval_figures import ApprovalFigures
from proxy.telemetry.metrics import Metrics
from proxy.tools.access.addresses import WayOut
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import host_entry
from proxy.tools.running.runner import Runner


def make_webhook(config: Config) -> ApprovalWebhook | None:
    """Build the webhook for calls that wait for an approval; ``None`` if none is configured."""
    settings = config.approvals
    if not (settings.enabled and settings.webhook and settings.webhook_secret):
        return None
    networks = settings.webhook_networks
    pool = EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        retries=0,
        resolver=AiohttpResolver(Resolver("webhook")),
        way=WayOut(config.network.rules(), tls=own_authorities(config.network)),
    )
    return ApprovalWebhook(
        settings.webhook,
        settings.webhook_secret.reveal(),
        pool,
        host_entry(settings.webhook),
        arguments=settings.webhook_arguments,
        page=settings.public_url,
    )


def make_figures(config: Config, store: Store, metrics: Metrics | None) -> ApprovalFigures | None:
    """Build the counters of approvals; ``None`` if there are no metrics or no approvals."""
    log = _log_of(config, store)
    if metrics is None or log is None or not config.approvals.enabled:
        return None
    gauges = ApprovalFigures(log, metrics.approval, metrics.approval_waited, now=store.now)
    metrics.add_source(gauges.figures)
    return gauges


def _log_of(config: Config, store: Store) -> ApprovalLog | None:
    """Return the store as the log of approvals; ``None`` if it keeps no content that could run later."""
    return store if isinstance(store, ApprovalLog) and config.store.content != "none" else None


def make_approvals(
    config: Config, runner: Runner, store: Store, *followers: ApprovalFigures | ApprovalWebhook | None
) -> Approvals:
    """Build the component that asks people about calls, and calls the ``followers`` for each event."""
    settings = config.approvals
    listening = [follower.on_event for follower in followers if follower is not None]

    def on_event(kind: str, facts: Mapping[str, Any]) -> None:
        for tell in listening:
            tell(kind, facts)

    return Approvals(
        _log_of(config, store),
        runner,
        ApprovalRules(
            enabled=settings.enabled,
            expires_s=settings.expires_s,
            by=settings.by,
            admin_only=settings.admin_only,
            edit=settings.edit,
            url=settings.public_url,
            max_grant_s=settings.max_grant_s,
        ),
        told=on_event,
        agents=AgentTurns(store, store.now),
        now=store.now,
    )
