"""What ``check`` finds out: faults of a configuration, and whether upstreams can be reached."""
