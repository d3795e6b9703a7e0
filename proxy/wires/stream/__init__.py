"""Event streams: their framing, readers and templates."""
