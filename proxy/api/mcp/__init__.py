"""toolrelay as an MCP server, for clients that run a model themselves and call the tools here."""
