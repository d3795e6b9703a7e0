"""The parts that the records in SQLite and PostgreSQL share."""
