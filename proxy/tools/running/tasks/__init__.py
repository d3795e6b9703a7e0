"""A tool's code in tasks and threads of its own."""
