"""The record in SQLite: in a file, or in memory."""
