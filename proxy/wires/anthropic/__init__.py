"""Anthropic Messages: request, response and stream."""
