"""Connections on the command line: log in, log out, and list their state."""
