"""The server side of the web UI: its files, sign-in, and the JSON below ``/ui/api``."""
