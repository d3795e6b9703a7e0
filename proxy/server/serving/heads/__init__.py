"""Heads of requests: parsed ones, known ones, those that are not whole, and what cannot be parsed."""
