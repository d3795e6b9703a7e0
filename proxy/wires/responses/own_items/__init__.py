"""Items of our own: calls that clients are shown, and summaries of conversations."""
