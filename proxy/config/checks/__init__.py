"""Checks of a configuration beyond its types, and the words for its faults."""
