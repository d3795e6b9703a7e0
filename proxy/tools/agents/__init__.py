"""Agents as tools: a second model with its own instructions and tools, which gets a task and reports."""
