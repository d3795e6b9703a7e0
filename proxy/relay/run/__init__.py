"""A run: turns of the model and tool calls, from the first byte of the response to its end mark."""
