"""The curated tools.  They register like anybody's: a provider each, off until allowed."""
