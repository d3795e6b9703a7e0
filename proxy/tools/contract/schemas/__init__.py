"""A tool's JSON Schema."""
