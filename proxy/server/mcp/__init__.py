"""toolrelay as an MCP server: clients that run a model themselves call the tools here."""
