"""Approvals, and the webhook that tells of them, by their settings."""

from proxy.approval_records import ApprovalLog
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.relay.approvals.approvals import Approvals
from proxy.relay.approvals.grants import nobody_told
from proxy.relay.approvals.rules import ApprovalRules
from proxy.server.approval_webhook import ApprovalWebhook
from proxy.server.config.load import Config
from proxy.store.base import Store
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import host_entry
from proxy.tools.running.runner import Runner

__all__ = ["make_approvals", "make_webhook"]


def make_webhook(config: Config) -> ApprovalWebhook | None:
    """What tells a service about calls that wait; ``None`` where nobody is to be told."""
    settings = config.approvals
    if not (settings.enabled and settings.webhook and settings.webhook_secret):
        return None
    networks = settings.webhook_networks
    pool = EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        retries=0,
        resolver=AiohttpResolver(Resolver("webhook")),
    )
    return ApprovalWebhook(
        settings.webhook,
        settings.webhook_secret.reveal(),
        pool,
        host_entry(settings.webhook),
        arguments=settings.webhook_arguments,
        page=settings.public_url,
    )


def make_approvals(
    config: Config, runner: Runner, store: Store, webhook: ApprovalWebhook | None
) -> Approvals:
    """What asks people about calls; nobody is asked where the record keeps no content to be run later."""
    settings = config.approvals
    keeps = isinstance(store, ApprovalLog) and config.store.content != "none"
    return Approvals(
        store if keeps and isinstance(store, ApprovalLog) else None,
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
        told=nobody_told if webhook is None else webhook.told,
    )
