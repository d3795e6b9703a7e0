"""The places that settings come from, before they become one configuration."""
