"""The dialects that the proxy serves, each as data."""
