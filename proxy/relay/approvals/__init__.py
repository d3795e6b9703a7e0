"""Calls that a person decides about: asked for, shown, decided, and run once."""
