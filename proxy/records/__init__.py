"""The rows of the record, as data."""
