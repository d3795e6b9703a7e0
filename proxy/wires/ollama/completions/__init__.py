"""Ollama's completions (``/api/generate``)."""
