"""All dialects together: what is asked about a request or a path, whatever its dialect."""
