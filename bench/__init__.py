"""Measures from outside what the proxy costs, compared with others. ``python -m bench``; see README.md."""
