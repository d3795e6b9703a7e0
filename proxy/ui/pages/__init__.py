"""The other pages of the web UI, as JSON."""
