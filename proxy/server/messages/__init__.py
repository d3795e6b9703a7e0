"""Requests and responses of clients over HTTP/1.1."""
