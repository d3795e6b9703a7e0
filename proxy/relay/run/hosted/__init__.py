"""Calls of the provider's tools that server tools run: which of them may run, and what they found."""
