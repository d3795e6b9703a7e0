"""Upstreams that replay recordings, and the recorder that makes them."""
