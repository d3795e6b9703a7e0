"""Approvals on the command line: what waits, and decisions."""
