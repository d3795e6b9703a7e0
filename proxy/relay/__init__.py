"""The heart: what one client request causes, from its first byte to its end mark."""
