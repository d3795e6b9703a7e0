"""One turn of a model: calls, usage, and what goes back to it."""
