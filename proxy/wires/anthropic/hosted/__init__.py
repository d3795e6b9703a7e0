"""The tools of Anthropic that server tools run in its place, and what clients carry of their results."""
