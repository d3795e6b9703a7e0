"""The configuration: its settings, how it is loaded, and how its faults are told."""
