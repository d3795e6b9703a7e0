"""Limits of requests, tokens and cost, and the counters for them."""
