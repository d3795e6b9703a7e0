"""The allowed differences between two requests of the same conversation."""
