"""The settings of MCP servers, and imports from other programs."""
