"""Requests as conversations and conversations as requests: the parts that all dialects share."""
