"""Connections on the command line: log in, log out, and how each of them is."""
