"""Tool calls that a model writes into its text: they are found, and models are told how to write them."""
