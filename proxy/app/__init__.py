"""The composition root: it builds a running application from a configuration."""
