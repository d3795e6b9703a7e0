"""Running a call: plan, bounds, the call itself, and its row on record."""
