"""Approvals: a person decides about a call, which then runs once or is refused."""
