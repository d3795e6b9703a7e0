"""How connections find and keep their peers: look-ups in threads of our own, and TCP keepalive."""
