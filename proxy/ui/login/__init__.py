"""Login of people at an OpenID provider, for the web UI."""
