"""The rights of a tool: policy, argument bounds, hosts, credentials."""
