"""The translation between this dialect and the neutral conversation."""
