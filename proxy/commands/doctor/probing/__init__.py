"""Small requests that find out what an upstream supports."""
