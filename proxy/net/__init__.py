"""Connections: name resolution, addresses that tools may reach, TCP keepalive, tasks that must not end."""
