"""Stored objects by their ids."""
