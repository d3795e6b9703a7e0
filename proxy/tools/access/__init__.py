"""The rights of a tool: policy, bounds of arguments, hosts, credentials."""
