"""MCP servers on the command line: what they have, what of it is allowed, and how files name them."""
