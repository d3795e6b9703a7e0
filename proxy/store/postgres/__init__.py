"""The record in PostgreSQL."""
