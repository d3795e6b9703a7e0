"""Approvals within a conversation: the question to the client, and its answer."""
