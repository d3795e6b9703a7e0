"""toolrelay: an OpenAI-compatible reverse proxy that runs curated tools on the server."""

__version__ = "0.1.0"
