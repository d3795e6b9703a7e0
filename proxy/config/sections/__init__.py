"""Sections of the configuration that :mod:`proxy.config.settings` puts together."""
