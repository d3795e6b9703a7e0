"""How connections find and keep their peers: look-ups, which addresses may be reached, TCP keepalive."""
