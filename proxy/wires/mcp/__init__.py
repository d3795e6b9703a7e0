"""The Model Context Protocol as a server says it: JSON-RPC messages that come in, and results that go out."""
