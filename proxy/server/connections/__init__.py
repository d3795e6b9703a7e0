"""HTTP/1.1 towards clients: connections, heads, bodies, responses."""
