"""The supervisor of worker processes."""
