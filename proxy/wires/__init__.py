"""The dialects on the wire.  No I/O: bytes and events go in, events and bytes come out."""
