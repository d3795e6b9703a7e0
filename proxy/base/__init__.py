"""Words that every package shares: errors, events, the conversation, small helpers."""
