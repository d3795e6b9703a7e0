"""What ``check`` and ``doctor`` find out: faults of a configuration, and what upstreams can do."""
