"""Authentication: it finds the caller of a request, and the rights of a key."""
