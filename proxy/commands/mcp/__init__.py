"""MCP servers on the command line: their tools, what is allowed, and imports from other programs."""
