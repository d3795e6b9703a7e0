"""Upstreams that replay recorded exchanges, and the recorder that writes them."""
