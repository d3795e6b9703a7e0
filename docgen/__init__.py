"""What the documentation takes from the code.  ``python -m docgen`` writes it, and tests compare it."""
