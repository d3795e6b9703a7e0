"""Heads of requests: complete, incomplete, already known, and malformed ones."""
