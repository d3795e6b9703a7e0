"""Items that the proxy makes: calls that it shows to clients, and summaries of conversations."""
