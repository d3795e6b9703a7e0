"""What the proxy remembers of earlier requests: hidden turns, side effects, responses and conversations."""
