"""The writer of the record: its queue, its batches and its back-pressure."""
