"""Tools of MCP servers: their definitions, which of them an operator has allowed, and calls."""
