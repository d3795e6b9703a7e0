"""The composition root, in parts: builds the services from a configuration. See ``app/app.py``."""
