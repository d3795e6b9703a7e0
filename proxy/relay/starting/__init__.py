"""Runs that start without a client of their own."""
