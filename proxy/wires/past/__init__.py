"""How the same conversation may differ from one request to the next."""
