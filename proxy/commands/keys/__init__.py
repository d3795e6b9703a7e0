"""Client keys on the command line."""
