"""One module for each table of the record."""
