"""What ``runs`` and ``usage`` show of the record, and what they change in it."""
