"""What the records in SQLite and PostgreSQL have in common."""
