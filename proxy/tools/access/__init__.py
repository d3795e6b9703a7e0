"""What a tool may be used for and reach: policy, bounds, hosts, credentials."""
