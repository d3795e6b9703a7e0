"""The dialects that are served, each as data."""
