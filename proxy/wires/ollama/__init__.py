"""Ollama's own chat: request, response and stream."""
