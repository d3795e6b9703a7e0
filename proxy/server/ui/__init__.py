"""``/ui``: the pages, their files, and the JSON that they read; only below here a cookie counts."""
