"""Connections: name resolution, the addresses that may be reached, TCP keepalive."""
