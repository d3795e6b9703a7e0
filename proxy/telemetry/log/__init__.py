"""The log: its lines and where they go."""
