"""Running a call: plan, bounds, the call itself, and its row in the record."""
