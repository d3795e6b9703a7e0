"""JSON that is edited in place, byte for byte."""
