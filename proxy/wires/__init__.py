"""The dialects on the wire. No I/O: this package turns bytes into events and events into bytes."""
