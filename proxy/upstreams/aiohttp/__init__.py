"""Upstreams over aiohttp's client."""
