"""What OpenAI's dialects share, and the rest of its API, as data."""
