"""The core: everything that one client request causes, from its first byte to its end mark."""
