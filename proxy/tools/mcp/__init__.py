"""Tools of MCP servers: what servers say of them, what an operator has allowed, how they are called."""
