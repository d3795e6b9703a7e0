"""``check`` and ``doctor``: they find faults of a configuration, and what an upstream supports."""
