"""Requests for a model's answer, with and without server tools."""
