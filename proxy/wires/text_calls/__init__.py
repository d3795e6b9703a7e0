"""Tool calls that a model writes into its text: the proxy finds them, and tells models how to write them."""
