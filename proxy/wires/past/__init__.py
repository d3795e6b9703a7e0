"""What of a conversation may differ from one request to the next, though it is the same conversation."""
