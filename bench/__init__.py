"""What the proxy costs, measured from outside and beside others.  ``python -m bench``; see README.md."""
