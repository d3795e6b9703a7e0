"""Parts of the demo: a tool with an effect, recorded answers, a small MCP server."""
