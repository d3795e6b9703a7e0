"""The tools of the web: pages, and the search for them."""
