"""Which server tools a request offers."""
