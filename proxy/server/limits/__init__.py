"""Limits of requests, tokens and cost, and what counts towards them."""
