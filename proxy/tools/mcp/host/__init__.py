"""The process that talks to MCP servers, so that hostile answers are read in no process that serves."""
