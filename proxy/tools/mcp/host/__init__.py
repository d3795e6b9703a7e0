"""The process that talks to MCP servers.  A hostile answer can only harm this process."""
