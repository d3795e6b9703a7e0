"""The composition root, in parts: from a configuration to what serves.  See ``server/app.py``."""
