"""Connections: name resolution, the addresses that tools may reach, TCP keepalive."""
