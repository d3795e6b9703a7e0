"""The upstreams of these tests are as strict as providers."""

from provider_rules.judge import strict_providers

__all__ = ["strict_providers"]
