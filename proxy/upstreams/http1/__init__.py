"""Upstreams that the proxy reaches with its own HTTP/1.1 client."""
