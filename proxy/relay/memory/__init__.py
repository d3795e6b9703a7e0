"""What the proxy keeps of earlier requests: hidden turns, effects that a retry repeats, conversations."""
