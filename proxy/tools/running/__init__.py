"""How a call is planned, run, bounded and recorded."""
