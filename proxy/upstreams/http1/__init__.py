"""Upstreams over the proxy's own HTTP/1.1 client."""
