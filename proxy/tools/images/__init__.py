"""Images that tools make at the upstreams of models."""
