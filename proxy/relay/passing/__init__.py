"""Responses that pass through the proxy."""
