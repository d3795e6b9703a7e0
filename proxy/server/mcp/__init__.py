"""toolrelay as an MCP server: the path at which clients that run a model themselves reach the tools."""
