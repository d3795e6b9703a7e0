"""Programs that a model writes: code that calls tools, run by an engine in a process of its own."""
