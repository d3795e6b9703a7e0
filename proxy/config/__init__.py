"""The configuration: its settings, its loader, and the messages about its faults."""
