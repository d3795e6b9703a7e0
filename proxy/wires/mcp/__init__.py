"""The Model Context Protocol, server side: incoming JSON-RPC messages, and outgoing results."""
