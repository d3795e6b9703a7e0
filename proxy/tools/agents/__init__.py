"""Agents as tools: a model of its own, with instructions and tools, that gets a task and reports."""
