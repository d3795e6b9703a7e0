"""Recorded fixtures as a model provider for other projects' tests: a server, and a plugin for pytest."""
