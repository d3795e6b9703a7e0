"""``runs`` and ``usage``: they show the record, and change it."""
