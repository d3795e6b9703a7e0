"""The host process, which talks to MCP servers. A hostile answer can only harm this process."""
