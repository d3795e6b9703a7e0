"""One run: turns of the model and calls of tools, from the first byte to the end mark."""
