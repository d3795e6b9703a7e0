"""The parts of the documentation that come from the code. ``python -m docgen`` writes them; tests compare
them."""
