"""Runs as the web UI shows them."""
