"""Hidden turns: what the client has not seen and so cannot send."""
