"""The composition root, in parts: it makes the services from a configuration.  See ``server/app.py``."""
