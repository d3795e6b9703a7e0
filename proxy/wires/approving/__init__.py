"""Approvals within a conversation: how a client is asked in it, and what it answers there."""
