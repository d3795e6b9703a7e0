"""Tools of MCP servers: their definitions, the pins that an operator has allowed, and their calls."""
