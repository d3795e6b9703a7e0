"""Who a caller is, and what a key may do."""
